"""Facts of the machine and its kernel: what files under /proc, /sys, /dev and /etc say."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Platform:
    """Where this runs: what chooses the command to print."""

    machine: str = ""  # x86_64, aarch64
    kernel: str = ""  # release, as in /proc/version
    engine: str | None = None  # docker, podman, kubernetes, apptainer, lxc, container (some other); None: no container
    wsl: bool = False
    dxg: bool = False  # /dev/dxg: the GPU of the Windows host
    tegra: bool = False  # Jetson: no PCI GPU, often no NVML
    amd: bool = False  # /dev/kfd
    rootless: bool = False  # a user namespace: root in here is not root on the host
    selinux: str = ""  # label of this process, container_t in a confined container; "" without SELinux
    slept: float = 0.0  # seconds the machine was suspended since it booted
    cpus: float | None = None  # cores this container may use
    wsl_libraries: bool | None = None  # the folders of Windows's driver, /usr/lib/wsl/lib and drivers

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
    majors: dict[str, int] = field(default_factory=dict)  # /proc/devices: nvidia, nvidia-uvm, nvidia-caps → number


@dataclass(frozen=True)
class PciGpu:
    """A display controller on the PCI bus, of any maker."""

    address: str = ""  # 0000:01:00.0
    vendor: str = ""  # 0x10de is NVIDIA
    device: str = ""  # 0x2684
    driver: str | None = None  # nvidia, nouveau, vfio-pci …; None: nobody drives it


@dataclass(frozen=True)
class Limits:
    """What this container may use."""

    shm_total: int | None = None  # bytes of /dev/shm
    shm_free: int | None = None
    shm_stale: tuple[str, ...] = ()  # files there that NCCL or torch left behind
    memlock: int | None = None  # bytes; None: no limit
    open_files: int | None = None
    processes: int | None = None  # RLIMIT_NPROC; None: no limit
    pids_max: int | None = None  # of the cgroup; None: no limit
    pids_current: int | None = None
    memory: int | None = None  # bytes of the cgroup; None: no limit
    out_of_memory_kills: int = 0  # since the container started
    infiniband: bool = False  # /dev/infiniband
    iommu: bool = False  # /sys/kernel/iommu_groups is not empty


@dataclass(frozen=True)
class GpuProcess:
    """A process in this process namespace that holds a GPU's node open."""

    pid: int = 0
    name: str = ""
    state: str = ""  # R, S, D, T stopped, Z zombie
    parent: int = 0  # 1: an orphan
    seconds: float = 0.0  # age
