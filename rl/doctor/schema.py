"""The facts: everything the doctor may know of a machine, as plain data.

Rules see nothing else, so a saved file is judged as the machine itself would be. Every field has a harmless default,
and `decode` drops whatever has the wrong type: a file written by hand, or by a newer doctor, never makes a rule fail.
"""

import re
import types
import typing
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

SCHEMA = 1  # raised when a field changes its meaning; a new field needs no new number


@dataclass(frozen=True)
class Platform:
    """Where this runs: what chooses the command to print."""

    machine: str = ""  # x86_64, aarch64
    kernel: str = ""  # release, as in /proc/version
    engine: str | None = None  # docker, podman, kubernetes, apptainer, container (some other); None: no container
    wsl: bool = False
    dxg: bool = False  # /dev/dxg: the GPU of the Windows host
    tegra: bool = False  # Jetson: no PCI GPU, often no NVML
    amd: bool = False  # /dev/kfd

    @property
    def own_way(self) -> bool:
        """WSL2 and Jetson reach their GPU without PCI, /dev/nvidia0 and the module nvidia: no fault if those lack."""
        return self.wsl or self.dxg or self.tegra


@dataclass(frozen=True)
class KernelDriver:
    """The NVIDIA kernel module; its /proc and /sys entries show the host's, also in a container without `--gpus`."""

    loaded: bool = False
    version: str | None = None  # 580.95.05
    open_module: bool | None = None
    uvm_loaded: bool = False


@dataclass(frozen=True)
class PciGpu:
    """A display controller on the PCI bus, of any maker."""

    address: str = ""
    vendor: str = ""  # 0x10de is NVIDIA
    device: str = ""
    driver: str | None = None  # nvidia, nouveau, vfio-pci …; None: nobody drives it


@dataclass(frozen=True)
class Node:
    """A device node /dev/nvidia…, and what opening it for reading and writing answers."""

    name: str = ""
    mode: str = ""  # octal, 0666
    group: int | None = None
    major: int | None = None
    opened: str = ""  # ok, or the errno's name: EPERM the device cgroup, EACCES the mode, ENXIO no driver behind it


@dataclass(frozen=True)
class Probe:
    """How the child process that asked has ended."""

    ended: str = "not run"  # ok, timeout, signal SIGSEGV, exit 1, not started: reason
    step: str = ""  # the last thing it was about to do
    seconds: float = 0.0
    stuck: bool = False  # SIGKILL did not end it: it waits in the kernel
    stderr: str = ""  # its last 2,000 characters, when it did not end well


@dataclass(frozen=True)
class Nodes(Probe):
    """All device nodes found."""

    found: tuple[Node, ...] = ()


@dataclass(frozen=True)
class DriverApi(Probe):
    """What libcuda.so.1 answers, asked through ctypes: torch hides some of the numbers."""

    load_error: str | None = None  # the loader's own words
    path: str | None = None  # the file that was loaded
    version: int | None = None  # newest CUDA it serves: 1000 * major + 10 * minor
    init: int | None = None  # result of cuInit(0)
    init_name: str | None = None
    count: int | None = None


@dataclass(frozen=True)
class NvmlGpu:
    """One GPU as NVML sees it."""

    name: str = ""
    uuid: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Nvml(Probe):
    """What libnvidia-ml.so.1 answers, through nvidia-ml-py."""

    load_error: str | None = None
    binding_error: str | None = None  # nvidia-ml-py itself cannot be imported
    init: int | None = None  # result of nvmlInit
    init_name: str | None = None
    driver_version: str | None = None
    cuda_version: int | None = None
    count: int | None = None
    gpus: tuple[NvmlGpu, ...] = ()


@dataclass(frozen=True)
class TorchBuild:
    """The torch that is installed, read from its version.py: nothing is imported."""

    installed: bool = False
    version: str | None = None
    cuda: str | None = None  # "13.0"; None: not built for CUDA
    hip: str | None = None


@dataclass(frozen=True)
class TorchRun(Probe):
    """What torch itself says, imported in a child."""

    error: str | None = None
    missing: bool = False  # the error was that there is no torch
    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    arch_flags: str | None = None  # the GPU architectures this build has kernels for
    available: bool | None = None
    count: int | None = None
    current_device: int | None = None
    names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    kernel_error: str | None = None  # a one-line sum on the current device failed


@dataclass(frozen=True)
class Facts:
    """One machine, at one moment."""

    schema: int = SCHEMA
    created: str = ""  # UTC, ISO 8601
    platform: Platform = field(default_factory=Platform)
    kernel_driver: KernelDriver = field(default_factory=KernelDriver)
    pci: tuple[PciGpu, ...] = ()
    nodes: Nodes = field(default_factory=Nodes)
    environment: dict[str, str] = field(default_factory=dict)  # only the names listed in facts.py
    driver_api: DriverApi = field(default_factory=DriverApi)
    nvml: Nvml = field(default_factory=Nvml)
    torch_build: TorchBuild = field(default_factory=TorchBuild)
    torch: TorchRun = field(default_factory=TorchRun)

    @property
    def nvidia_pci(self) -> list[PciGpu]:
        """NVIDIA's GPUs on the bus: those of the host, whichever the container was given."""
        return [gpu for gpu in self.pci if gpu.vendor == "0x10de"]

    @property
    def gpu_nodes(self) -> list[Node]:
        """The nodes that stand for one GPU each: /dev/nvidia0, /dev/nvidia1 …"""
        return [node for node in self.nodes.found if re.fullmatch(r"nvidia\d+", node.name)]

    @property
    def strict(self) -> bool:
        """The user said that a GPU must be there."""
        return self.environment.get("GPU_CHECK") == "strict"

    @property
    def hardware_visible(self) -> bool:
        """Some sign of an NVIDIA GPU; NVIDIA_VISIBLE_DEVICES is none, since CUDA images always set it.

        Device nodes count too: in a sandbox such as gVisor they are the only sign.
        """
        platform = self.platform
        signs = (self.nvidia_pci, self.kernel_driver.loaded, platform.dxg, platform.tegra, self.nodes.found)
        return any(signs) or self.usable

    @property
    def gpu_expected(self) -> bool:
        """Whether a machine without a usable GPU is a failure (exit code 3)."""
        return self.strict or self.hardware_visible

    @property
    def driver_usable(self) -> bool:
        """The driver API is ready and has a GPU."""
        return self.driver_api.init == 0 and (self.driver_api.count or 0) > 0

    @property
    def usable(self) -> bool:
        """A GPU answers: to torch if torch was asked, else to the driver API."""
        return self.torch.available is True or self.driver_usable

    @property
    def torch_cuda(self) -> str | None:
        """The CUDA version torch is built for, from torch itself or, before it is imported, from its file."""
        return self.torch.cuda if self.torch.version else self.torch_build.cuda

    @property
    def torch_version(self) -> str | None:
        """Version of torch, with its build tag."""
        return self.torch.version or self.torch_build.version

    @property
    def driver_version(self) -> str | None:
        """Version of the NVIDIA driver: the kernel's word before NVML's."""
        return self.kernel_driver.version or self.nvml.driver_version

    def lacks_capability(self, word: str) -> bool:
        """NVIDIA_DRIVER_CAPABILITIES is set and leaves `word` (compute, utility) out."""
        given = self.environment.get("NVIDIA_DRIVER_CAPABILITIES")
        return bool(given) and not {word, "all"} & set(str(given).replace(" ", "").split(","))


def decode(kind: Any, data: object) -> Any:  # noqa: ANN401 - the type asked for is only known at run time
    """Read plain JSON `data` as a `kind` of this module; whatever has another type becomes the field's default."""
    values = data if isinstance(data, dict) else {}
    hints = typing.get_type_hints(kind)
    known = {f.name: _convert(hints[f.name], values[f.name]) for f in fields(kind) if f.name in values}
    return kind(**{name: value for name, value in known.items() if value is not _WRONG})


_WRONG = object()


def _convert(hint: Any, value: object) -> object:  # noqa: ANN401
    if is_dataclass(hint):
        return decode(hint, value)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return None if value is None else _convert(arguments[0], value)
    if origin is tuple:
        items = [_convert(arguments[0], item) for item in value] if isinstance(value, list) else []
        return tuple(item for item in items if item is not _WRONG)
    if origin is dict:
        pairs = value.items() if isinstance(value, dict) else ()
        return {k: v for k, v in pairs if isinstance(k, str) and isinstance(v, str)}
    if hint is float and type(value) is int:
        return float(value) if abs(value) < 2**53 else _WRONG
    return value if type(value) is hint else _WRONG
