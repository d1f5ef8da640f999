"""A driver that was upgraded, suspended with its host, or blocked by Windows."""

from dataclasses import replace

import pytest
from machine_facts import LIBRARIES, WSL, gpu_machine, headline, ids, nodes
from rule_tests import fires, silent

from rl.doctor.rules import judge
from rl.doctor.schema import DriverApi, Facts, KernelDriver, Nvml, Platform

NO_TORCH = replace(gpu_machine().torch, available=False, count=0, names=())


def upgraded(library: str | None, module: str | None, *, nvml: int | None = 18, cuda: int = 803, **changes) -> Facts:
    """Libraries and kernel module of these versions, as their files say."""
    path = f"{LIBRARIES}/libnvidia-ml.so.{library}" if library else None
    parts = {
        "kernel_driver": KernelDriver(True, module, False, True),
        "nvml": Nvml(ended="ok", path=path, init=nvml, init_name="Driver/library version mismatch"),
        "driver_api": DriverApi(ended="ok", version=13000, init=cuda, path=f"{LIBRARIES}/libcuda.so.{library}"),
        "torch": NO_TORCH,
    }
    return gpu_machine(**parts | changes)


@fires("host-needs-reboot", "sudo reboot", "nvmlInit gives 18", "580.105.08", "580.95.05")
def test_libraries_newer_than_the_module_wait_for_a_reboot():
    return upgraded("580.105.08", "580.95.05")


@fires("host-needs-reboot")
@pytest.mark.parametrize("engine", [None, "podman"])
def test_the_last_of_three_numbers_may_make_the_difference(engine):
    return upgraded("580.95.10", "580.95.05", platform=Platform(engine=engine))


@fires("host-needs-reboot", "cuInit gives 803")
def test_libcuda_alone_shows_it_where_nvml_was_not_given():
    return upgraded("580.105.08", "580.95.05", nvml=None)


@silent("host-needs-reboot")
def test_libraries_older_than_the_module_need_no_reboot():
    return upgraded("570.26", "580.95.05")


@silent("host-needs-reboot")
def test_a_compat_libcuda_newer_than_the_module_is_no_upgrade():
    compat = DriverApi(ended="ok", version=13000, init=803, path="/usr/local/cuda/compat/libcuda.so.590.44.01")
    return upgraded(None, "580.95.05", nvml=None, driver_api=compat)


@silent("host-needs-reboot")
def test_a_libcuda_of_its_own_beside_a_working_nvml_is_no_upgrade():
    return upgraded("580.105.08", "580.95.05", nvml=0)


@fires("container-older-than-driver", "docker rm -f", "570.26")
def test_libraries_older_than_the_module_are_of_a_container_from_before():
    return upgraded("570.26", "580.95.05")


@silent("container-older-than-driver")
def test_a_bare_machine_is_no_old_container():
    return upgraded("570.26", "580.95.05", platform=Platform(kernel="6.8.0"))


@silent("container-older-than-driver")
def test_a_newer_library_is_of_no_older_container():
    return upgraded("580.105.08", "580.95.05")


@fires("driver-version-mismatch", "sudo reboot", "docker rm -f", "nvmlInit gives 18")
@pytest.mark.parametrize(
    ("library", "module"), [(None, "580.95.05"), ("580.95.05", None), ("1", "580.95.05"), ("580.95.05", "580.95.05")]
)
def test_nvmls_word_is_enough_where_the_versions_say_nothing(library, module):
    return upgraded(library, module)


@fires("driver-version-mismatch", "--reinstall -y nvidia-driver-580")
def test_a_bare_machine_with_older_libraries_installs_them_again():
    return upgraded("570.26", "580.95.05", platform=Platform(kernel="6.8.0"))


@silent("driver-version-mismatch")
@pytest.mark.parametrize("library", ["570.26", "580.105.08"])
def test_known_versions_have_the_more_exact_finding(library):
    return upgraded(library, "580.95.05")


@silent("driver-version-mismatch")
def test_803_alone_is_not_enough():
    return upgraded(None, "580.95.05", nvml=None)


def test_a_gpu_that_works_all_the_same_is_left_to_nvmls_own_finding():
    works = gpu_machine(nvml=upgraded("570.26", "580.95.05").nvml)
    assert ids(works) == ["nvml-failed"]
    assert headline(works) == ("nvml-failed", 1)


def suspended(slept: float = 3600.0, **changes) -> Facts:
    parts = {
        "platform": Platform(kernel="6.8.0", engine="docker", slept=slept),
        "driver_api": DriverApi(ended="ok", version=13000, init=999, init_name="CUDA_ERROR_UNKNOWN"),
        "torch": NO_TORCH,
    }
    return gpu_machine(**parts | changes)


@fires("cuda-lost-in-suspend", "modprobe nvidia_uvm", "PreserveVideoMemoryAllocations", "3600 s")
def test_the_unknown_error_after_a_suspend_is_nvidia_uvm():
    return suspended()


@silent("cuda-lost-in-suspend")
@pytest.mark.parametrize("slept", [0.0, 4.9, float("nan"), -1.0])
def test_a_machine_that_never_slept_has_lost_nothing_in_its_sleep(slept):
    return suspended(slept)


def test_the_unknown_error_without_a_suspend_still_names_it_first():
    facts = suspended(0.0)
    assert headline(facts) == ("cuda-init-failed", 3)


@silent("cuda-lost-in-suspend")
@pytest.mark.parametrize(
    "other",
    [
        {"driver_api": DriverApi(ended="ok", version=13000, init=100)},
        {"nvml": Nvml(ended="ok", init=999)},
        {"nodes": nodes("nvidiactl", "nvidia-uvm", "nvidia0", opened="EIO")},
        {"nodes": nodes("nvidiactl", "nvidia0"), "kernel_driver": KernelDriver()},
        {"nodes": nodes("nvidiactl", "nvidia-uvm")},
    ],
    ids=["another number", "NVML fails too", "nodes fail", "no uvm", "no GPU's node"],
)
def test_what_else_fails_is_not_the_suspends(other):
    return suspended(**other)


def windows(code: int = 17, **changes) -> Facts:
    platform = replace(WSL, wsl_libraries=changes.pop("libraries", None), dxg=changes.pop("dxg", True))
    parts = {
        "platform": platform,
        "kernel_driver": KernelDriver(),
        "pci": (),
        "nodes": nodes(),
        "nvml": Nvml(ended="ok", init=code, init_name="GPU access blocked by the operating system"),
        "driver_api": DriverApi(ended="ok", version=13000, init=100),
        "torch": NO_TORCH,
    }
    return gpu_machine(**parts | changes)


@fires("wsl-gpu-blocked", "wsl --update", "nvmlInit gives 17", "never install a Linux driver")
def test_windows_blocks_the_gpu():
    return windows()


@fires("wsl-gpu-blocked", "/usr/lib/wsl/lib or /usr/lib/wsl/drivers is missing")
def test_the_folders_of_windowss_driver_are_missing_in_here():
    return windows(libraries=False)


@pytest.mark.parametrize("libraries", [True, None])
def test_folders_that_are_there_or_unknown_are_not_said_to_be_missing(libraries):
    assert "missing" not in "".join(judge(windows(libraries=libraries))[0].evidence)


@silent("wsl-gpu-blocked")
def test_17_without_the_gpu_of_windows_is_another_systems_word():
    return windows(dxg=False)


@silent("wsl-gpu-blocked")
def test_another_code_in_wsl_is_no_block():
    return windows(9)


@silent("wsl-gpu-blocked")
def test_cuda_that_works_is_not_blocked():
    return windows(driver_api=gpu_machine().driver_api)
