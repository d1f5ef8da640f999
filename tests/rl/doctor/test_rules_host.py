"""The host's GPU and driver, and whether a container was given them: each state, and its nearest neighbour."""

from dataclasses import replace

import pytest
from machine_facts import (
    NO_DRIVER,
    NOT_LOADED,
    NOUVEAU,
    OWN_WAYS,
    QUICK,
    commands,
    cpu_machine,
    gpu_machine,
    headline,
    ids,
    no_libraries,
    nodes,
    without_gpu,
)

from rl.doctor.rules import judge
from rl.doctor.schema import DriverApi, PciGpu, Platform, TorchRun


@pytest.mark.parametrize("torch", [cpu_machine().torch, QUICK], ids=["torch asked", "torch not asked"])
def test_a_cpu_machine_gets_one_piece_of_information_and_exit_0(torch):
    facts = cpu_machine(torch=torch)
    assert [(finding.id, finding.severity) for finding in judge(facts)] == [("no-nvidia-gpu", "info")]
    assert headline(facts) == ("no-nvidia-gpu", 0)


def test_nvidia_visible_devices_alone_promises_no_gpu():
    assert headline(cpu_machine(environment={"NVIDIA_VISIBLE_DEVICES": "all"})) == ("no-nvidia-gpu", 0)


def test_a_bare_cpu_machine_misses_no_driver_library():
    assert ids(cpu_machine(platform=Platform(kernel="6.8.0"))) == ["no-nvidia-gpu"]


def test_a_cpu_machine_that_must_have_a_gpu_fails():
    facts = cpu_machine(environment={"GPU_CHECK": "strict"})
    assert headline(facts) == ("no-nvidia-gpu", 3)
    assert "GPU_CHECK=strict" in judge(facts)[0].evidence[1]
    assert len(judge(cpu_machine())[0].evidence) == 1


@pytest.mark.parametrize(
    "sign",
    [
        {"pci": (PciGpu("0000:03:00.0", "0x1002", "0x744c", "amdgpu"),)},
        {"platform": Platform(engine="docker", amd=True)},
    ],
)
def test_an_amd_gpu_is_named_and_is_no_fault(sign):
    assert headline(cpu_machine(**sign)) == ("no-nvidia-gpu", 0)
    assert "AMD" in "".join(judge(cpu_machine(**sign))[0].evidence)


@pytest.mark.parametrize("kernel", ["5.15.153.1-microsoft-standard-WSL2", "6.6.12-linuxkit"])
def test_a_container_in_an_engines_virtual_machine_learns_how_to_ask_for_the_gpu(kernel):
    wsl = "microsoft" in kernel
    assert "--gpus all" in commands(cpu_machine(platform=Platform(kernel=kernel, engine="docker", wsl=wsl)))
    assert judge(cpu_machine(platform=Platform(kernel=kernel, wsl=wsl)))[0].fixes == ()  # no container
    assert judge(cpu_machine())[0].fixes == ()  # no virtual machine


def test_a_gpu_without_its_kernel_module_is_the_hosts_driver():
    facts = cpu_machine(pci=NO_DRIVER)
    assert headline(facts) == ("no-host-driver", 3)
    assert "modprobe nvidia" in commands(facts)


def test_a_gpu_under_nouveau_is_told_from_an_unloaded_driver():
    assert headline(cpu_machine(pci=NOUVEAU)) == ("nouveau-driver", 3)


def test_a_gpu_reserved_for_a_virtual_machine_is_told_from_an_unloaded_driver():
    vfio = (replace(NOUVEAU[0], driver="vfio-pci"),)
    assert headline(cpu_machine(pci=vfio)) == ("gpu-reserved-for-vm", 3)
    assert headline(cpu_machine(pci=vfio + NO_DRIVER)) == ("no-host-driver", 3)  # one of two only


@OWN_WAYS
def test_wsl_and_jetson_without_libraries_are_told_nothing_of_modules_and_nodes(platform):
    loaded = without_gpu(pci=NO_DRIVER, platform=platform)
    unloaded = cpu_machine(pci=NO_DRIVER, platform=platform)
    assert ids(loaded) == ids(unloaded) == ["driver-library-missing"]


def test_a_container_without_gpus_is_told_from_a_host_without_driver():
    facts = without_gpu()
    assert ids(facts) == ["container-without-gpu"]
    assert headline(facts) == ("container-without-gpu", 3)
    assert headline(replace(facts, kernel_driver=NOT_LOADED, pci=NO_DRIVER)) == ("no-host-driver", 3)


def test_either_the_module_or_the_bus_shows_that_the_hosts_driver_is_loaded():
    assert ids(without_gpu(kernel_driver=NOT_LOADED)) == ["container-without-gpu"]  # the bus: driver nvidia
    assert ids(without_gpu(pci=NO_DRIVER)) == ["container-without-gpu"]  # the module
    assert ids(without_gpu(pci=())) == ["container-without-gpu"]  # a sandbox that hides the bus


def test_a_container_without_gpus_names_the_toolkit_as_the_next_step():
    assert "docker run --gpus all" in commands(without_gpu())
    assert "nvidia-ctk runtime configure --runtime=docker" in commands(without_gpu())


@pytest.mark.parametrize(
    ("engine", "command", "foreign"),
    [
        ("podman", "podman run --device nvidia.com/gpu=all", "docker run"),
        ("kubernetes", "resources: {limits: {nvidia.com/gpu: 1}}", "docker run"),
        ("docker", "docker run --gpus all", "podman"),
    ],
)
def test_the_command_is_the_one_of_the_engine_in_use(engine, command, foreign):
    assert command in commands(without_gpu(engine))
    assert foreign not in commands(without_gpu(engine))


def test_a_container_whose_nodes_could_not_be_listed_is_not_said_to_have_none():
    unknown = replace(nodes(), ended="not started: no process left")
    assert "container-without-gpu" not in ids(replace(without_gpu(), nodes=unknown))


def test_a_bare_machine_without_the_drivers_library_is_not_called_a_container():
    facts = without_gpu(engine=None)
    assert headline(facts) == ("driver-library-missing", 3)
    assert "docker" not in commands(facts)


def test_apptainer_without_nv_has_nodes_and_no_libraries():
    facts = gpu_machine(platform=Platform(kernel="6.8.0", engine="apptainer"), **no_libraries())
    assert headline(facts) == ("driver-library-missing", 3)
    assert "apptainer exec --nv" in commands(facts)


@pytest.mark.parametrize("value", ["void", "none", ""])
def test_gpus_hidden_by_the_runtimes_variable_are_taken_as_wanted(value):
    facts = replace(without_gpu(), environment={"NVIDIA_VISIBLE_DEVICES": value})
    assert headline(facts) == ("gpu-hidden", 0)
    assert headline(replace(facts, environment=facts.environment | {"GPU_CHECK": "strict"})) == ("gpu-hidden", 3)


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
