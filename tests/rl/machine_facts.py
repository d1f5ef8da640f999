"""Machines that are not here, for the doctor's tests: as facts, with what the doctor makes of them."""

from dataclasses import replace

import pytest

from rl.doctor.report import applicable, verdict
from rl.doctor.rules import judge
from rl.doctor.schema import (
    DriverApi,
    Facts,
    KernelDriver,
    Node,
    Nodes,
    Nvml,
    NvmlGpu,
    PciGpu,
    Platform,
    TorchBuild,
    TorchRun,
)

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


def cpu_machine(**changes) -> Facts:
    """No NVIDIA hardware, nothing of the driver, the CPU build of torch; in Docker."""
    machine = Facts(
        platform=Platform(machine="x86_64", kernel="6.8.0-45-generic", engine="docker"),
        nodes=nodes(),
        driver_api=DriverApi(ended="ok", load_error=f"libcuda.so.1: {NO_FILE}"),
        nvml=Nvml(ended="ok", load_error=f"libnvidia-ml.so.1: {NO_FILE}"),
        torch_build=TorchBuild(True, "2.13.0+cpu"),
        torch=TorchRun(ended="ok", version="2.13.0+cpu", available=False, count=0),
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
        environment={"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility,graphics"},
        driver_api=DriverApi(ended="ok", version=13000, init=0, count=gpus),
        nvml=Nvml(
            ended="ok",
            init=0,
            driver_version="580.95.05",
            cuda_version=13000,
            count=gpus,
            gpus=tuple(NvmlGpu(name, f"GPU-{i}", 141 * 2**30) for i in range(gpus)),
        ),
        torch_build=TorchBuild(True, version, cuda),
        torch=TorchRun(
            ended="ok", version=version, cuda=cuda, available=True, count=gpus, current_device=0, names=(name,) * gpus
        ),
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
