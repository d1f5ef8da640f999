"""Facts of the driver: its device nodes, its libraries, and what they answer, each asked in a child process."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Probe:
    """How the child process that asked has ended."""

    ended: str = "not run"  # ok, timeout, signal SIGSEGV, exit 1, not started: reason
    step: str = ""  # the last thing it was about to do
    seconds: float = 0.0
    stuck: bool = False  # SIGKILL did not end it: it waits in the kernel
    stderr: str = ""  # its last 2,000 characters, when it did not end well


@dataclass(frozen=True)
class Node:
    """A device node /dev/nvidia…, and what opening it for reading and writing answers."""

    name: str = ""
    mode: str = ""  # octal, 0666
    group: int | None = None
    major: int | None = None
    opened: str = ""  # ok, or the errno's name: EPERM the device cgroup, EACCES the mode, ENXIO no driver behind it


@dataclass(frozen=True)
class Nodes(Probe):
    """All device nodes found, and who asked."""

    found: tuple[Node, ...] = ()  # /dev/nvidia*, and /dev/nvmap of a Jetson
    render: tuple[Node, ...] = ()  # /dev/dri/renderD*
    uid: int | None = None  # who asked
    groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class DriverApi(Probe):
    """What libcuda.so.1 answers, asked through ctypes: torch hides some of the numbers."""

    load_error: str | None = None  # the loader's own words
    path: str | None = None  # the file that was loaded, links resolved: …/libcuda.so.580.95.05
    version: int | None = None  # newest CUDA it serves: 1000 * major + 10 * minor
    init: int | None = None  # result of cuInit(0)
    init_name: str | None = None
    count: int | None = None
    mps_folder: str | None = None  # where clients meet the MPS daemon, if that folder exists


@dataclass(frozen=True)
class NvmlGpu:
    """One GPU as NVML sees it; None: it does not answer that, which is no fault."""

    error: int | None = None  # NVML's code where the GPU cannot be asked: 15 it is lost, 16 reset required, 999 unknown
    name: str = ""
    uuid: str = ""
    pci: str = ""  # 00000000:01:00.0
    minor: int | None = None  # of /dev/nvidia<minor>
    memory_bytes: int | None = None
    memory_used: int | None = None
    capability: tuple[int, ...] = ()  # (9, 0)
    compute_mode: int | None = None  # 0 default, 2 prohibited, 3 exclusive process
    mig: bool | None = None
    mig_uuids: tuple[str, ...] = ()  # the instances this container was given
    persistence: bool | None = None
    utilization: int | None = None  # %
    temperature: int | None = None  # °C
    power: float | None = None  # W
    clock_reasons: int | None = None  # bits of nvmlDeviceGetCurrentClocksEventReasons
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    remap_pending: bool | None = None  # row remapping, or page retirement, waits for a reset
    remap_failed: bool | None = None
    recovery_action: int | None = None  # 0 none, 1 GPU reset, 2 reboot, 3 drain P2P, 4 drain and reset …
    fabric_state: int | None = None  # 0 not supported, 1 not started, 2 in progress, 3 completed
    virtual: bool | None = None  # a vGPU


@dataclass(frozen=True)
class Nvml(Probe):
    """What libnvidia-ml.so.1 answers, through nvidia-ml-py."""

    load_error: str | None = None
    path: str | None = None  # the file that was loaded, links resolved
    binding_error: str | None = None  # nvidia-ml-py itself cannot be imported
    init: int | None = None  # result of nvmlInit
    init_name: str | None = None
    init_seconds: float | None = None  # of nvmlInit and the first use of each GPU
    driver_version: str | None = None
    cuda_version: int | None = None
    count: int | None = None
    gpus: tuple[NvmlGpu, ...] = ()
    unknown_functions: tuple[str, ...] = ()  # asked by nvidia-ml-py, not in this driver's library


@dataclass(frozen=True)
class Libraries:
    """Which driver libraries the loader could find, and where others lie."""

    libcuda: dict[str, str] = field(default_factory=dict)  # libcuda.so.1, in order of search → file, links resolved
    compat: str | None = None  # the cuda-compat folder of this image: /usr/local/cuda-13.0/compat
    preload: tuple[str, ...] = ()  # LD_PRELOAD and /etc/ld.so.preload
    environment_files: dict[str, str] = field(default_factory=dict)  # ~/.bashrc → the LD_LIBRARY_PATH that it sets
