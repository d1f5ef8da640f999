"""Hosts that are not here, for the tests of `scripts/preflight`."""

from dataclasses import replace

from machine_facts import JETSON, WSL

from rl.doctor.schema import KernelDriver, PciGpu, Platform
from rl.doctor.schema.host import Docker, HostFacts, HostGpu, Port, Toolkit

DOCKER = Docker(
    path="/usr/bin/docker",
    endpoint="unix:///var/run/docker.sock",
    version="28.2.2",
    system="Ubuntu 24.04.2 LTS",
    folder="/var/lib/docker",
    images="/var/lib/docker",
    runtimes=("io.containerd.runc.v2", "nvidia", "runc"),
    security=("name=apparmor", "name=seccomp,profile=builtin"),
    config_runtimes=("nvidia",),
    image=False,
)
RUNC_ONLY = ("io.containerd.runc.v2", "runc")
TOOLKIT = Toolkit(version="1.17.8", hook=True, no_cgroups=False, specs=())
NO_TOOLKIT = Toolkit(version="", hook=False, specs=())
CDI = ("/var/run/cdi/nvidia.yaml",)
RTX_4090 = HostGpu("NVIDIA GeForce RTX 4090", "580.95.05", (8, 9))
REFUSED = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock"
NOT_RUNNING = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"


def host(**changes) -> HostFacts:
    """Ubuntu with an RTX 4090, driver 580, Docker 28 and NVIDIA's toolkit, all as it should be."""
    facts = HostFacts(
        system="Linux",
        platform=Platform(machine="x86_64", kernel="6.8.0-45-generic"),
        kernel_driver=KernelDriver(loaded=True, version="580.95.05", open_module=True, uvm_loaded=True),
        pci=(PciGpu("0000:01:00.0", "0x10de", "0x2684", "nvidia"),),
        docker=DOCKER,
        podman="",
        compose="2.36.2",
        toolkit=TOOLKIT,
        gpus=(RTX_4090,),
        ports=(Port(8888, "JUPYTER_PORT"), Port(2222, "SSH_PORT")),
        disk_folder="/var/lib/docker",
        disk_free=200 * 10**9,
        user="ada",
        groups=("ada", "docker"),
        groups_listed=("ada", "docker"),
    )
    return replace(facts, **changes)


def with_docker(**changes) -> HostFacts:
    return host(docker=replace(DOCKER, **changes))


def without_daemon(error: str = NOT_RUNNING, **changes) -> HostFacts:
    """Docker's client alone: whatever else only the daemon knows is unknown."""
    return host(docker=Docker(path="/usr/bin/docker", endpoint=DOCKER.endpoint, error=error), **changes)


def cpu_host(**changes) -> HostFacts:
    none = {"kernel_driver": KernelDriver(), "pci": (), "gpus": (), "toolkit": NO_TOOLKIT}
    return host(**{**none, "docker": replace(DOCKER, runtimes=RUNC_ONLY, config_runtimes=())} | changes)


def podman_host(**changes) -> HostFacts:
    mine = {"docker": Docker(path=""), "podman": "5.4.0", "compose": "", "toolkit": replace(TOOLKIT, specs=CDI)}
    return host(**mine | changes)


HEALTHY = {
    "Docker": host(),
    "Docker 29, by CDI alone": host(
        docker=replace(DOCKER, version="29.1.0", runtimes=RUNC_ONLY, devices=("nvidia.com/gpu=all",)),
        toolkit=replace(TOOLKIT, hook=False, specs=CDI),
    ),
    "Docker 26 with the hook only": host(docker=replace(DOCKER, runtimes=RUNC_ONLY, config_runtimes=())),
    "rootless Docker": host(
        docker=replace(DOCKER, security=("name=rootless",), endpoint="unix:///run/user/1000/docker.sock"),
        toolkit=replace(TOOLKIT, no_cgroups=True),
    ),
    "podman": podman_host(),
    "podman with SELinux and its boolean": podman_host(selinux="Enforcing", selinux_devices=True),
    "Docker that does not label, under SELinux": host(selinux="Enforcing", selinux_devices=False),
    "Docker Desktop in WSL2": host(
        platform=WSL, kernel_driver=KernelDriver(), pci=(), docker=replace(DOCKER, system="Docker Desktop"),
        toolkit=NO_TOOLKIT,
    ),
    "Jetson": host(platform=JETSON, kernel_driver=KernelDriver(), pci=(), gpus=(), compose="2.29.1"),
    "two GPUs, of which one is old": host(gpus=(RTX_4090, HostGpu("NVIDIA GeForce GTX 1080", "580.95.05", (6, 1)))),
    "an old nvidia-smi": host(gpus=(HostGpu("NVIDIA GeForce RTX 4090", "580.95.05"),)),
    "a newer driver": host(
        gpus=(HostGpu("NVIDIA RTX 6000", "610.43.02", (12, 0)),),
        kernel_driver=KernelDriver(loaded=True, version="610.43.02", open_module=True),
    ),
    "a little disk, with the image here": host(docker=replace(DOCKER, image=True), disk_free=10**9),
}  # fmt: skip
