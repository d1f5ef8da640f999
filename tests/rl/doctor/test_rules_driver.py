"""A driver that is incomplete, hangs, crashes, fails or is too old: each state, and its nearest neighbour."""

from dataclasses import replace

import pytest
from machine_facts import OWN_WAYS, QUICK, WSL, commands, gpu_machine, headline, ids, nodes, nvml_gpu
from rule_tests import fires, silent

from rl.doctor.rules import judge
from rl.doctor.schema import DriverApi, Facts, Full, KernelDriver, Nvml, TorchBuild, TorchRun, Work


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


def aged(driver: str, version: int = 0, **changes) -> Facts:
    """Torch for CUDA 13 on a driver of another age; torch says no, as it would."""
    serves = version or {"470": 11040, "525": 12000, "535": 12020, "550": 12040, "570": 12080}.get(driver[:3], 13000)
    kernel = KernelDriver(True, driver, False, True)
    api = DriverApi(ended="ok", version=serves, init=0, count=1)
    torch = TorchRun(ended="ok", version="2.13.0", cuda="13.0", available=False, count=0)
    nvml = replace(gpu_machine().nvml, cuda_version=serves, driver_version=driver)
    return gpu_machine(**{"kernel_driver": kernel, "driver_api": api, "torch": torch, "nvml": nvml} | changes)


@fires("driver-too-old", "driver 580 or newer", "550.54.15 serves CUDA up to 12.4", "nvidia-driver-580", "whl/cu126")
def test_a_driver_below_torchs_cuda_major_is_too_old():
    return aged("550.54.15")


@pytest.mark.parametrize("asked", [QUICK, None], ids=["quick", "default"])
@pytest.mark.parametrize("driver", ["525.60.13", "535.54.03", "550.54.15", "570.26"])
def test_the_image_that_fits_the_driver_is_named_with_the_reason(driver, asked):
    facts = aged(driver, **({"torch": asked} if asked else {}))
    assert headline(facts) == ("driver-too-old", 3)
    docker = next(fix for fix in judge(facts)[0].fixes if fix.where == "docker")
    assert docker.command == "docker run --gpus all ... pytorch-cuda-rl:torch2.7"
    assert "built for CUDA 12.6, which this driver serves" in docker.note
    assert {fix.where for fix in judge(facts)[0].fixes} >= {"docker", "compose", "podman", "kubernetes"}


def test_a_driver_too_old_for_every_image_is_not_offered_one():
    facts = aged("470.82.01")
    assert headline(facts) == ("driver-too-old", 3)
    assert judge(facts)[0].evidence[-1] == "our images with an older CUDA need driver 525 or newer"
    assert "pytorch-cuda-rl:" not in commands(facts)


def test_an_image_without_kernels_for_the_gpu_is_not_offered():
    blackwell = replace(aged("570.26").nvml, gpus=(nvml_gpu("NVIDIA GeForce RTX 5090", capability=(12, 0)),))
    facts = aged("570.26", nvml=blackwell)
    assert headline(facts) == ("driver-too-old", 3)
    assert judge(facts)[0].evidence[-1] == "our images with an older CUDA have no kernels for this GPU"
    assert "pytorch-cuda-rl:" not in commands(facts)
    assert "pip" not in commands(facts)


def test_the_newest_image_is_named_to_a_torch_beyond_it():
    facts = aged("580.95.05", torch=QUICK, torch_build=TorchBuild(True, "3.0.0", "14.0"))
    assert headline(facts) == ("driver-too-old", 3)
    assert judge(facts)[0].cause.endswith("CUDA 14 needs a newer driver")
    assert "pytorch-cuda-rl:torch2.13" in commands(facts)


def test_the_image_is_chosen_by_cuda_where_the_drivers_version_cannot_be_read():
    facts = aged("", 12040, nvml=Nvml(ended="ok", init=18))
    assert headline(facts) == ("driver-too-old", 3)
    assert judge(facts)[0].evidence[0] == "driver (version unknown) serves CUDA up to 12.4"
    assert "pytorch-cuda-rl:torch2.7" in commands(facts)


@fires("driver-too-old", "NVIDIA_DISABLE_REQUIRE is set, so the container started in spite of it")
def test_the_guard_that_was_switched_off_is_named():
    return aged("550.54.15", environment={"NVIDIA_DISABLE_REQUIRE": "1"})


@fires("driver-too-old", "this image was built with torch 2.7.1", "pip install --force-reinstall torch==2.7.1")
def test_a_torch_that_replaced_the_images_own_is_named():
    return aged("550.54.15", torch_build=TorchBuild(True, "2.13.0", "13.0", image="2.7.1"))


def test_the_images_own_torch_is_not_called_replaced():
    facts = aged("550.54.15", torch_build=TorchBuild(True, "2.13.0+cu130", "13.0", image="2.13.0"), torch=QUICK)
    assert headline(facts) == ("driver-too-old", 3)
    assert "was built with" not in "".join(judge(facts)[0].evidence)


@silent("driver-too-old")
@pytest.mark.parametrize("torch", [QUICK, None], ids=["quick", "default"])
def test_a_driver_of_torchs_cuda_major_is_not_too_old(torch):
    return aged("580.95.05", **({"torch": torch} if torch else {}))


@silent("driver-too-old")
@pytest.mark.parametrize("driver", ["525.60.13", "535.54.03", "570.26"])
def test_the_older_image_on_an_older_driver_of_its_major(driver):
    return aged(driver, torch=TorchRun(ended="ok", version="2.7.1", cuda="12.6", available=False, count=0))


@silent("driver-too-old")
def test_a_driver_of_the_same_major_with_a_smaller_minor():
    older = DriverApi(ended="ok", version=13000, init=0, count=1)
    return gpu_machine(cuda="13.2", version="2.14.0", driver_api=older, torch=QUICK)


@silent("driver-too-old")
def test_a_driver_of_unknown_version_that_serves_torchs_major():
    return aged("", 13000, torch=TorchRun(ended="ok", version="2.14.0", cuda="13.2", available=False, count=0))


@silent("driver-too-old")
def test_a_driver_that_is_new_enough_behind_a_library_that_is_not():
    return aged("580.95.05", 12040)


@silent("driver-too-old")
def test_a_library_that_does_not_fit_the_driver_and_has_no_other_behind_it():
    path = "/usr/lib/x86_64-linux-gnu/libcuda.so.535.54.03"
    return aged("550.54.15", driver_api=DriverApi(ended="ok", version=12020, init=803, init_name="x", path=path))


@silent("driver-too-old")
@pytest.mark.parametrize("code", [34, 803, 804])
@pytest.mark.parametrize("driver", ["580.95.05", "550.54.15"])
def test_another_librarys_version_is_not_taken_for_the_drivers_age(code, driver):
    # A compat library of CUDA 12 on a driver 580: its own version says 12.4, the kernel's driver is new enough.
    api = DriverApi(ended="ok", version=12040, init=code, init_name="x", path="/usr/local/cuda/compat/libcuda.so.1")
    return aged(driver, driver_api=api)


def test_a_driver_older_than_every_wheel_gets_no_wheel():
    assert "pip" not in commands(aged("440.33.01", 10020))


def test_on_wsl_a_linux_driver_is_never_offered():
    facts = aged("550.54.15", platform=WSL)
    assert headline(facts) == ("driver-too-old", 3)
    assert "in Windows, install NVIDIA's driver 580 or newer" in commands(facts)
    assert "apt-get" not in commands(facts)


PTX = "the provided PTX was compiled with an unsupported toolchain."


def minor(torch_cuda: str, serves: int, **changes) -> Facts:
    """A torch of the driver's CUDA major, and a newer minor."""
    facts = gpu_machine(
        cuda=torch_cuda, version="2.7.1", driver_api=DriverApi(ended="ok", version=serves, init=0, count=1)
    )
    return replace(facts, kernel_driver=KernelDriver(True, "535.54.03", False, True), **changes)


@fires("driver-lacks-ptx", "gives 222", "driver 560.28.03 or newer", "nvidia-driver-560", severity="degraded")
def test_a_kernel_that_the_driver_cannot_compile():
    return minor(
        "12.6",
        12020,
        full=Full(
            works=(Work(device=0, matmul="", jit="cuModuleLoadData gives 222 (CUDA_ERROR_UNSUPPORTED_PTX_VERSION)"),)
        ),
    )


@fires("driver-lacks-ptx", PTX, severity="fatal")
def test_torchs_own_kernels_need_the_compiler_that_is_too_old():
    torch = replace(minor("12.6", 12020).torch, kernel_error=f"AcceleratorError: CUDA error: {PTX}")
    return minor("12.6", 12020, torch=torch)


@silent("driver-lacks-ptx")
def test_a_smaller_minor_on_which_kernels_run():
    return minor("12.6", 12020, full=Full(works=(Work(device=0, matmul="", jit=""),)))


@silent("driver-lacks-ptx")
def test_another_error_of_the_compiler():
    return minor("12.6", 12020, full=Full(works=(Work(device=0, jit="CUDA error 2: out of memory"),)))


HUNG = DriverApi(ended="timeout", step="cuInit", seconds=30.0, version=13000)
TORCH_HANGS = TorchRun(ended="timeout", step="torch.cuda.is_available")


@fires("driver-call-hung", "'cuInit' had not returned after 30 s", "sudo reboot", severity="fatal")
def test_a_hung_driver_call_is_the_headline_and_names_the_call():
    return gpu_machine(driver_api=HUNG, torch=TORCH_HANGS)


@fires("driver-call-hung", "cannot even be killed")
def test_a_call_that_waits_in_the_kernel():
    return gpu_machine(driver_api=replace(HUNG, stuck=True), torch=TORCH_HANGS)


@fires("driver-call-hung", "nvmlDeviceGetHandleByIndex 3", severity="degraded")
def test_a_hung_nvml_beside_a_working_cuda():
    return gpu_machine(nvml=Nvml(ended="timeout", step="nvmlDeviceGetHandleByIndex 3", seconds=30.0))


@silent("driver-call-hung")
def test_a_slow_call_that_returns():
    machine = gpu_machine()
    return replace(machine, driver_api=replace(machine.driver_api, seconds=25.0))


@fires("driver-call-crashed", "'cuInit' ended the process: signal SIGSEGV", severity="fatal")
def test_a_crashing_driver_library_is_named():
    crashed = DriverApi(ended="signal SIGSEGV", step="cuInit")
    torch = TorchRun(ended="signal SIGSEGV", step="torch.cuda.is_available")
    return gpu_machine(driver_api=crashed, torch=torch)


@fires("driver-call-crashed", severity="degraded")
def test_a_crashing_nvml_beside_a_working_cuda():
    return gpu_machine(nvml=Nvml(ended="signal SIGSEGV", step="nvmlInit"))


@silent("driver-call-crashed")
def test_a_probe_of_ours_that_fails_with_an_error():
    return gpu_machine(nvml=Nvml(ended="exit 1", stderr="TypeError"))


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
