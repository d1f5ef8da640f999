"""Each rule: the state in which it must speak, and its nearest neighbour in which it must not."""

from dataclasses import replace

import pytest
from fake_machine import NO_FILE, cpu_machine, gpu_machine, no_libraries, nodes

from rl.doctor.report import applicable, as_text, verdict
from rl.doctor.rules import GPU_CAUSES, SYMPTOMS, TORCH_CAUSES, judge
from rl.doctor.schema import DriverApi, Facts, KernelDriver, Nvml, NvmlGpu, PciGpu, Platform, TorchBuild, TorchRun

NOUVEAU = (PciGpu("0000:01:00.0", "0x10de", "0x2684", "nouveau"),)
NO_DRIVER = (PciGpu("0000:01:00.0", "0x10de", "0x2684", None),)
NOT_LOADED = KernelDriver()


def ids(facts: Facts) -> list[str]:
    return [finding.id for finding in judge(facts)]


def headline(facts: Facts) -> tuple[str, int]:
    """Id of the first finding, and the exit code."""
    findings = judge(facts)
    return (findings[0].id if findings else "none"), verdict(facts, findings).exit_code


def commands(facts: Facts) -> str:
    """All commands the report prints on this machine."""
    return "\n".join(fix.command for fix in applicable(judge(facts)[0].fixes, facts.platform))


def without_gpu(engine: str | None = "docker", **changes) -> Facts:
    """A container whose host has a working GPU, of which nothing came in."""
    platform = Platform(machine="x86_64", kernel="6.8.0", engine=engine)
    return gpu_machine(platform=platform, nodes=nodes(), **no_libraries() | changes)


WSL = Platform(machine="x86_64", kernel="5.15.153.1-microsoft-standard-WSL2", engine="docker", wsl=True, dxg=True)
JETSON = Platform(machine="aarch64", kernel="5.15.148-tegra", engine="docker", tegra=True)
H100 = gpu_machine("NVIDIA H100 80GB HBM3", 8)
QUICK = TorchRun()
HEALTHY = {
    "H100": H100,
    "H100, torch not asked": replace(H100, torch=QUICK),
    "A100 with MIG": gpu_machine("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 1),
    "RTX 4090, on the bare machine": gpu_machine("NVIDIA GeForce RTX 4090", platform=Platform(kernel="6.8.0")),
    "GTX 1080, the 2.7 variant on an old driver": gpu_machine(
        "NVIDIA GeForce GTX 1080",
        version="2.7.1",
        cuda="12.6",
        kernel_driver=KernelDriver(True, "535.54.03", False, True),
        driver_api=DriverApi(ended="ok", version=12020, init=0, count=1),
    ),
    "WSL2": gpu_machine(platform=WSL, kernel_driver=NOT_LOADED, pci=(), nodes=nodes()),
    "Jetson, which has no NVML": gpu_machine(
        "Orin",
        platform=JETSON,
        kernel_driver=NOT_LOADED,
        pci=(),
        nodes=nodes(),
        nvml=Nvml(ended="ok", load_error=f"libnvidia-ml.so.1: {NO_FILE}"),
    ),
    "two GPUs, the second one selected": replace(
        gpu_machine(gpus=1), pci=gpu_machine(gpus=2).pci, nodes=nodes("nvidiactl", "nvidia-uvm", "nvidia1")
    ),
    "CDI, which sets the variable to void": gpu_machine(environment={"NVIDIA_VISIBLE_DEVICES": "void"}),
    "gVisor, which shows nodes only": gpu_machine(kernel_driver=NOT_LOADED, pci=()),
    "Kubernetes": gpu_machine(platform=Platform(kernel="6.8.0", engine="kubernetes")),
    "driver with forward compatibility": gpu_machine(
        kernel_driver=KernelDriver(True, "535.54.03", False, True),
        nvml=Nvml(ended="ok", init=0, cuda_version=12020, count=1, gpus=(NvmlGpu("NVIDIA H100"),)),
    ),
}


@pytest.mark.parametrize("facts", HEALTHY.values(), ids=HEALTHY.keys())
def test_no_rule_fires_on_a_healthy_machine(facts):
    # Every single rule, also those that `judge` would not have asked.
    assert [finding for rule in GPU_CAUSES + TORCH_CAUSES + SYMPTOMS if (finding := rule(facts))] == []
    assert verdict(facts, judge(facts)).status == "ready"


@pytest.mark.parametrize("torch", [cpu_machine().torch, QUICK], ids=["torch asked", "torch not asked"])
def test_a_cpu_machine_gets_one_piece_of_information_and_exit_0(torch):
    facts = cpu_machine(torch=torch)
    assert [(finding.id, finding.severity) for finding in judge(facts)] == [("no-nvidia-gpu", "info")]
    assert headline(facts) == ("no-nvidia-gpu", 0)


def test_nvidia_visible_devices_alone_promises_no_gpu():
    assert headline(cpu_machine(environment={"NVIDIA_VISIBLE_DEVICES": "all"})) == ("no-nvidia-gpu", 0)


def test_a_cpu_machine_that_must_have_a_gpu_fails():
    assert headline(cpu_machine(environment={"GPU_CHECK": "strict"})) == ("no-nvidia-gpu", 3)


def test_an_amd_gpu_is_named_and_is_no_fault():
    facts = cpu_machine(pci=(PciGpu("0000:03:00.0", "0x1002", "0x744c", "amdgpu"),))
    assert headline(facts) == ("no-nvidia-gpu", 0)
    assert "AMD" in "".join(judge(facts)[0].evidence)


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


@pytest.mark.parametrize("platform", [WSL, JETSON], ids=["WSL2", "Jetson"])
def test_wsl_and_jetson_are_never_told_to_load_the_kernel_module(platform):
    assert "no-host-driver" not in ids(cpu_machine(pci=NO_DRIVER, platform=platform))


def test_a_container_without_gpus_is_told_from_a_host_without_driver():
    facts = without_gpu()
    assert headline(facts) == ("container-without-gpu", 3)
    assert "no-host-driver" not in ids(facts)
    assert headline(replace(facts, kernel_driver=NOT_LOADED, pci=NO_DRIVER)) == ("no-host-driver", 3)


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


def capabilities(given: str, *, cuda: bool, nvml: bool) -> Facts:
    gone, there = no_libraries(), gpu_machine()
    return gpu_machine(
        environment={"NVIDIA_DRIVER_CAPABILITIES": given},
        driver_api=there.driver_api if cuda else gone["driver_api"],
        nvml=there.nvml if nvml else gone["nvml"],
        torch=there.torch if cuda else gone["torch"],
    )


def test_capabilities_without_compute_are_fatal_and_without_utility_degraded():
    assert headline(capabilities("utility", cuda=False, nvml=True)) == ("capability-missing", 3)
    assert headline(capabilities("compute,graphics", cuda=True, nvml=False)) == ("capability-missing", 1)


@pytest.mark.parametrize("given", ["all", "compute,utility"])
def test_capabilities_that_name_the_library_are_not_blamed_for_it(given):
    assert headline(capabilities(given, cuda=False, nvml=True)) == ("driver-library-missing", 3)
    assert headline(capabilities(given, cuda=True, nvml=False)) == ("nvml-failed", 1)


def uvm(loaded: bool, code: int = 999, **changes) -> Facts:
    api = DriverApi(ended="ok", version=13000, init=code, init_name="CUDA_ERROR_UNKNOWN")
    torch = replace(gpu_machine().torch, available=code == 0)
    kernel = KernelDriver(True, "580.95.05", True, uvm_loaded=loaded)
    parts = {"nodes": nodes("nvidiactl", "nvidia0"), "driver_api": api, "torch": torch, "kernel_driver": kernel}
    return gpu_machine(**parts | changes)


def test_a_missing_uvm_node_is_loaded_on_the_host_or_passed_to_the_container():
    assert headline(uvm(loaded=False)) == ("uvm-missing", 3)
    assert "nvidia-modprobe -u" in commands(uvm(loaded=False))
    assert "--device /dev/nvidia-uvm" in commands(uvm(loaded=True))


def test_a_uvm_node_that_is_there_is_not_blamed_for_the_unknown_error():
    facts = uvm(loaded=True, nodes=nodes("nvidiactl", "nvidia0", "nvidia-uvm"))
    assert headline(facts) == ("cuda-init-failed", 3)
    assert "999" in judge(facts)[0].cause


def test_refused_nodes_are_evidence():
    facts = uvm(loaded=True, code=304, nodes=nodes("nvidiactl", "nvidia-uvm", "nvidia0", opened="EACCES"))
    assert "/dev/nvidia0 cannot be opened: EACCES" in judge(facts)[0].evidence


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
    assert "driver-too-old" not in ids(aged(12040, "580.95.05"))


def test_on_wsl_a_linux_driver_is_never_offered():
    facts = aged(12040, "550.54.15", platform=WSL)
    assert headline(facts) == ("driver-too-old", 3)
    assert "Windows driver 580" in commands(facts)
    assert "apt-get" not in commands(facts)


def test_a_hung_driver_call_is_the_headline_and_names_the_call():
    hung = DriverApi(ended="timeout", step="cuInit", seconds=30.0, stuck=True, version=13000)
    facts = gpu_machine(driver_api=hung, torch=TorchRun(ended="timeout", step="torch.cuda.is_available"))
    assert headline(facts) == ("driver-call-hung", 3)
    assert judge(facts)[0].evidence[0] == "'cuInit' had not returned after 30 s"
    assert "cannot even be killed" in judge(facts)[0].evidence[1]


def test_a_hung_nvml_beside_a_working_cuda_only_degrades():
    facts = gpu_machine(nvml=Nvml(ended="timeout", step="nvmlInit", seconds=30.0))
    assert headline(facts) == ("driver-call-hung", 1)


def test_a_crashing_driver_library_is_named():
    crashed = DriverApi(ended="signal SIGSEGV", step="cuInit")
    facts = gpu_machine(driver_api=crashed, torch=TorchRun(ended="signal SIGSEGV", step="torch.cuda.is_available"))
    assert headline(facts) == ("driver-call-crashed", 3)


@pytest.mark.parametrize("machine", [cpu_machine, gpu_machine])
def test_a_missing_torch_is_found_with_and_without_asking_it(machine):
    code = 3 if machine is gpu_machine else 1
    asked = TorchRun(ended="ok", error="ModuleNotFoundError: No module named 'torch'", missing=True)
    assert headline(machine(torch=asked, torch_build=TorchBuild())) == ("torch-missing", code)
    assert headline(machine(torch=QUICK, torch_build=TorchBuild())) == ("torch-missing", code)


@pytest.mark.parametrize(
    ("run", "finding"),
    [
        (TorchRun(ended="ok", step="import torch", error="ImportError: undefined symbol"), "torch-broken"),
        (TorchRun(ended="signal SIGSEGV", step="import torch"), "torch-crashed"),
        (TorchRun(ended="exit 3", step="import torch"), "torch-crashed"),
        (TorchRun(ended="timeout", step="import torch", seconds=90.0), "torch-hung"),
    ],
)
def test_a_torch_that_fails_is_one_finding_of_its_own_kind(run, finding):
    assert ids(gpu_machine(torch=run)) == [finding]
    assert headline(gpu_machine(torch=run)) == (finding, 3)
    assert headline(cpu_machine(torch=run)) == (finding, 1)  # no GPU was expected, and yet nothing trains


@pytest.mark.parametrize("torch", [cpu_machine().torch, QUICK], ids=["torch asked", "torch not asked"])
def test_a_cpu_only_torch_is_a_fault_only_where_a_gpu_is(torch):
    build = TorchBuild(True, "2.13.0+cpu")
    assert headline(gpu_machine(torch=torch, torch_build=build)) == ("torch-cpu-build", 3)
    assert "torch-cpu-build" not in ids(cpu_machine(torch=torch, torch_build=build))
    assert "torch-cpu-build" not in ids(without_gpu(torch=torch, torch_build=build))


def test_a_rocm_torch_is_not_called_a_cpu_build():
    assert "torch-cpu-build" not in ids(gpu_machine(torch=QUICK, torch_build=TorchBuild(True, "2.13.0", None, "6.4")))


def test_a_torch_that_sees_less_than_the_driver_repeats_its_own_warning():
    torch = TorchRun(ended="ok", version="2.13.0", cuda="13.0", available=False, count=0, warnings=("unknown error",))
    facts = gpu_machine(torch=torch)
    assert headline(facts) == ("torch-sees-no-gpu", 3)
    assert "unknown error" in judge(facts)[0].evidence


def test_a_gpu_that_cannot_add_is_broken_and_one_that_is_full_only_busy():
    def failing(text: str) -> Facts:
        return gpu_machine(torch=replace(gpu_machine().torch, kernel_error=text))

    assert headline(failing("no kernel image is available for execution")) == ("torch-kernel-failed", 3)
    assert headline(failing("CUDA out of memory. Tried to allocate 2 MiB")) == ("gpu-memory-full", 1)


def test_a_failing_nvml_beside_a_working_cuda_degrades():
    broken = Nvml(ended="ok", init=18, init_name="Driver/library version mismatch")
    assert headline(gpu_machine(nvml=broken)) == ("nvml-failed", 1)
    assert "18" in judge(gpu_machine(nvml=broken))[0].evidence[0]


def test_an_expected_gpu_that_no_rule_can_explain_is_still_a_failure():
    none = DriverApi(ended="ok", version=13000, init=0, count=0)
    facts = gpu_machine(driver_api=none, torch=TorchRun(ended="ok", version="2.13.0", cuda="13.0", available=False))
    assert headline(facts) == ("gpu-not-usable", 3)


def test_a_plain_report_begins_with_its_verdict_and_has_evidence_and_command():
    lines = as_text(without_gpu()).splitlines()
    assert lines[0].startswith("No usable GPU: the host has a GPU and its driver, but this container")
    assert "  - there is no /dev/nvidia* in here" in lines
    assert "      docker run --gpus all ..." in lines


def test_a_healthy_report_says_what_torch_cuda_and_nvml_say():
    text = as_text(gpu_machine(gpus=2))
    assert text.splitlines() == [
        "GPU ready: 2 x NVIDIA H200, driver 580.95.05, torch 2.13.0",
        "",
        "  torch   2.13.0, built for CUDA 13.0",
        "  CUDA    available: yes; GPUs: 2; current device: cuda:0; driver 580.95.05, serves CUDA 13.0",
        "  NVML    ok",
        "  GPU 0   NVIDIA H200, 141 GiB",
        "  GPU 1   NVIDIA H200, 141 GiB",
    ]
