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
    return gpu_machine(**{"platform": platform, "nodes": nodes(), **no_libraries()} | changes)


WSL = Platform(machine="x86_64", kernel="5.15.153.1-microsoft-standard-WSL2", engine="docker", wsl=True, dxg=True)
JETSON = Platform(machine="aarch64", kernel="5.15.148-tegra", engine="docker", tegra=True)
HYPER_V = Platform(machine="x86_64", kernel="6.8.0-45-generic", engine="docker", dxg=True)
OWN_WAYS = pytest.mark.parametrize("platform", [WSL, HYPER_V, JETSON], ids=["WSL2", "Hyper-V", "Jetson"])
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
    "forward compatibility: libcuda newer than the driver": gpu_machine(
        kernel_driver=KernelDriver(True, "535.54.03", False, True),
        nvml=Nvml(ended="ok", init=0, cuda_version=12020, count=1, gpus=(NvmlGpu("NVIDIA H100"),)),
        torch=QUICK,
    ),
    "WSL2 with CDI, which has no nodes to count": gpu_machine(
        platform=WSL, kernel_driver=NOT_LOADED, pci=(), nodes=nodes(), environment={"NVIDIA_VISIBLE_DEVICES": "void"}
    ),
    "a kernel driver of another name": gpu_machine(kernel_driver=NOT_LOADED, pci=(replace(NOUVEAU[0], driver="nova"),)),
    "a torch that works in spite of the version": gpu_machine(
        kernel_driver=KernelDriver(), driver_api=DriverApi(ended="ok", version=12080, init=0, count=1)
    ),
    "a sandbox without nodes": gpu_machine(nodes=nodes()),
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
    assert headline(capabilities("graphics", cuda=False, nvml=False)) == ("capability-missing", 3)
    degraded = capabilities("compute,graphics", cuda=True, nvml=False)
    assert ids(degraded) == ["capability-missing"]
    assert headline(degraded) == ("capability-missing", 1)


def test_capabilities_are_not_blamed_where_the_libraries_are_there_or_the_nodes_refuse():
    assert ids(capabilities("graphics", cuda=True, nvml=True)) == []
    refused = nodes("nvidiactl", "nvidia0", "nvidia-uvm", opened="EPERM")
    facts = replace(capabilities("utility", cuda=False, nvml=True), nodes=refused)
    assert ids(facts) == ["driver-library-missing"]


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


@OWN_WAYS
def test_wsl_and_jetson_need_no_uvm_node(platform):
    assert ids(uvm(loaded=False, platform=platform)) == ["cuda-init-failed"]


def test_a_missing_uvm_node_is_not_blamed_where_cuda_has_started_or_crashed():
    assert ids(uvm(loaded=False, code=0)) == []
    assert ids(uvm(loaded=False, driver_api=DriverApi(ended="signal SIGSEGV"))) == ["driver-call-crashed"]


def test_refused_nodes_are_evidence_and_come_before_a_missing_uvm_node():
    facts = uvm(loaded=True, code=304, nodes=nodes("nvidiactl", "nvidia0", opened="EACCES"))
    assert ids(facts) == ["cuda-init-failed"]
    assert "/dev/nvidia0 cannot be opened: EACCES" in judge(facts)[0].evidence


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


@pytest.mark.parametrize("machine", [cpu_machine, gpu_machine])
def test_a_missing_torch_is_found_with_and_without_asking_it(machine):
    code = 3 if machine is gpu_machine else 1
    asked = TorchRun(ended="ok", error="ModuleNotFoundError: No module named 'torch'", missing=True)
    assert headline(machine(torch=asked, torch_build=TorchBuild())) == ("torch-missing", code)
    assert headline(machine(torch=QUICK, torch_build=TorchBuild())) == ("torch-missing", code)
    assert ids(machine(torch=asked, torch_build=TorchBuild()))[0:1] == ["torch-missing"]
    assert "torch-broken" not in ids(machine(torch=asked, torch_build=TorchBuild()))
    assert "torch-missing" not in ids(machine(torch_build=TorchBuild()))  # torch itself has answered


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
    assert commands(cpu_machine(torch=run)) in ("pip install --force-reinstall torch", "rl doctor")


@pytest.mark.parametrize("torch", [cpu_machine().torch, QUICK], ids=["torch asked", "torch not asked"])
def test_a_cpu_only_torch_is_a_fault_only_where_a_gpu_is(torch):
    build = TorchBuild(True, "2.13.0+cpu")
    assert headline(gpu_machine(torch=torch, torch_build=build)) == ("torch-cpu-build", 3)
    wsl = replace(HEALTHY["WSL2"], torch=torch, torch_build=build)  # no nodes: the driver API shows the GPU
    assert headline(wsl) == ("torch-cpu-build", 3)
    stuck = gpu_machine(
        torch=torch, torch_build=build, driver_api=DriverApi(ended="ok", init=999)
    )  # only nodes show it
    assert "torch-cpu-build" in ids(stuck)
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


@pytest.mark.parametrize(("version", "wheel"), [(11080, "cu118"), (12080, "cu126"), (13000, "cu130"), (14000, "cu130")])
def test_a_cpu_only_torch_is_replaced_by_the_wheel_for_this_driver(version, wheel):
    api = DriverApi(ended="ok", version=version, init=0, count=1)
    facts = gpu_machine(driver_api=api, torch=cpu_machine().torch, torch_build=TorchBuild(True, "2.13.0+cpu"))
    assert commands(facts).endswith(f"/{wheel}")


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
    assert judge(facts)[0].evidence[0] == "libcuda.so.1: 0 GPUs (ok)"


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


def test_a_quick_report_does_not_claim_what_it_has_not_asked():
    assert as_text(gpu_machine(torch=QUICK)).splitlines() == [
        "GPU ready: NVIDIA H200, driver 580.95.05, torch 2.13.0 (not tried)",
        "",
        "  torch   2.13.0, built for CUDA 13.0 (not imported)",
        "  CUDA    available: yes; GPUs: 1; current device: not asked; driver 580.95.05, serves CUDA 13.0",
        "  NVML    ok",
        "  GPU 0   NVIDIA H200, 141 GiB",
    ]


def test_a_cpu_report_is_four_lines():
    assert as_text(cpu_machine()).splitlines() == [
        "CPU only: no NVIDIA GPU is visible on this machine; training runs on the CPU",
        "",
        "  torch   2.13.0+cpu, built without CUDA",
        "  CUDA    available: no; GPUs: 0; current device: cpu",
        f"  NVML    libnvidia-ml.so.1: {NO_FILE}",
    ]


def test_a_report_of_two_causes_tells_the_second_as_also():
    broken = TorchRun(ended="ok", step="import torch", error="ImportError: torn")
    lines = as_text(without_gpu(torch=broken)).splitlines()
    assert lines[2] == "  torch   2.13.0, built for CUDA 13.0 (fails)"
    assert [line for line in lines if line.startswith(("Cause: ", "Also: "))] == [
        "Cause: the host has a GPU and its driver, but this container was started without them (no --gpus) "
        "[container-without-gpu]",
        "Also: torch is installed but broken: 'import torch' fails [torch-broken]",
    ]


def test_a_container_of_unknown_engine_is_shown_the_command_of_each():
    text = commands(without_gpu("container"))
    assert "docker run" in text
    assert "podman run" in text
    assert "runtimeClassName" in text
    assert "apptainer" not in text
