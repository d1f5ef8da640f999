"""What is said where something fails and no other rule knows why."""

from dataclasses import replace

from machine_facts import JETSON, NO_FILE, cpu_machine, gpu_machine, without_gpu
from rule_tests import fires, silent

from rl.doctor.schema import DriverApi, Facts, Nvml

NO_NVML = Nvml(ended="ok", load_error=f"libnvidia-ml.so.1: {NO_FILE}")


def torch_says(**changes) -> Facts:
    machine = gpu_machine()
    return replace(machine, torch=replace(machine.torch, **changes))


def cuda_says(**changes) -> Facts:
    """cuInit's answer, which nothing else explains; torch has not been asked."""
    machine = gpu_machine()
    api = DriverApi(ended="ok", version=13000, path=machine.driver_api.path)
    return replace(machine, driver_api=replace(api, **changes), torch=replace(machine.torch, available=False, count=0))


FULL = "CUDA out of memory. Tried to allocate 2 MiB"


@fires("gpu-memory-full", FULL, "nvidia-smi")
def test_the_first_sum_runs_out_of_memory():
    return torch_says(kernel_error=FULL)


@silent("gpu-memory-full")
def test_the_first_sum_fails_otherwise():
    return torch_says(kernel_error="CUDA error: misaligned address")


@fires("torch-kernel-failed", "misaligned address", "sm_90")
def test_the_first_sum_raises():
    return torch_says(kernel_error="CUDA error: misaligned address")


@silent("torch-kernel-failed")
def test_the_first_sum_is_out_of_memory_only():
    return torch_says(kernel_error=FULL)


@fires("torch-sees-no-gpu", "counts 1 GPUs, torch 0", "CUDA initialization")
def test_the_driver_counts_a_gpu_and_torch_none():
    return torch_says(available=False, count=0, names=(), gpus=(), warnings=("CUDA initialization: something",))


@silent("torch-sees-no-gpu")
def test_torch_was_not_asked():
    return torch_says(ended="not run", available=None, count=None, names=(), gpus=(), version=None, cuda=None)


@fires("cuda-init-failed", "cuInit gives 719 (CUDA_ERROR_LAUNCH_FAILED)", "no explanation here", "dmesg")
def test_cuinit_gives_a_number_that_nothing_explains():
    return cuda_says(init=719, init_name="CUDA_ERROR_LAUNCH_FAILED")


@silent("cuda-init-failed")
def test_cuinit_fails_where_the_container_was_given_nothing():
    return without_gpu()


@fires("gpu-not-usable", "counts 0 GPUs")
def test_cuinit_succeeds_and_there_is_no_gpu():
    return cuda_says(init=0, count=0)


@silent("gpu-not-usable")
def test_a_cpu_machine_expects_no_gpu():
    return cpu_machine()


@fires("nvml-failed", NO_FILE, severity="degraded")
def test_cuda_works_and_nvml_is_not_there():
    return replace(gpu_machine(), nvml=NO_NVML, environment={})


@silent("nvml-failed")
def test_a_jetson_has_no_nvml():
    return replace(gpu_machine(platform=JETSON), nvml=NO_NVML, environment={})
