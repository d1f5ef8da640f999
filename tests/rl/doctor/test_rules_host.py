"""The host's GPU and its driver: each state, and its nearest neighbour."""

from dataclasses import replace

import pytest
from machine_facts import (
    HYPER_V,
    LIBRARIES,
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
from rule_tests import fires, silent

from rl.doctor.rules import judge
from rl.doctor.schema import DriverApi, KernelDriver, Nvml, PciGpu, Platform

MAC = Platform(kernel="6.6.12-linuxkit", engine="docker")
VFIO = (replace(NOUVEAU[0], driver="vfio-pci"),)


def card(device: str, driver: str | None = None) -> PciGpu:
    return PciGpu("0000:01:00.0", "0x10de", device, driver)


@pytest.mark.parametrize("torch", [cpu_machine().torch, QUICK], ids=["torch asked", "torch not asked"])
def test_a_cpu_machine_gets_one_piece_of_information_and_exit_0(torch):
    facts = cpu_machine(torch=torch)
    assert [(finding.id, finding.severity) for finding in judge(facts)] == [("no-nvidia-gpu", "info")]
    assert headline(facts) == ("no-nvidia-gpu", 0)


@fires("no-nvidia-gpu", severity="info")
def test_nvidia_visible_devices_alone_promises_no_gpu():
    return cpu_machine(environment={"NVIDIA_VISIBLE_DEVICES": "all"})


def test_a_bare_cpu_machine_misses_no_driver_library():
    assert ids(cpu_machine(platform=Platform(kernel="6.8.0"))) == ["no-nvidia-gpu"]


def test_a_cpu_machine_that_must_have_a_gpu_fails():
    facts = cpu_machine(environment={"GPU_CHECK": "strict"})
    assert headline(facts) == ("no-nvidia-gpu", 3)
    assert "GPU_CHECK=strict" in judge(facts)[0].evidence[1]
    assert len(judge(cpu_machine())[0].evidence) == 1


@pytest.mark.parametrize(
    ("sign", "maker"),
    [
        ({"pci": (PciGpu("0000:03:00.0", "0x1002", "0x744c", "amdgpu"),)}, "AMD"),
        ({"platform": Platform(engine="docker", amd=True)}, "AMD"),
        ({"pci": (PciGpu("0000:00:02.0", "0x8086", "0x4680", "i915"),)}, "Intel"),
    ],
)
def test_a_gpu_of_another_maker_is_named_and_is_no_fault(sign, maker):
    facts = cpu_machine(**sign)
    assert headline(facts) == ("no-nvidia-gpu", 0)
    assert f"an {maker} GPU" in judge(facts)[0].evidence[1]
    assert len(judge(facts)[0].evidence) == 2


def test_a_container_in_wsl_learns_how_to_ask_for_the_gpu_of_windows():
    wsl = Platform(kernel="5.15.153.1-microsoft-standard-WSL2", engine="docker", wsl=True)
    assert "--gpus all" in commands(cpu_machine(platform=wsl))
    assert judge(cpu_machine(platform=replace(wsl, engine=None)))[0].fixes == ()  # no container
    assert judge(cpu_machine())[0].fixes == ()  # no virtual machine


@silent("no-nvidia-gpu")
@pytest.mark.parametrize("sign", [{"pci": NOUVEAU}, {"platform": HYPER_V}, {"nodes": nodes("nvidiactl")}])
def test_any_sign_of_an_nvidia_gpu_is_enough(sign):
    return cpu_machine(**sign)


@fires("docker-desktop", "docker context use default", "6.6.12-linuxkit", severity="info")
def test_docker_desktop_has_no_gpu_in_its_virtual_machine():
    return cpu_machine(platform=MAC)


def test_docker_desktop_is_no_failure_unless_a_gpu_is_demanded():
    assert headline(cpu_machine(platform=MAC)) == ("docker-desktop", 0)
    assert ids(cpu_machine(platform=MAC)) == ["docker-desktop"]
    assert headline(cpu_machine(platform=MAC, environment={"GPU_CHECK": "strict"})) == ("docker-desktop", 3)


@silent("docker-desktop")
def test_a_linuxkit_that_passes_the_gpu_of_windows_on_is_no_dead_end():
    return cpu_machine(platform=replace(MAC, dxg=True))


@silent("docker-desktop")
def test_a_plain_cpu_machine_does_not_run_docker_desktop():
    return cpu_machine()


@fires("no-host-driver", "modprobe nvidia", "mokutil --sb-state", "driven by nothing")
def test_a_gpu_without_its_kernel_module_is_the_hosts_driver():
    return cpu_machine(pci=NO_DRIVER)


@pytest.mark.parametrize("pci", [VFIO + NO_DRIVER, (replace(NOUVEAU[0], driver="nova"),)], ids=["one of two", "nova"])
def test_a_gpu_that_another_driver_has_is_told_with_its_driver(pci):
    assert headline(cpu_machine(pci=pci)) == ("no-host-driver", 3)
    assert any(f"driven by {pci[0].driver}" in line for line in judge(cpu_machine(pci=pci))[0].evidence)


@silent("no-host-driver")
def test_a_container_without_gpus_is_told_from_a_host_without_driver():
    return without_gpu()


@OWN_WAYS
def test_wsl_and_jetson_without_libraries_are_told_nothing_of_modules_and_nodes(platform):
    loaded = without_gpu(pci=NO_DRIVER, platform=platform)
    unloaded = cpu_machine(pci=NO_DRIVER, platform=platform)
    assert ids(loaded) == ids(unloaded) == ["driver-library-missing"]


@fires("nouveau-driver", "ubuntu-drivers install", "driven by nouveau")
def test_a_gpu_under_nouveau_is_told_from_an_unloaded_driver():
    return cpu_machine(pci=NOUVEAU)


@silent("nouveau-driver")
def test_nouveau_on_one_card_beside_nvidias_driver_is_no_fault():
    return without_gpu(pci=(*NOUVEAU, replace(NOUVEAU[0], driver="nvidia")))


@fires("gpu-reserved-for-vm", "vfio-pci", "lspci")
def test_a_gpu_reserved_for_a_virtual_machine_is_told_from_an_unloaded_driver():
    return cpu_machine(pci=VFIO)


@silent("gpu-reserved-for-vm")
def test_one_of_two_gpus_reserved_does_not_explain_the_other():
    return cpu_machine(pci=VFIO + NO_DRIVER)


def ignored(device: str = "0x1b80", version: str | None = "590.44.01", **changes):
    """A GTX 1080 beside a driver that is loaded, counts no GPU, and was given to no container."""
    kernel = KernelDriver(loaded=True, version=version, open_module=False)
    parts = {"platform": Platform(kernel="6.8.0"), "pci": (card(device),), "kernel_driver": kernel, **no_libraries()}
    return gpu_machine(**parts | {"nodes": nodes("nvidiactl")} | changes)


@fires("driver-too-new-for-gpu", "nvidia-driver-580", "the driver is 590.44.01", "0x1b80")
@pytest.mark.parametrize("owner", [None, "nouveau"])
def test_a_pascal_card_is_ignored_by_driver_590(owner):
    return ignored(pci=(card("0x1b80", owner),))


@fires("driver-too-new-for-gpu")
@pytest.mark.parametrize("device", ["0x1340", "0x17c2", "0x1db6", "0x1dff"])
def test_from_the_first_maxwell_to_the_last_volta_all_are_ignored(device):
    return ignored(device)


@fires("driver-too-new-for-gpu", "the driver is 595.45.04")
def test_a_module_that_found_no_gpu_and_left_is_known_by_its_libraries():
    nvml = Nvml(ended="ok", path=f"{LIBRARIES}/libnvidia-ml.so.595.45.04", init=9)
    return ignored(kernel_driver=NOT_LOADED, nvml=nvml)


@silent("driver-too-new-for-gpu")
@pytest.mark.parametrize("device", ["0x1280", "0x133f", "0x1e00", "0x2684", "", "0x1b80x"])
def test_kepler_turing_and_garbage_are_no_case_for_branch_580(device):
    return ignored(device)


@silent("driver-too-new-for-gpu")
@pytest.mark.parametrize("version", ["580.95.05", None, "garbage", "59"])
def test_an_older_driver_or_one_of_unknown_version_ignores_nothing(version):
    return ignored(version=version)


@silent("driver-too-new-for-gpu")
def test_a_pascal_card_that_nvidias_driver_has_is_not_ignored():
    return ignored(pci=(card("0x1b80", "nvidia"),))


@silent("driver-too-new-for-gpu")
def test_an_ignored_card_beside_one_that_works_is_no_fault():
    return gpu_machine(pci=(card("0x1b80"), card("0x2684", "nvidia")), kernel_driver=KernelDriver(True, "590.44.01"))


def test_an_unloaded_driver_for_an_old_card_names_the_branch_that_still_has_it():
    assert "nvidia-driver-580" in commands(cpu_machine(pci=(card("0x1b80"),)))
    assert "nvidia-driver-580" not in commands(cpu_machine(pci=(card("0x2684"),)))


def blackwell(device: str = "0x2b85", *, open_module: bool | None = False, **changes):
    """An RTX 5090 whose driver counts no GPU."""
    kernel = KernelDriver(loaded=True, version="570.26", open_module=open_module, uvm_loaded=True)
    parts = {
        "pci": (card(device, "nvidia"),),
        "kernel_driver": kernel,
        "driver_api": DriverApi(ended="ok", version=12080, init=100, init_name="CUDA_ERROR_NO_DEVICE"),
        "nvml": Nvml(ended="ok", init=0, count=0, driver_version="570.26"),
        "torch": replace(gpu_machine().torch, available=False, count=0, names=()),
    }
    return gpu_machine(**parts | changes)


@fires("gpu-needs-open-module", "nvidia-driver-570-open", "Resizable BAR", "0x2b85", "counts no GPU")
def test_a_blackwell_card_under_the_proprietary_module_is_not_found():
    return blackwell()


@fires("gpu-needs-open-module", "/dev/nvidia0 cannot be opened: EIO")
def test_a_blackwell_card_whose_node_fails_needs_no_nvml():
    return blackwell(nodes=nodes("nvidia0", opened="EIO"), nvml=Nvml(ended="ok"))


@silent("gpu-needs-open-module")
def test_the_open_module_is_not_blamed():
    return blackwell(open_module=True)


@silent("gpu-needs-open-module")
def test_a_module_of_unknown_kind_is_not_blamed():
    return blackwell(open_module=None)


@silent("gpu-needs-open-module")
@pytest.mark.parametrize("device", ["0x2684", "0x2330", "0x28ff"])
def test_an_ada_or_hopper_card_works_with_either_module(device):
    return blackwell(device)


@silent("gpu-needs-open-module")
def test_a_blackwell_card_that_nvml_counts_has_another_trouble():
    return blackwell(nvml=gpu_machine().nvml)


@silent("gpu-needs-open-module")
def test_a_working_gpu_beside_it_shows_that_the_count_is_a_choice():
    return blackwell(driver_api=gpu_machine().driver_api)
