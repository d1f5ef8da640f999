"""The machine and its kernel, from files."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
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
        rootless=_rootless(root),
        selinux=_selinux(root),
        slept=slept(root),
        cpus=_cpus(root),
        wsl_libraries=all((root / "usr/lib/wsl" / name).is_dir() for name in ("lib", "drivers")),
    )


def slept(root: Path, clock: Callable[[int], float] = time.clock_gettime) -> float:
    """Seconds this machine was suspended: one of the kernel's clocks stands still then. Another tree has no clocks."""
    if root != Path("/"):
        return 0.0
    return max(0.0, round(clock(time.CLOCK_BOOTTIME) - clock(time.CLOCK_MONOTONIC), 1))


def _rootless(root: Path) -> bool:
    """Whether users have other numbers than on the host, where /proc/self/uid_map maps all onto themselves."""
    words = text_of(root / "proc/self/uid_map").split()
    return bool(words) and words != ["0", "0", "4294967295"]


def _selinux(root: Path) -> str:
    """user:role:type:level; AppArmor answers in the same file, in another form."""
    label = text_of(root / "proc/self/attr/current").strip()
    return label if label.count(":") > 2 else ""


def _cpus(root: Path) -> float:
    """Cores: those this process may be put on, or less time than they have, by the limit of the cgroup (v2 or v1)."""
    cores = float(len(os.sched_getaffinity(0)))
    cgroup = root / "sys/fs/cgroup"
    names = [text_of(cgroup / f"cpu/cpu.cfs_{part}_us") for part in ("quota", "period")]
    words = text_of(cgroup / "cpu.max").split() or " ".join(names).split()
    quota, period = words if len(words) == 2 else ("max", "100000")
    limited = quota.isdecimal() and period.isdecimal() and float(period) > 0
    return min(cores, float(quota) / float(period)) if limited else cores


def _engine(root: Path, environment: Mapping[str, str]) -> str | None:
    """The container's engine; Kubernetes first and podman before docker, since each may leave the next one's mark.

    LXC runs a whole system, so it comes last: an engine inside it is nearer.
    """
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    for mark, engine in {"run/.containerenv": "podman", ".dockerenv": "docker", ".singularity.d": "apptainer"}.items():
        if (root / mark).exists():
            return engine
    init = text_of(root / "proc/1/environ").split()  # systemd copies its word to a file that everybody may read
    if "container=lxc" in init or text_of(root / "run/systemd/container").strip() == "lxc":
        return "lxc"
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
        majors=_majors(root),
    )


def _majors(root: Path) -> dict[str, int]:
    """The numbers of NVIDIA's character devices: `195 nvidia` (once: nvidia-frontend), `508 nvidia-uvm`."""
    lines = text_of(root / "proc/devices").partition("Block devices:")[0].splitlines()
    pairs = [line.split() for line in lines if "nvidia" in line]
    return {pair[1]: int(pair[0]) for pair in pairs if len(pair) == 2 and pair[0].isdecimal() and len(pair[0]) < 6}


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
