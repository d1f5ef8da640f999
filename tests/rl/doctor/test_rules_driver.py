"""A driver that is incomplete, hangs, crashes, fails or is too old: each state, and its nearest neighbour."""

from dataclasses import replace

import pytest
from machine_facts import OWN_WAYS, QUICK, WSL, commands, gpu_machine, headline, ids, nodes

from rl.doctor.rules import judge
from rl.doctor.schema import DriverApi, Facts, KernelDriver, Nvml, TorchBuild, TorchRun


def uvm(loaded: bool, code: int = 999, **changes) -> Facts:
    api = DriverApi(ended="ok", version=13000, init=code, init_name="CUDA_ERROR_UNKNOWN")
    torch = replace(gpu_machine().torch, available=code == 0)
    kernel = KernelDriver(True, "580.95.05", True, uvm_loaded=loaded)
    parts = {"nodes": nodes("nvidiactl", "nvidia0"), "driver_api": api, "torch": torch, "kernel_driver": kernel}
    return gpu_machine(**parts | changes)


def test_a_missing_uvm_node_is_loaded_on_the_host_or_passed_to_the_container():
    assert headline(uvm(loaded=False)) == ("uvm-not-loaded", 3)
    assert "nvidia-modprobe -u" in commands(uvm(loaded=False))
    assert "--device /dev/nvidia-uvm" in commands(uvm(loaded=True))


def test_a_uvm_node_that_is_there_is_not_blamed_for_the_unknown_error():
    facts = uvm(loaded=True, nodes=nodes("nvidiactl", "nvidia0", "nvidia-uvm"))
    assert headline(facts) == ("cuda-init-failed", 3)
    assert "999" in judge(facts)[0].cause


@OWN_WAYS
def test_wsl_and_jetson_need_no_uvm_node(platform):
    assert ids(uvm(loaded=False, platform=platform)) == ["cuda-init-failed"]


def test_a_missing_uvm_node_is_not_blamed_where_cuda_has_started_or_crashed():
    assert ids(uvm(loaded=False, code=0)) == []
    assert ids(uvm(loaded=False, driver_api=DriverApi(ended="signal SIGSEGV"))) == ["driver-call-crashed"]


def test_refused_nodes_are_evidence_and_come_before_a_missing_uvm_node():
    facts = uvm(loaded=True, code=304, nodes=nodes("nvidiactl", "nvidia0", opened="EACCES"))
    assert ids(facts) == ["cuda-init-failed"]
    assert judge(facts)[0].evidence == (
        "the driver could not use its device nodes: look at their permissions",
        "/dev/nvidiactl cannot be opened: EACCES",
        "/dev/nvidia0 cannot be opened: EACCES",
        "NVIDIA_VISIBLE_DEVICES=all",
    )


def test_all_that_the_driver_says_is_evidence_where_the_cause_is_unknown():
    api = DriverApi(ended="ok", version=13000, init=999, init_name="CUDA_ERROR_UNKNOWN", path="/lib/libcuda.so.1")
    nvml = Nvml(ended="ok", init=4, init_name="Insufficient Permissions")
    facts = uvm(loaded=True, nodes=nodes("nvidiactl", "nvidia-uvm", "nvidia0"), driver_api=api, nvml=nvml)
    assert judge(facts)[0].evidence == (
        "after suspend and resume of the host, reload nvidia_uvm; else see the kernel log",
        "NVIDIA_VISIBLE_DEVICES=all",
        "libcuda.so.1 is /lib/libcuda.so.1",
        "nvmlInit gives 4 (Insufficient Permissions)",
    )


def aged(version: int, driver: str, **changes) -> Facts:
    """Torch for CUDA 13 on a driver of another age; torch says no, as it would."""
    kernel = KernelDriver(True, driver, False, True)
    api = DriverApi(ended="ok", version=version, init=0, count=1)
    torch = TorchRun(ended="ok", version="2.13.0", cuda="13.0", available=False, count=0)
    nvml = replace(gpu_machine().nvml, cuda_version=version, driver_version=driver)
    return gpu_machine(**{"kernel_driver": kernel, "driver_api": api, "torch": torch, "nvml": nvml} | changes)


def test_a_driver_below_torchs_cuda_major_is_too_old_and_the_fitting_image_is_named():
    facts = aged(12040, "550.54.15")
    assert headline(facts) == ("driver-too-old", 3)
    assert "driver 580 or newer" in judge(facts)[0].cause
    assert "pytorch-cuda-rl:torch2.7" in commands(facts)
    assert "whl/cu126" in commands(facts)
    assert "apt-get install -y nvidia-driver-580" in commands(facts)
    assert "wsl" not in commands(facts)


def test_a_driver_too_old_is_found_without_importing_torch():
    assert headline(aged(12040, "550.54.15", torch=QUICK)) == ("driver-too-old", 3)


def test_a_driver_too_old_for_every_image_is_not_offered_one():
    facts = aged(11040, "470.82.01")
    assert headline(facts) == ("driver-too-old", 3)
    assert "pytorch-cuda-rl:" not in commands(facts)


def test_a_driver_of_the_same_major_with_a_smaller_minor_is_not_too_old():
    older = gpu_machine(cuda="13.2", version="2.14.0", driver_api=DriverApi(ended="ok", version=13000, init=0, count=1))
    assert ids(older) == []


@pytest.mark.parametrize("code", [34, 803, 804])
def test_another_librarys_version_is_not_taken_for_the_drivers_age(code):
    # A compat library of CUDA 12 on a driver 580: its own version says 12.4, the kernel's driver is new enough.
    api = DriverApi(ended="ok", version=12040, init=code, init_name="x", path="/usr/local/cuda/compat/libcuda.so.1")
    facts = aged(12040, "580.95.05", driver_api=api)
    assert headline(facts) == ("cuda-init-failed", 3)
    assert "compat/libcuda.so.1" in "".join(judge(facts)[0].evidence)
    assert headline(aged(12040, "550.54.15", driver_api=api)) == ("cuda-init-failed", 3)
    assert "driver-too-old" not in ids(aged(12040, "580.95.05"))


def test_a_driver_too_old_is_found_where_its_own_version_cannot_be_read():
    facts = aged(12040, "", nvml=Nvml(ended="ok", init=18))
    assert headline(facts) == ("driver-too-old", 3)
    assert judge(facts)[0].evidence[0] == "driver (version unknown) serves CUDA up to 12.4"


def test_a_torch_newer_than_the_doctors_table_still_finds_its_driver_too_old():
    facts = aged(13000, "580.95.05", torch=QUICK, torch_build=TorchBuild(True, "3.0.0", "14.0"))
    assert headline(facts) == ("driver-too-old", 3)
    assert judge(facts)[0].cause.endswith("CUDA 14 needs a newer driver")


def test_a_driver_older_than_every_wheel_gets_no_wheel():
    assert "pip" not in commands(aged(10020, "440.33.01"))


def test_on_wsl_a_linux_driver_is_never_offered():
    facts = aged(12040, "550.54.15", platform=WSL)
    assert headline(facts) == ("driver-too-old", 3)
    assert "in Windows, install NVIDIA's driver 580 or newer" in commands(facts)
    assert "apt-get" not in commands(facts)


def test_a_hung_driver_call_is_the_headline_and_names_the_call():
    hung = DriverApi(ended="timeout", step="cuInit", seconds=30.0, stuck=True, version=13000)
    facts = gpu_machine(driver_api=hung, torch=TorchRun(ended="timeout", step="torch.cuda.is_available"))
    assert headline(facts) == ("driver-call-hung", 3)
    assert judge(facts)[0].evidence[0] == "'cuInit' had not returned after 30 s"
    assert "cannot even be killed" in judge(facts)[0].evidence[1]
    assert len(judge(replace(facts, driver_api=replace(hung, stuck=False)))[0].evidence) == 1


def test_a_hung_nvml_beside_a_working_cuda_only_degrades():
    facts = gpu_machine(nvml=Nvml(ended="timeout", step="nvmlInit", seconds=30.0))
    assert headline(facts) == ("driver-call-hung", 1)


def test_a_crashing_driver_library_is_named():
    crashed = DriverApi(ended="signal SIGSEGV", step="cuInit")
    facts = gpu_machine(driver_api=crashed, torch=TorchRun(ended="signal SIGSEGV", step="torch.cuda.is_available"))
    assert headline(facts) == ("driver-call-crashed", 3)
    assert headline(gpu_machine(nvml=Nvml(ended="signal SIGSEGV"))) == ("driver-call-crashed", 1)


def test_a_binding_that_cannot_be_imported_degrades():
    facts = gpu_machine(nvml=Nvml(ended="ok", binding_error="ModuleNotFoundError: No module named 'pynvml'"))
    assert headline(facts) == ("nvml-failed", 1)
    assert "pynvml" in judge(facts)[0].evidence[0]


def test_a_failing_nvml_beside_a_working_cuda_degrades():
    broken = Nvml(ended="ok", init=18, init_name="Driver/library version mismatch")
    assert headline(gpu_machine(nvml=broken)) == ("nvml-failed", 1)
    assert "18" in judge(gpu_machine(nvml=broken))[0].evidence[0]


def test_an_expected_gpu_that_no_rule_can_explain_is_still_a_failure():
    none = DriverApi(ended="ok", version=13000, init=0, count=0)
    facts = gpu_machine(driver_api=none, torch=TorchRun(ended="ok", version="2.13.0", cuda="13.0", available=False))
    assert headline(facts) == ("gpu-not-usable", 3)
    assert judge(facts)[0].evidence[0] == "libcuda.so.1 counts 0 GPUs (ok)"
