"""The machine and its kernel, from files."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from rl.doctor.facts.files import text_of
from rl.doctor.schema import KernelDriver, PciGpu, Platform


def platform(root: Path, environment: Mapping[str, str]) -> Platform:
    """The kernel, the engine, and how a GPU would be reached."""
    words = text_of(root / "proc/version").split()
    release = words[2] if len(words) > 2 else ""
    tegra_signs = (root / "etc/nv_tegra_release", root / "dev/nvmap", root / "dev/nvhost-ctrl")
    return Platform(
        machine=os.uname().machine,
        kernel=release,
        engine=_engine(root, environment),
        wsl="microsoft" in release.lower(),
        dxg=(root / "dev/dxg").exists(),
        tegra=any(sign.exists() for sign in tegra_signs)
        or "nvidia,tegra" in text_of(root / "proc/device-tree/compatible"),
        amd=(root / "dev/kfd").exists(),
    )


def _engine(root: Path, environment: Mapping[str, str]) -> str | None:
    """The container's engine; Kubernetes first and podman before docker, since each may leave the next one's mark."""
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    for mark, engine in {"run/.containerenv": "podman", ".dockerenv": "docker", ".singularity.d": "apptainer"}.items():
        if (root / mark).exists():
            return engine
    for line in text_of(root / "proc/self/mountinfo").splitlines():
        fields = line.split()
        if len(fields) > 6 and fields[4] == "/" and " - overlay " in line:
            return "container"
    return None


def kernel_driver(root: Path) -> KernelDriver:
    """Read the module's version.

    First line of its file: `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build …`
    """
    lines = text_of(root / "proc/driver/nvidia/version").splitlines()
    line = lines[0] if lines else ""
    versions = [word for word in line.split() if word[:1].isdigit() and "." in word]
    module = root / "sys/module/nvidia"
    return KernelDriver(
        loaded=(root / "proc/driver/nvidia").exists() or module.exists(),
        version=versions[0] if versions else text_of(module / "version").strip() or None,
        open_module="Open Kernel Module" in line if line else None,
        uvm_loaded=(root / "sys/module/nvidia_uvm").exists(),
    )


def pci(root: Path) -> tuple[PciGpu, ...]:
    """The display controllers of the PCI bus."""
    found = []
    bus = root / "sys/bus/pci/devices"
    with contextlib.suppress(OSError):
        for device in sorted(bus.iterdir()):
            if not text_of(device / "class").startswith(("0x0300", "0x0302")):  # VGA, 3D; not a GPU's audio function
                continue
            driver = device / "driver"
            name = driver.resolve().name if driver.exists() else None
            vendor, model = text_of(device / "vendor").strip(), text_of(device / "device").strip()
            found.append(PciGpu(device.name, vendor, model, name))
    return tuple(found)
