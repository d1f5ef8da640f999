"""The facts: everything the doctor may know of a machine, as plain data.

Rules see nothing else, so a saved file is judged as the machine itself would be. Every field has a harmless default,
and `decode` drops whatever has the wrong type: a file written by hand, or by a newer doctor, never makes a rule fail.
"""

import re
from dataclasses import dataclass, field

from rl.doctor.schema.decode import decode
from rl.doctor.schema.driver import DriverApi, Libraries, Node, Nodes, Nvml, NvmlGpu, Probe
from rl.doctor.schema.full import AllReduce, Full, Rendering, Work
from rl.doctor.schema.machine import GpuProcess, KernelDriver, Limits, PciGpu, Platform
from rl.doctor.schema.software import Kernel, Tools, TorchBuild, TorchGpu, TorchRun

__all__ = [
    "SCHEMA",
    "AllReduce",
    "DriverApi",
    "Facts",
    "Full",
    "GpuProcess",
    "Kernel",
    "KernelDriver",
    "Libraries",
    "Limits",
    "Node",
    "Nodes",
    "Nvml",
    "NvmlGpu",
    "PciGpu",
    "Platform",
    "Probe",
    "Rendering",
    "Tools",
    "TorchBuild",
    "TorchGpu",
    "TorchRun",
    "Work",
    "decode",
]

SCHEMA = 1  # raised when a field changes its meaning; a new field needs no new number


@dataclass(frozen=True)
class Facts:
    """One machine, at one moment."""

    schema: int = SCHEMA
    created: str = ""  # UTC, ISO 8601
    platform: Platform = field(default_factory=Platform)
    kernel_driver: KernelDriver = field(default_factory=KernelDriver)
    pci: tuple[PciGpu, ...] = ()
    limits: Limits = field(default_factory=Limits)
    processes: tuple[GpuProcess, ...] = ()  # that hold a GPU's node, the doctor's own left out
    environment: dict[str, str] = field(default_factory=dict)  # only the names listed in facts/session.py
    init_environment: dict[str, str] = field(default_factory=dict)  # the same names, of process 1; {}: not readable
    ssh: bool = False  # asked in an SSH session
    worked: str | None = None  # when a GPU last worked in this container, UTC, ISO 8601
    nodes: Nodes = field(default_factory=Nodes)
    libraries: Libraries = field(default_factory=Libraries)
    driver_api: DriverApi = field(default_factory=DriverApi)
    driver_api_alone: DriverApi = field(default_factory=DriverApi)  # again without LD_LIBRARY_PATH, where it failed
    nvml: Nvml = field(default_factory=Nvml)
    torch_build: TorchBuild = field(default_factory=TorchBuild)
    torch: TorchRun = field(default_factory=TorchRun)
    torch_alone: TorchRun = field(default_factory=TorchRun)  # again without LD_LIBRARY_PATH, where it failed
    tools: Tools = field(default_factory=Tools)
    kernels: tuple[Kernel, ...] = ()
    full: Full = field(default_factory=Full)

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

    @property
    def library_version(self) -> str | None:
        """Version of the driver's libraries, from the file that was loaded; cuda-compat's may be another one."""
        loaded = (self.nvml.path or "", self.driver_api.path or "")
        found = [re.search(r"\.so\.([0-9]{3}(\.[0-9]{1,4})+)$", path) for path in loaded if "compat" not in path]
        return next((match[1] for match in found if match), None)

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """Names of the GPUs, from torch or else NVML."""
        return self.torch.names or tuple(gpu.name for gpu in self.nvml.gpus if gpu.name)

    def lacks_capability(self, word: str) -> bool:
        """NVIDIA_DRIVER_CAPABILITIES is set and leaves `word` (compute, utility, graphics) out."""
        given = self.environment.get("NVIDIA_DRIVER_CAPABILITIES")
        return bool(given) and not {word, "all"} & set(str(given).replace(" ", "").split(","))
