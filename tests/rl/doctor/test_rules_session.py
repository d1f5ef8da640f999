"""SSH without the environment, notebook kernels, variables left on, forked workers: each state and its neighbours."""

from dataclasses import replace

import pytest
from machine_facts import NO_FILE, WSL, cpu_machine, gpu_machine, nodes, without_gpu
from rule_tests import fires, silent

from rl.doctor.schema import DriverApi, GpuProcess, Kernel, Platform, TorchBuild, TorchRun

CONTAINER = {
    "PATH": "/opt/venv/bin::/usr/bin:/usr/local/nvidia/bin",
    "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "CUDA_VERSION": "13.0.2",
}
NO_LIBCUDA = {
    "driver_api": DriverApi(ended="ok", load_error=f"libcuda.so.1: {NO_FILE}"),
    "torch": TorchRun(ended="ok", version="2.13.0", cuda="13.0", available=False, count=0),
}


def over_ssh(machine=gpu_machine, environment=None, **changes):
    here = {"PATH": "/usr/bin"} if environment is None else environment
    return machine(**{"ssh": True, "environment": here, "init_environment": CONTAINER} | changes)


@fires("ssh-without-environment", "LD_LIBRARY_PATH=/usr/local/nvidia/lib64", "/proc/1/environ", severity="fatal")
def test_over_ssh_libcuda_is_not_found():
    return over_ssh(**NO_LIBCUDA)


@fires("ssh-without-environment", "PATH lacks /opt/venv/bin, /usr/local/nvidia/bin", severity="degraded")
def test_over_ssh_the_gpu_works_all_the_same():
    return over_ssh()


@fires("ssh-without-environment", severity="fatal")
def test_one_variable_is_lost_and_it_is_the_one_that_counts():
    return over_ssh(environment={"NVIDIA_VISIBLE_DEVICES": "all"}, **NO_LIBCUDA)


@fires("ssh-without-environment", severity="fatal")
def test_over_ssh_libcuda_of_wsl_is_not_found():
    return over_ssh(platform=WSL, nodes=nodes(), **NO_LIBCUDA)


@fires("ssh-without-environment", severity="info")
def test_a_cpu_machine_over_ssh():
    return over_ssh(cpu_machine)


@silent("ssh-without-environment")
def test_over_ssh_with_the_containers_environment():
    return over_ssh(environment=CONTAINER)


@silent("ssh-without-environment")
def test_one_variable_was_unset_on_purpose():
    return over_ssh(environment={name: CONTAINER[name] for name in ("PATH", "NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION")})


@silent("ssh-without-environment")
def test_two_variables_of_three_were_unset_on_purpose():
    return over_ssh(environment={"CUDA_VERSION": "13.0.2"})


@silent("ssh-without-environment")
def test_libcuda_is_missing_and_the_library_path_is_not():
    return over_ssh(environment={"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}, **NO_LIBCUDA)


@silent("ssh-without-environment")
def test_the_container_has_one_variable_and_it_was_unset():
    return over_ssh(init_environment={"LD_LIBRARY_PATH": "/usr/local/cuda/compat"})


@silent("ssh-without-environment")
def test_the_environment_of_process_1_cannot_be_read():
    return over_ssh(init_environment={}, **NO_LIBCUDA)


@silent("ssh-without-environment")
def test_the_same_without_ssh():
    return over_ssh(ssh=False, **NO_LIBCUDA)


@silent("ssh-without-environment")
def test_over_ssh_to_a_machine_that_is_no_container():
    return over_ssh(platform=Platform(kernel="6.8.0"))


@fires("container-without-gpu")
def test_over_ssh_to_a_container_that_was_given_no_gpu():
    return over_ssh(without_gpu)


@fires("driver-library-missing")
def test_over_ssh_with_the_whole_environment_and_no_libcuda():
    return over_ssh(environment=CONTAINER, nodes=nodes("nvidiactl", "nvidia0", "nvidia-uvm"), **NO_LIBCUDA)


OTHER = Kernel("python3", "/usr/bin/python3", True, False)


def with_kernels(*kernels, machine=gpu_machine, **changes):
    return machine(kernels=kernels, **changes)


@fires(
    "kernel-without-torch", "'python3'", "/usr/bin/python3", "ipykernel install --user --name rl", severity="degraded"
)
@pytest.mark.parametrize("machine", [gpu_machine, cpu_machine])
def test_the_notebooks_own_kernel_has_no_torch(machine):
    return with_kernels(replace(OTHER, name="tf"), OTHER, machine=machine)


@fires("kernel-without-torch", "'tf'", "jupyter kernelspec remove -y tf", severity="info")
def test_another_kernel_has_no_torch():
    return with_kernels(replace(OTHER, name="tf"))


@silent("kernel-without-torch")
@pytest.mark.parametrize("torch", [True, None])
def test_another_python_with_torch_or_of_an_unknown_kind(torch):
    return with_kernels(replace(OTHER, torch=torch))


@silent("kernel-without-torch")
def test_there_is_no_torch_in_here_either():
    return with_kernels(OTHER, torch_build=TorchBuild(), torch=TorchRun(ended="ok", missing=True, error="no torch"))


@fires("kernel-gone", "'python3'", "there is no /opt/gone/bin/python", severity="degraded")
def test_the_notebooks_own_kernel_names_a_python_that_is_gone():
    return with_kernels(Kernel("old", "/opt/old/bin/python", False), Kernel("python3", "/opt/gone/bin/python", False))


@fires("kernel-gone", "jupyter kernelspec remove -y old", severity="info")
def test_another_kernel_names_a_python_that_is_gone():
    return with_kernels(Kernel("old", "/opt/old/bin/python", False))


@silent("kernel-gone")
def test_the_python_of_the_kernel_is_there():
    return with_kernels(OTHER)


def with_variables(gpus=1, machine=gpu_machine, **environment):
    if machine is cpu_machine:
        return cpu_machine(environment=environment)
    return gpu_machine(gpus=gpus, environment=environment)


@fires("slow-variables", "CUDA_LAUNCH_BLOCKING=1", "unset CUDA_LAUNCH_BLOCKING", severity="info")
def test_every_kernel_is_waited_for():
    return with_variables(CUDA_LAUNCH_BLOCKING="1")


@fires("slow-variables", "EAGER", "CUDA_CACHE_DISABLE", "PYTORCH_NO_CUDA_MEMORY_CACHING", "asks NVML only")
def test_all_variables_of_one_gpu_are_named():
    return with_variables(
        CUDA_MODULE_LOADING="EAGER",
        CUDA_CACHE_DISABLE="1",
        PYTORCH_NO_CUDA_MEMORY_CACHING="1",
        PYTORCH_NVML_BASED_CUDA_CHECK="1",
    )


@fires("slow-variables", "NCCL_P2P_DISABLE")
def test_two_gpus_that_may_not_talk_to_each_other():
    return with_variables(gpus=2, NCCL_P2P_DISABLE="1")


@silent("slow-variables")
def test_one_gpu_that_has_nobody_to_talk_to():
    return with_variables(NCCL_P2P_DISABLE="1")


@silent("slow-variables")
def test_the_variables_are_set_to_what_they_are_by_default():
    return with_variables(CUDA_LAUNCH_BLOCKING="0", CUDA_MODULE_LOADING="LAZY", CUDA_CACHE_DISABLE="")


@silent("slow-variables")
def test_a_cpu_machine_is_not_slower_by_them():
    return with_variables(machine=cpu_machine, CUDA_LAUNCH_BLOCKING="1")


TRAINING = GpuProcess(100, "python", "S", 1)
WORKER = GpuProcess(101, "python", "S", 100, forked=True)


@fires("forked-from-gpu-process", "process 101 (python), forked from 100", "forkserver", severity="info")
def test_a_worker_was_forked_from_the_process_that_trains():
    return gpu_machine(processes=(TRAINING, WORKER))


@silent("forked-from-gpu-process")
@pytest.mark.parametrize("worker", [replace(WORKER, forked=False), replace(WORKER, name="pt_data_worker")])
def test_a_worker_that_was_spawned_or_is_a_dataloaders(worker):
    return gpu_machine(processes=(TRAINING, worker))


@silent("forked-from-gpu-process")
def test_a_worker_of_a_fork_server_that_holds_no_gpu():
    return gpu_machine(processes=(WORKER,))
