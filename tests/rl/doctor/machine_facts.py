"""Machines that are not here, for the doctor's tests: as facts, with what the doctor makes of them."""

from dataclasses import replace

import pytest

from rl.doctor.report import applicable, verdict
from rl.doctor.rules import judge
from rl.doctor.schema import (
    DriverApi,
    Facts,
    KernelDriver,
    Limits,
    Node,
    Nodes,
    Nvml,
    NvmlGpu,
    PciGpu,
    Platform,
    Tools,
    TorchBuild,
    TorchGpu,
    TorchRun,
)

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
NO_FILE = "cannot open shared object file: No such file or directory"
NOUVEAU = (PciGpu("0000:01:00.0", "0x10de", "0x2684", "nouveau"),)
NO_DRIVER = (PciGpu("0000:01:00.0", "0x10de", "0x2684", None),)
NOT_LOADED = KernelDriver()
WSL = Platform(machine="x86_64", kernel="5.15.153.1-microsoft-standard-WSL2", engine="docker", wsl=True, dxg=True)
JETSON = Platform(machine="aarch64", kernel="5.15.148-tegra", engine="docker", tegra=True)
HYPER_V = Platform(machine="x86_64", kernel="6.8.0-45-generic", engine="docker", dxg=True)
OWN_WAYS = pytest.mark.parametrize("platform", [WSL, HYPER_V, JETSON], ids=["WSL2", "Hyper-V", "Jetson"])
QUICK = TorchRun()


def nodes(*names: str, opened: str = "ok") -> Nodes:
    return Nodes(ended="ok", found=tuple(Node(name, "0666", 0, 195, opened) for name in names))


LIMITS = Limits(shm_total=8 * 2**30, shm_free=8 * 2**30, open_files=2**20, pids_max=2**15, pids_current=40)
TOOLS = Tools(
    compiler="/usr/bin/cc",
    python_headers=True,
    cache="/tmp/torchinductor_rl",
    cache_error="",
    egl_library="",
    egl_vendor=True,
    nvml_packages=("nvidia-ml-py 13.595.45",),
)
ARCHITECTURES = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"


def nvml_gpu(name: str = "NVIDIA H200", index: int = 0, **changes) -> NvmlGpu:
    """An idle GPU in good health."""
    gpu = NvmlGpu(
        name=name,
        uuid=f"GPU-{index}",
        pci=f"00000000:{index:02x}:00.0",
        minor=index,
        memory_bytes=141 * 2**30,
        memory_used=300 * 2**20,
        capability=(9, 0),
        compute_mode=0,
        mig=False,
        persistence=True,
        utilization=0,
        temperature=35,
        power=75.0,
        clock_reasons=1,
        pcie_width=16,
        pcie_width_max=16,
        remap_pending=False,
        remap_failed=False,
        recovery_action=0,
        fabric_state=0,
        virtual=False,
    )
    return replace(gpu, **changes)


def cpu_machine(**changes) -> Facts:
    """No NVIDIA hardware, nothing of the driver, the CPU build of torch; in Docker."""
    machine = Facts(
        platform=Platform(machine="x86_64", kernel="6.8.0-45-generic", engine="docker"),
        nodes=nodes(),
        driver_api=DriverApi(ended="ok", load_error=f"libcuda.so.1: {NO_FILE}"),
        nvml=Nvml(ended="ok", load_error=f"libnvidia-ml.so.1: {NO_FILE}"),
        torch_build=TorchBuild(True, "2.13.0+cpu"),
        torch=TorchRun(ended="ok", version="2.13.0+cpu", available=False, count=0),
        limits=LIMITS,
        tools=replace(TOOLS, egl_library=f"libEGL_nvidia.so.0: {NO_FILE}", egl_vendor=False),
    )
    return replace(machine, **changes)


def gpu_machine(
    name: str = "NVIDIA H200", gpus: int = 1, version: str = "2.13.0", cuda: str = "13.0", **changes
) -> Facts:
    """Driver 580 and its GPUs, all given to a Docker container, and a torch that uses them."""
    machine = Facts(
        platform=Platform(machine="x86_64", kernel="6.8.0-45-generic", engine="docker"),
        kernel_driver=KernelDriver(loaded=True, version="580.95.05", open_module=True, uvm_loaded=True),
        pci=tuple(PciGpu(f"0000:{i:02x}:00.0", "0x10de", "0x2335", "nvidia") for i in range(gpus)),
        nodes=nodes("nvidiactl", "nvidia-uvm", *(f"nvidia{i}" for i in range(gpus))),
        limits=LIMITS,
        environment={"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility,graphics"},
        driver_api=DriverApi(ended="ok", version=13000, init=0, count=gpus, path=f"{LIBRARIES}/libcuda.so.580.95.05"),
        nvml=Nvml(
            ended="ok",
            path=f"{LIBRARIES}/libnvidia-ml.so.580.95.05",
            init=0,
            init_seconds=0.02,
            driver_version="580.95.05",
            cuda_version=13000,
            count=gpus,
            gpus=tuple(nvml_gpu(name, i) for i in range(gpus)),
        ),
        torch_build=TorchBuild(True, version, cuda),
        torch=TorchRun(
            ended="ok",
            version=version,
            cuda=cuda,
            arch_flags=ARCHITECTURES,
            available=True,
            count=gpus,
            current_device=0,
            names=(name,) * gpus,
            gpus=tuple(TorchGpu(name, f"GPU-{i}", (9, 0)) for i in range(gpus)),
        ),
        tools=TOOLS,
    )
    return replace(machine, **changes)


def no_libraries() -> dict[str, object]:
    """What the driver's libraries say where none was given."""
    machine = cpu_machine()
    return {"driver_api": machine.driver_api, "nvml": machine.nvml, "torch": replace(machine.torch, cuda="13.0")}


def without_gpu(engine: str | None = "docker", **changes) -> Facts:
    """A container whose host has a working GPU, of which nothing came in."""
    platform = Platform(machine="x86_64", kernel="6.8.0", engine=engine)
    return gpu_machine(**{"platform": platform, "nodes": nodes(), **no_libraries()} | changes)


def ids(facts: Facts) -> list[str]:
    return [finding.id for finding in judge(facts)]


def headline(facts: Facts) -> tuple[str, int]:
    """Id of the first finding, and the exit code."""
    findings = judge(facts)
    return (findings[0].id if findings else "none"), verdict(facts, findings).exit_code


def commands(facts: Facts) -> str:
    """All commands the report prints on this machine."""
    return "\n".join(fix.command for fix in applicable(judge(facts)[0].fixes, facts.platform))
