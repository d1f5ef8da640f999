"""Facts of the host before the first container: what `scripts/preflight` may know, which no container can see."""

from dataclasses import dataclass, field

from rl.doctor.schema.machine import KernelDriver, PciGpu, Platform


@dataclass(frozen=True)
class Docker:
    """Docker, as its client and its daemon describe it."""

    path: str | None = None  # of the command, links resolved; "" where there is none; None: not looked for
    endpoint: str = ""  # where the client looks for the daemon: unix:///var/run/docker.sock
    error: str = ""  # why the daemon does not answer
    version: str = ""  # of the daemon, "" unless it answered
    system: str = ""  # that the daemon runs on: Ubuntu 24.04.2 LTS, Docker Desktop
    folder: str = ""  # where it keeps its files: /var/lib/docker
    images: str = ""  # where it keeps images: in that folder, or in containerd's
    runtimes: tuple[str, ...] = ()  # runc, nvidia
    security: tuple[str, ...] = ()  # name=rootless, name=selinux, name=seccomp,profile=builtin
    devices: tuple[str, ...] = ()  # of CDI, known to the daemon: nvidia.com/gpu=all
    config_error: str = ""  # its daemon.json is no JSON
    config_runtimes: tuple[str, ...] = ()  # named in its daemon.json
    image: bool | None = None  # the current image is here already

    @property
    def elsewhere(self) -> bool:
        """The daemon runs on another machine."""
        return bool(self.endpoint) and not self.endpoint.startswith(("unix:", "npipe:"))

    @property
    def desktop(self) -> bool:
        """Docker Desktop, whose containers run in a virtual machine."""
        return self.system == "Docker Desktop"

    @property
    def rootless(self) -> bool:
        """The daemon runs as the user, in a user namespace."""
        return "name=rootless" in self.security

    @property
    def snap(self) -> bool:
        """The daemon that answers is the snap's; where none answers, the client is."""
        return (self.folder or self.path or "").startswith(("/var/snap/", "/snap/"))


@dataclass(frozen=True)
class Toolkit:
    """NVIDIA's container toolkit."""

    version: str | None = None  # of nvidia-ctk, "" where there is none; None: not looked for
    hook: bool | None = None  # nvidia-container-runtime-hook is on the PATH: what makes docker take --gpus
    newer_than_docker: bool = False  # that hook was installed after the docker daemon had started
    no_cgroups: bool | None = None  # of /etc/nvidia-container-runtime/config.toml
    specs: tuple[str, ...] | None = None  # CDI files that name nvidia.com/gpu; None: not looked for


@dataclass(frozen=True)
class HostGpu:
    """One GPU as the host's nvidia-smi lists it."""

    name: str = ""
    driver: str = ""  # 580.95.05
    capability: tuple[int, ...] = ()  # (8, 9)


@dataclass(frozen=True)
class Port:
    """A port that the workbench publishes."""

    number: int = 0
    variable: str = ""  # that chooses another one for `make up`
    asked: bool = False  # that variable is set
    taken: bool = False


@dataclass(frozen=True)
class HostFacts:
    """One host, at one moment."""

    system: str = ""  # Linux, Darwin; "": nothing was looked at
    platform: Platform = field(default_factory=Platform)
    kernel_driver: KernelDriver = field(default_factory=KernelDriver)
    pci: tuple[PciGpu, ...] = ()
    docker: Docker = field(default_factory=Docker)
    podman: str | None = None  # its version, "" where there is none; None: not looked for
    compose: str | None = None  # version of docker's plugin, "" where there is none; None: not looked for
    toolkit: Toolkit = field(default_factory=Toolkit)
    gpus: tuple[HostGpu, ...] = ()
    smi_error: str = ""  # what nvidia-smi says where it fails, or has not ended
    ports: tuple[Port, ...] = ()
    disk_folder: str = ""  # where images are kept
    disk_free: int | None = None  # bytes
    selinux: str = ""  # of getenforce: Enforcing
    selinux_devices: bool | None = None  # its boolean container_use_devices
    user: str = ""
    groups: tuple[str, ...] = ()  # of this session
    groups_listed: tuple[str, ...] = ()  # of the user, in the next session
    error: str = ""  # the message that the user has pasted

    @property
    def gpu_here(self) -> bool:
        """Some sign of an NVIDIA GPU."""
        nvidia = any(gpu.vendor == "0x10de" for gpu in self.pci)
        return nvidia or self.kernel_driver.loaded or self.platform.own_way or bool(self.gpus)

    @property
    def driver(self) -> str:
        """Version of the NVIDIA driver, nvidia-smi's word first: in WSL2 the kernel has none."""
        return next((gpu.driver for gpu in self.gpus if gpu.driver), self.kernel_driver.version or "")

    @property
    def by_podman(self) -> bool:
        """Podman is the only engine here."""
        return self.docker.path == "" and bool(self.podman)
