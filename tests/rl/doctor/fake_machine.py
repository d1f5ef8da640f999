"""Machines that are not here, for the doctor's tests: as a tree of files, as libraries, as a package torch."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parents[3]
VERSION_LINE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs@host)\n"


def make_root(
    root: Path,
    *,
    kernel_module: bool = False,
    pci_driver: str | None = None,
    pci: bool = False,
    device_nodes: tuple[str, ...] = (),
    engine: str | None = "docker",
    kernel: str = "6.8.0-45-generic",
) -> Path:
    """Build the /proc, /sys, /dev and marks that such a machine shows."""
    for folder in ("proc/self", "sys/bus/pci/devices", "sys/bus/pci/drivers", "sys/module", "dev", "run", "etc"):
        (root / folder).mkdir(parents=True)
    (root / "proc/version").write_text(f"Linux version {kernel} (builder@host) (gcc) #1 SMP\n")
    if kernel_module:
        (root / "proc/driver/nvidia").mkdir(parents=True)
        (root / "proc/driver/nvidia/version").write_text(VERSION_LINE)
        (root / "sys/module/nvidia_uvm").mkdir()
    if pci or pci_driver:
        device = root / "sys/bus/pci/devices/0000:01:00.0"
        device.mkdir()
        for name, text in {"vendor": "0x10de", "device": "0x2684", "class": "0x030000"}.items():
            (device / name).write_text(text + "\n")
        if pci_driver:
            (root / "sys/bus/pci/drivers" / pci_driver).mkdir()
            (device / "driver").symlink_to(root / "sys/bus/pci/drivers" / pci_driver)
    for name in device_nodes:
        (root / "dev" / name).touch()
    marks = {"docker": ".dockerenv", "podman": "run/.containerenv", "apptainer": ".singularity.d"}
    if engine in marks:
        (root / marks[engine]).touch()
    return root


def build_stubs(folder: Path) -> Path:
    """Compile the stub driver libraries into `folder`, for LD_LIBRARY_PATH."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "these tests need a C compiler: apt-get install gcc"
    for library, source in {"libcuda.so.1": "libcuda.c", "libnvidia-ml.so.1": "libnvidia_ml.c"}.items():
        path = REPO / "tests/stubs" / source
        flags = ["-Wall", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{library}"]
        subprocess.run([compiler, *flags, "-o", folder / library, path], check=True)
    return folder


TORCH = """
import types
from . import version
__version__ = version.__version__
_C = types.SimpleNamespace(_cuda_getArchFlags=lambda: "sm_80 sm_90")

class Numbers:
    def __add__(self, other): return self
    def sum(self): return {total}

def ones(count, device): return Numbers()

def properties(index):
    return types.SimpleNamespace(name="NVIDIA H200", uuid=f"0000-{{index}}", major=9, minor=0)

cuda = types.SimpleNamespace(
    is_available=lambda: {available}, device_count=lambda: {count}, current_device=lambda: 0,
    get_device_name=lambda index: "NVIDIA H200", get_device_properties=properties,
)
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(version=lambda: 92000))
{after}
"""


def fake_torch(
    folder: Path, *, cuda: str | None = "13.0", gpus: int = 0, total: str = "4.0", body: str = "", after: str = ""
) -> Path:
    """A package `torch` for PYTHONPATH; `body` runs first when it is imported, `after` last."""
    package = folder / "torch"
    package.mkdir(parents=True)
    (package / "version.py").write_text(
        f"__version__ = '2.13.0'\ncuda: str | None = {cuda!r}\nhip: str | None = None\n"
    )
    code = TORCH.format(available=gpus > 0, count=gpus, total=total, after=after)
    (package / "__init__.py").write_text(f"{body}\n{code}")
    return folder


def clean_environment(**variables: object) -> dict[str, str]:
    """This process's environment without what the doctor reads of it, and `variables` on top."""
    dropped = ("NVIDIA", "CUDA", "LD_", "GPU_CHECK", "KUBERNETES", "PYTHONPATH", "STUB_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    python_path = os.pathsep.join(str(part) for part in (variables.pop("python_path", ""), REPO) if part)
    return kept | {"PYTHONPATH": python_path} | {name: str(value) for name, value in variables.items()}


COMMAND = "import sys, pathlib, rl.doctor as d; sys.exit(d.main(sys.argv[2:], root=pathlib.Path(sys.argv[1])))"


def doctor(root: Path, *arguments: object, **variables: object) -> subprocess.CompletedProcess[str]:
    """Run `rl doctor` in its own process on the machine under `root`."""
    command = [sys.executable, "-c", COMMAND, str(root), *map(str, arguments)]
    environment = clean_environment(**variables)
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
