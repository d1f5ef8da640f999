"""What the container was given of the host's GPU: each state, its nearest neighbour, and the command of its engine."""

from dataclasses import replace

import pytest
from machine_facts import (
    NO_DRIVER,
    NOT_LOADED,
    commands,
    cpu_machine,
    gpu_machine,
    headline,
    ids,
    no_libraries,
    nodes,
    without_gpu,
)
from rule_tests import fires, silent

from rl.doctor.schema import DriverApi, Facts, Platform, TorchRun

KUBERNETES = Platform(kernel="6.8.0", engine="kubernetes")
APPTAINER = Platform(kernel="6.8.0", engine="apptainer")


@fires("container-without-gpu", "docker run --gpus all", "driver is loaded (version 580.95.05)", "no /dev/nvidia*")
def test_a_container_without_gpus_is_told_the_flag():
    return without_gpu()


def test_a_container_without_gpus_is_one_finding_and_exit_3():
    assert ids(without_gpu()) == ["container-without-gpu"]
    assert headline(without_gpu()) == ("container-without-gpu", 3)


def test_either_the_module_or_the_bus_shows_that_the_hosts_driver_is_loaded():
    assert ids(without_gpu(kernel_driver=NOT_LOADED)) == ["container-without-gpu"]  # the bus: driver nvidia
    assert ids(without_gpu(pci=NO_DRIVER)) == ["container-without-gpu"]  # the module
    assert ids(without_gpu(pci=())) == ["container-without-gpu"]  # a sandbox that hides the bus


@silent("container-without-gpu")
def test_a_host_without_its_driver_has_nothing_to_give():
    return without_gpu(kernel_driver=NOT_LOADED, pci=NO_DRIVER)


@silent("container-without-gpu")
def test_a_container_whose_nodes_could_not_be_listed_is_not_said_to_have_none():
    return replace(without_gpu(), nodes=replace(nodes(), ended="not started: no process left"))


@silent("container-without-gpu")
def test_a_bare_machine_without_the_drivers_library_is_not_called_a_container():
    return without_gpu(engine=None)


ENGINES = {
    "docker": (
        "docker run --gpus all",
        "nvidia-ctk runtime configure --runtime=docker &&",  # the toolkit, if the flag then fails
        "capabilities: [gpu]",
        "runtime: nvidia",
    ),
    "podman": (
        "nvidia-ctk cdi generate",
        "podman run --device nvidia.com/gpu=all --security-opt=label=disable",
        "devices: ['nvidia.com/gpu=all']",  # podman-compose
    ),
    "kubernetes": ("resources: {limits: {nvidia.com/gpu: 1}}", "runtimeClassName: nvidia"),
    "apptainer": ("apptainer exec --nv",),
    "lxc": ("lxc config device add", "lxc.mount.entry: /dev/nvidia0"),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_commands_are_those_of_the_engine_in_use(engine):
    printed = commands(without_gpu(engine))
    for command in ENGINES[engine]:
        assert command in printed
    for foreign in (command for other in ENGINES if other != engine for command in ENGINES[other]):
        assert foreign not in printed


def test_podman_compose_is_not_given_the_block_that_it_drops():
    assert "reservations" not in commands(without_gpu("podman"))


def test_a_rootless_docker_is_configured_for_its_user():
    rootless = Platform(kernel="6.8.0", engine="docker", rootless=True)
    assert "--config=$HOME/.config/docker/daemon.json" in commands(without_gpu(platform=rootless))
    assert "systemctl --user restart docker" in commands(without_gpu(platform=rootless))
    assert "$HOME" not in commands(without_gpu())


@fires("gpu-hidden", "NVIDIA_VISIBLE_DEVICES", "docker run --gpus all -e", severity="info")
@pytest.mark.parametrize("value", ["void", "none", ""])
def test_gpus_hidden_by_the_runtimes_variable_are_taken_as_wanted(value):
    return without_gpu(environment={"NVIDIA_VISIBLE_DEVICES": value})


@fires("gpu-hidden", severity="info")
def test_none_brings_the_libraries_and_the_common_nodes_and_no_gpu():
    none = DriverApi(ended="ok", version=13000, init=100, init_name="CUDA_ERROR_NO_DEVICE")
    torch = TorchRun(ended="ok", version="2.13.0", cuda="13.0", available=False, count=0)
    given = {"nodes": nodes("nvidiactl", "nvidia-uvm"), "driver_api": none, "torch": torch}
    return gpu_machine(environment={"NVIDIA_VISIBLE_DEVICES": "none"}, **given)


@fires("gpu-hidden", severity="fatal")
def test_a_gpu_that_is_hidden_and_demanded_is_a_failure():
    return without_gpu(environment={"NVIDIA_VISIBLE_DEVICES": "void", "GPU_CHECK": "strict"})


@silent("gpu-hidden")
def test_cdi_sets_void_for_gpus_that_work():
    return gpu_machine(environment={"NVIDIA_VISIBLE_DEVICES": "void"})


@silent("gpu-hidden")
def test_a_variable_that_was_never_set_hides_nothing():
    return without_gpu(environment={})


def test_the_runtimes_variable_hides_nothing_where_nothing_is_or_where_no_runtime_acts():
    void = {"environment": {"NVIDIA_VISIBLE_DEVICES": "void"}}
    assert ids(cpu_machine(**void)) == ["no-nvidia-gpu"]
    assert ids(without_gpu(engine=None, **void)) == ["driver-library-missing"]
    assert ids(gpu_machine(**void, **no_libraries())) == ["driver-library-missing"]  # nodes came in


@pytest.mark.parametrize("value", ["", "-1"])
def test_gpus_hidden_from_cuda_are_taken_as_wanted_whatever_else_is_wrong(value):
    hidden = {
        "environment": {"CUDA_VISIBLE_DEVICES": value},
        "driver_api": DriverApi(ended="ok", version=12040, init=100, init_name="CUDA_ERROR_NO_DEVICE"),
        "torch": TorchRun(ended="ok", version="2.13.0", cuda="13.0", available=False, count=0),
    }
    assert ids(gpu_machine(**hidden)) == ["gpu-hidden"]
    assert headline(gpu_machine(**hidden)) == ("gpu-hidden", 0)
    shown = gpu_machine(**hidden | {"environment": {"CUDA_VISIBLE_DEVICES": "0"}})
    assert "gpu-hidden" not in ids(shown)


def test_hidden_gpus_do_not_excuse_a_broken_torch():
    broken = TorchRun(ended="ok", error="ImportError: torn", step="import torch")
    facts = replace(without_gpu(torch=broken), environment={"NVIDIA_VISIBLE_DEVICES": "void"})
    assert ids(facts) == ["torch-broken", "gpu-hidden"]


def capabilities(given: str, *, cuda: bool, nvml: bool, **changes) -> Facts:
    gone, there = no_libraries(), gpu_machine()
    parts = {
        "environment": {"NVIDIA_DRIVER_CAPABILITIES": given},
        "driver_api": there.driver_api if cuda else gone["driver_api"],
        "nvml": there.nvml if nvml else gone["nvml"],
        "torch": there.torch if cuda else gone["torch"],
    }
    return gpu_machine(**parts | changes)


@fires("capability-missing", "=utility leaves out compute", "compute,utility,graphics", severity="fatal")
def test_capabilities_without_compute_are_fatal():
    return capabilities("utility", cuda=False, nvml=True)


@fires("capability-missing", "=graphics leaves out compute", severity="fatal")
def test_capabilities_with_neither_name_compute_first():
    return capabilities("graphics", cuda=False, nvml=False)


@fires("capability-missing", "=compute,graphics leaves out utility", severity="degraded")
def test_capabilities_without_utility_only_degrade():
    return capabilities("compute,graphics", cuda=True, nvml=False)


def test_a_missing_capability_is_one_finding():
    assert ids(capabilities("utility", cuda=False, nvml=True)) == ["capability-missing"]
    assert ids(capabilities("compute,graphics", cuda=True, nvml=False)) == ["capability-missing"]


@silent("capability-missing")
def test_capabilities_are_not_blamed_where_the_libraries_are_there():
    return capabilities("graphics", cuda=True, nvml=True)


@silent("capability-missing")
@pytest.mark.parametrize("given", ["all", "compute,utility"])
@pytest.mark.parametrize("cuda", [True, False], ids=["no NVML", "no CUDA"])
def test_capabilities_that_name_the_library_are_not_blamed_for_it(given, cuda):
    return capabilities(given, cuda=cuda, nvml=not cuda)


REFUSED = nodes("nvidiactl", "nvidia0", "nvidia-uvm", opened="EPERM")


@silent("capability-missing")
def test_capabilities_are_not_blamed_where_the_nodes_refuse():
    return capabilities("utility", cuda=False, nvml=True, nodes=REFUSED)


@fires("driver-library-missing", "libcuda.so.1: cannot open shared object file", "docker run --gpus all")
def test_nodes_passed_by_hand_bring_no_library():
    return gpu_machine(environment={}, **no_libraries())


@fires("driver-library-missing", "ubuntu-drivers install")
def test_a_bare_machine_lacks_its_own_library():
    return without_gpu(engine=None)


def test_a_bare_machine_is_told_nothing_of_containers():
    assert headline(without_gpu(engine=None)) == ("driver-library-missing", 3)
    assert "docker" not in commands(without_gpu(engine=None))


@silent("driver-library-missing")
def test_a_library_that_loads_is_not_missing():
    return gpu_machine(driver_api=DriverApi(ended="ok", version=13000, init=999))


@silent("driver-library-missing")
def test_a_cpu_machine_needs_no_library():
    return cpu_machine()


@fires("apptainer-without-nv", "apptainer exec --nv", "/dev/nvidia0", "libcuda.so.1: cannot open")
def test_apptainer_without_nv_has_nodes_and_no_libraries():
    return gpu_machine(platform=APPTAINER, **no_libraries())


def test_apptainer_without_nv_is_one_finding():
    assert ids(gpu_machine(platform=APPTAINER, **no_libraries())) == ["apptainer-without-nv"]


@silent("apptainer-without-nv")
def test_another_engine_that_brings_nodes_only_has_no_such_flag():
    return gpu_machine(**no_libraries())


@silent("apptainer-without-nv")
def test_apptainer_on_a_machine_without_gpu_needs_no_flag():
    return cpu_machine(platform=APPTAINER)


@silent("apptainer-without-nv")
def test_apptainer_with_nv_has_its_library():
    return gpu_machine(platform=APPTAINER)


@fires("whole-node-in-pod", "8 of 8", "nvidia.com/gpu: 1", "value: void", severity="degraded")
def test_a_pod_that_asked_for_nothing_sees_every_gpu_of_its_node():
    return gpu_machine(gpus=8, platform=KUBERNETES)


@silent("whole-node-in-pod")
@pytest.mark.parametrize("value", ["GPU-0", "void", "0", "/var/run/nvidia-container-devices"])
def test_a_pod_whose_gpus_the_scheduler_named_owns_them(value):
    return gpu_machine(gpus=8, platform=KUBERNETES, environment={"NVIDIA_VISIBLE_DEVICES": value})


@silent("whole-node-in-pod")
def test_a_pod_with_one_of_eight_gpus_was_given_it():
    return replace(gpu_machine(platform=KUBERNETES), pci=gpu_machine(gpus=8).pci)


@silent("whole-node-in-pod")
def test_gpus_that_do_not_work_are_taken_from_nobody():
    fails = DriverApi(ended="ok", version=13000, init=999)
    torch = TorchRun(ended="ok", version="2.13.0", cuda="13.0", available=False, count=0)
    return gpu_machine(gpus=8, platform=KUBERNETES, driver_api=fails, torch=torch)


@silent("whole-node-in-pod")
def test_all_gpus_in_docker_are_what_was_asked_for():
    return gpu_machine(gpus=8)
