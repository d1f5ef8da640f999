"""Gathers the facts: files are read here, everything that touches the driver or torch runs in a child.

`root` is the tree whose /proc, /sys, /dev, /etc and /run are read, "/" but for tests.
"""

import ast
import contextlib
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.machinery import PathFinder
from pathlib import Path

from rl.doctor.child import Child
from rl.doctor.schema import (
    DriverApi,
    Facts,
    KernelDriver,
    Nodes,
    Nvml,
    PciGpu,
    Platform,
    TorchBuild,
    TorchRun,
    decode,
)

# A whole list, because facts are attached to public bug reports: what is not named here is not read.
VARIABLES = (
    "CUDA_DEVICE_ORDER",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_VERSION",
    "CUDA_VISIBLE_DEVICES",
    "GPU_CHECK",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MUJOCO_GL",
    "NVIDIA_DISABLE_REQUIRE",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
)
# A driver without persistence takes seconds per GPU for its first call: 30 s are no hang yet.
DRIVER_LIMIT = 30.0  # seconds
TORCH_LIMIT = 90.0  # seconds; its first import from a cold network disk takes a minute


def gather(
    root: Path = Path("/"),
    *,
    with_torch: bool = True,
    driver_limit: float = DRIVER_LIMIT,
    torch_limit: float = TORCH_LIMIT,
    environment: Mapping[str, str] = os.environ,
) -> Facts:
    """All facts of this machine; never raises for what is missing or broken, and returns within the limits."""
    children = {
        "nodes": Child("nodes", str(root), limit=driver_limit),
        "driver_api": Child("driver_api", limit=driver_limit),
        "nvml": Child("nvml", limit=driver_limit),
    }
    if with_torch:
        children["torch"] = Child("torch", limit=torch_limit)
    try:
        platform, kernel_driver, pci = _platform(root, environment), _kernel_driver(root), _pci(root)
        torch_build = _torch_build()
        said = {name: child.collect() for name, child in children.items()}
    finally:
        for child in children.values():
            child.kill()
    return Facts(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        platform=platform,
        kernel_driver=kernel_driver,
        pci=pci,
        nodes=decode(Nodes, said["nodes"]),
        environment={name: environment[name] for name in VARIABLES if name in environment},
        driver_api=decode(DriverApi, said["driver_api"]),
        nvml=decode(Nvml, said["nvml"]),
        torch_build=torch_build,
        torch=decode(TorchRun, said.get("torch")),
    )


def _platform(root: Path, environment: Mapping[str, str]) -> Platform:
    words = _text(root / "proc/version").split()
    release = words[2] if len(words) > 2 else ""
    tegra_signs = (root / "etc/nv_tegra_release", root / "dev/nvmap", root / "dev/nvhost-ctrl")
    return Platform(
        machine=os.uname().machine,
        kernel=release,
        engine=_engine(root, environment),
        wsl="microsoft" in release.lower(),
        dxg=(root / "dev/dxg").exists(),
        tegra=any(sign.exists() for sign in tegra_signs)
        or "nvidia,tegra" in _text(root / "proc/device-tree/compatible"),
        amd=(root / "dev/kfd").exists(),
    )


def _engine(root: Path, environment: Mapping[str, str]) -> str | None:
    """The container's engine; Kubernetes first and podman before docker, since each may leave the next one's mark."""
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    for mark, engine in {"run/.containerenv": "podman", ".dockerenv": "docker", ".singularity.d": "apptainer"}.items():
        if (root / mark).exists():
            return engine
    for line in _text(root / "proc/self/mountinfo").splitlines():
        fields = line.split()
        if len(fields) > 6 and fields[4] == "/" and " - overlay " in line:
            return "container"
    return None


def _kernel_driver(root: Path) -> KernelDriver:
    """Read the module's version.

    First line of its file: `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build …`
    """
    lines = _text(root / "proc/driver/nvidia/version").splitlines()
    line = lines[0] if lines else ""
    versions = [word for word in line.split() if word[:1].isdigit() and "." in word]
    module = root / "sys/module/nvidia"
    return KernelDriver(
        loaded=(root / "proc/driver/nvidia").exists() or module.exists(),
        version=versions[0] if versions else _text(module / "version").strip() or None,
        open_module="Open Kernel Module" in line if line else None,
        uvm_loaded=(root / "sys/module/nvidia_uvm").exists(),
    )


def _pci(root: Path) -> tuple[PciGpu, ...]:
    found = []
    bus = root / "sys/bus/pci/devices"
    with contextlib.suppress(OSError):
        for device in sorted(bus.iterdir()):
            if not _text(device / "class").startswith(("0x0300", "0x0302")):  # VGA, 3D; not a GPU's audio function
                continue
            driver = device / "driver"
            name = driver.resolve().name if driver.exists() else None
            vendor, model = _text(device / "vendor").strip(), _text(device / "device").strip()
            found.append(PciGpu(device.name, vendor, model, name))
    return tuple(found)


def _torch_build() -> TorchBuild:
    """Version and CUDA of the installed torch, from the assignments in its version.py."""
    spec = PathFinder.find_spec("torch")
    if spec is None or not spec.origin:
        return TorchBuild()
    values: dict[str, object] = {"installed": True}
    try:
        tree = ast.parse(_text(Path(spec.origin).with_name("version.py")))
    except (SyntaxError, ValueError):  # a torn install
        return TorchBuild(installed=True)
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id.replace("__version__", "version")] = value.value
    build: TorchBuild = decode(TorchBuild, values)
    return build


def _text(path: Path) -> str:
    """The file's text, or nothing: any of these files may be absent, hidden or masked."""
    try:
        return path.read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""
