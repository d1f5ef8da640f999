"""Between the host's driver and the container: NVIDIA's container toolkit, and how the engine was told of it."""

from rl.doctor.rules.driver import major
from rl.doctor.rules.rule import Fix, Found, found, rule
from rl.doctor.schema.host import HostFacts

REPOSITORY = "https://nvidia.github.io/libnvidia-container"
KEYRING = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"
LIST = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"
INSTALL = (
    Fix(
        "host",
        f"curl -fsSL {REPOSITORY}/gpgkey | sudo gpg --dearmor -o {KEYRING} && curl -fsSL"
        f" {REPOSITORY}/stable/deb/nvidia-container-toolkit.list | sed 's#deb https://#deb [signed-by={KEYRING}] https://#'"
        f" | sudo tee {LIST} && sudo apt-get update",
        "once, on Debian and Ubuntu: NVIDIA's repository",
    ),
    Fix("host", "sudo apt-get install -y nvidia-container-toolkit"),
)
CONFIGURE = Fix("host", "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker")
GENERATE = Fix("host", "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml")
NO_DRIVER_FOR_GPU = (
    '`could not select device driver "" with capabilities: [[gpu]]`, `could not select device driver "nvidia" with'
    " capabilities: [[gpu]]`"
)
NO_VENDOR = "`failed to discover GPU vendor from CDI: no known GPU vendor found`"
NO_RUNTIME = "`unknown or invalid runtime name: nvidia`"


def _docker_wants(facts: HostFacts) -> bool:
    """The daemon answers, on this machine, which has a GPU. Docker Desktop brings a toolkit of its own."""
    docker = facts.docker
    return bool(docker.version) and facts.gpu_here and not (docker.elsewhere or docker.desktop)


def _knows_devices(facts: HostFacts) -> bool:
    """Docker 29 gives --gpus by CDI, if its daemon has found NVIDIA's devices."""
    by_cdi = any(device.startswith("nvidia.com/gpu") for device in facts.docker.devices)
    return by_cdi and (major(facts.docker.version) or 0) >= 29


def _told(facts: HostFacts) -> bool:
    """The daemon itself says that it can give GPUs."""
    return "nvidia" in facts.docker.runtimes or _knows_devices(facts)


@rule(
    "docker-desktop-on-linux",
    "fatal",
    cause="Docker Desktop runs containers in a virtual machine, which on Linux has no GPU",
    symptom="`could not select device driver`, and docker context ls marks desktop-linux.",
    fixes=(
        Fix("host", "docker context use default", "where Docker Engine (docker-ce or docker.io) is installed too"),
        Fix("host", "sudo apt-get install -y docker.io docker-compose-v2", "on Ubuntu, where it is not"),
    ),
)
def desktop(facts: HostFacts) -> Found | None:
    """The daemon says Docker Desktop, and this is Linux with an NVIDIA GPU. On Windows, where it uses WSL2, it can give
    the GPU; a Mac has none.
    """
    if not facts.docker.desktop or facts.system != "Linux" or facts.platform.own_way or not facts.gpu_here:
        return None
    return found("`docker info` says: Operating System: Docker Desktop")


@rule(
    "docker-from-snap",
    "fatal",
    cause="this Docker is a snap, which is shut off from the host's driver and toolkit",
    symptom="`could not select device driver`, although NVIDIA's container toolkit is installed and configured.",
    fixes=(
        Fix(
            "host",
            "sudo snap remove docker && sudo apt-get install -y docker.io docker-compose-v2",
            "its images and volumes go with it",
        ),
    ),
)
def from_snap(facts: HostFacts) -> Found | None:
    """The daemon keeps its files under /var/snap; where no daemon answers, the command docker is the snap's. A snap
    that is installed beside the daemon in use does no harm, and neither does one that knows the runtime nvidia.
    """
    if not facts.docker.snap or not facts.gpu_here or _told(facts):
        return None
    return found(f"Docker's folder is {facts.docker.folder or facts.docker.path}")


@rule(
    "toolkit-missing",
    "fatal",
    cause="NVIDIA's container toolkit is not installed, so Docker cannot give the GPU to a container",
    symptom=f"{NO_DRIVER_FOR_GPU}; since Docker 29 {NO_VENDOR}; with --runtime=nvidia {NO_RUNTIME}.",
    fixes=(*INSTALL, CONFIGURE),
)
def toolkit_missing(facts: HostFacts) -> Found | None:
    """A GPU is here, the daemon knows neither the runtime nvidia nor a CDI device, and there is neither nvidia-ctk nor
    nvidia-container-runtime-hook on the PATH.
    """
    if not _docker_wants(facts) or _told(facts) or facts.toolkit.version != "" or facts.toolkit.hook is not False:
        return None
    return found(
        "no nvidia-ctk and no nvidia-container-runtime-hook on the PATH",
        f"the runtimes of this Docker: {' '.join(facts.docker.runtimes) or 'none'}",
    )


@rule(
    "rootless-not-configured",
    "fatal",
    cause="this Docker is rootless, and NVIDIA's container toolkit is not set up for that",
    symptom="`bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted`, `open failed: /sys/fs/cgroup/devices/"
    "<path>/devices.allow: permission denied`; `could not select device driver`, although it works with sudo.",
    fixes=(
        Fix("host", 'nvidia-ctk runtime configure --runtime=docker --config="$HOME/.config/docker/daemon.json"'),
        Fix("host", "systemctl --user restart docker"),
        Fix("host", "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place"),
    ),
)
def rootless(facts: HostFacts) -> Found | None:
    """The daemon is rootless, and does not know the runtime nvidia, or no-cgroups is not set in the toolkit's
    config.toml: a user may not change the device rules of a cgroup. CDI, which Docker 29 uses, needs neither.
    """
    docker, toolkit = facts.docker, facts.toolkit
    if not _docker_wants(facts) or not docker.rootless or not toolkit.version or _knows_devices(facts):
        return None
    evidence = []
    if "nvidia" not in docker.runtimes:
        evidence.append(f"the runtimes of this Docker: {' '.join(docker.runtimes) or 'none'}")
    if toolkit.no_cgroups is False:
        evidence.append("no-cgroups is not set in /etc/nvidia-container-runtime/config.toml")
    return found("`docker info` lists the security option rootless", *evidence) if evidence else None


@rule(
    "toolkit-not-configured",
    "fatal",
    cause="NVIDIA's container toolkit is installed, but the running Docker does not know of it",
    symptom=f"{NO_DRIVER_FOR_GPU}, right after the toolkit was installed; {NO_VENDOR}; {NO_RUNTIME}.",
    fixes=(*INSTALL, CONFIGURE),
)
def not_configured(facts: HostFacts) -> Found | None:
    """The toolkit is here, the daemon knows neither the runtime nvidia nor a CDI device, and its daemon.json names that
    runtime (so it was not restarted), or the hook is newer than the daemon's start, or missing where Docker, before 29,
    has no other way. With a hook that is older, Docker takes --gpus without any configuration.
    """
    docker, toolkit = facts.docker, facts.toolkit
    if not _docker_wants(facts) or _told(facts) or docker.rootless or not (toolkit.version or toolkit.hook):
        return None
    evidence = [f"the runtimes of this Docker: {' '.join(docker.runtimes) or 'none'}"]
    if "nvidia" in docker.config_runtimes:
        evidence.append("its daemon.json names the runtime nvidia: Docker was not restarted since")
    elif toolkit.hook is False and (major(docker.version) or 29) < 29:
        return found(*evidence, "nvidia-ctk is here, nvidia-container-runtime-hook is not")
    elif toolkit.newer_than_docker:
        evidence.append("nvidia-container-runtime-hook was installed after Docker was started")
    return found(*evidence, fixes=(CONFIGURE,)) if len(evidence) > 1 else None


@rule(
    "cdi-devices-missing",
    "fatal",
    cause="Docker gives GPUs by CDI, and no CDI file on this host describes them",
    symptom=f"{NO_VENDOR}, `unresolvable CDI devices nvidia.com/gpu`, `CDI device injection failed`, although"
    " NVIDIA's container toolkit is installed.",
    fixes=(
        Fix(
            "host", "sudo systemctl enable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service", "toolkit 1.18 on"
        ),
        GENERATE,
        Fix("host", "nvidia-ctk cdi list", "shows nvidia.com/gpu=all when it is mended"),
    ),
)
def cdi_missing(facts: HostFacts) -> Found | None:
    """Docker is 29 or newer, the toolkit is here, no file under /etc/cdi or /var/run/cdi names nvidia.com/gpu, and the
    pasted message is this one, or the hook, Docker's other way to a GPU, is missing.
    """
    docker, toolkit = facts.docker, facts.toolkit
    if not _docker_wants(facts) or (major(docker.version) or 0) < 29 or not toolkit.version or toolkit.specs != ():
        return None
    if _knows_devices(facts) or (toolkit.hook is not False and "CDI" not in facts.error):
        return None
    return found(f"Docker is {docker.version}", "no file under /etc/cdi or /var/run/cdi names nvidia.com/gpu")


@rule(
    "podman-cdi-missing",
    "fatal",
    cause="podman gives GPUs by CDI, and no CDI file on this host describes them",
    symptom="`unresolvable CDI devices nvidia.com/gpu=all`, `stat nvidia.com/gpu=all: no such file or directory`;"
    " with --gpus all older ones give nothing, and say nothing.",
    fixes=(
        *(Fix("podman", fix.command, fix.note) for fix in (*INSTALL, GENERATE)),
        Fix("podman", "podman run --device nvidia.com/gpu=all --security-opt=label=disable ...", "not --gpus"),
    ),
)
def podman_cdi_missing(facts: HostFacts) -> Found | None:
    """Podman is the only engine, a GPU is here, and no file under /etc/cdi or /var/run/cdi names nvidia.com/gpu."""
    if not facts.by_podman or not facts.gpu_here or facts.toolkit.specs != ():
        return None
    *install, generate, run = podman_cdi_missing.fixes
    needed = () if facts.toolkit.version else tuple(install)
    evidence = (f"podman is {facts.podman}", "no file under /etc/cdi or /var/run/cdi names nvidia.com/gpu")
    return found(*evidence, fixes=(*needed, generate, run))


@rule(
    "no-cgroups-with-root",
    "fatal",
    cause="the toolkit's no-cgroups is set, which only a rootless engine needs: containers are refused the GPU's nodes",
    symptom="The container starts, and nvidia-smi in it says `Failed to initialize NVML: Unknown Error`.",
    fixes=(
        Fix("host", "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups=false --in-place"),
        Fix("host", "sudo systemctl restart docker"),
    ),
)
def no_cgroups(facts: HostFacts) -> Found | None:
    """no-cgroups is true in the toolkit's config.toml, and the daemon is not rootless. CDI does not read it."""
    if not _docker_wants(facts) or facts.toolkit.no_cgroups is not True or facts.docker.rootless:
        return None
    if _knows_devices(facts):
        return None
    return found("/etc/nvidia-container-runtime/config.toml: no-cgroups = true", "this Docker is not rootless")


@rule(
    "selinux-refuses-gpu",
    "degraded",
    cause="SELinux is enforcing, and does not let containers use the GPU's nodes",
    symptom="The container starts, and nvidia-smi in it says `Failed to initialize NVML: Insufficient Permissions`; the"
    " host's log: `SELinux is preventing`.",
    fixes=(
        Fix("host", "sudo setsebool -P container_use_devices=true", "for all containers"),
        Fix("docker", "docker run --security-opt=label=disable --gpus all ...", "for one container"),
        Fix("podman", "podman run --security-opt=label=disable --device nvidia.com/gpu=all ...", "for one container"),
    ),
)
def selinux(facts: HostFacts) -> Found | None:
    """getenforce says Enforcing, the boolean container_use_devices is off, and the engine labels its containers: podman
    does, Docker where its daemon lists selinux among its security options.
    """
    labels = facts.by_podman or (_docker_wants(facts) and "name=selinux" in facts.docker.security)
    if facts.selinux != "Enforcing" or facts.selinux_devices is not False or not labels or not facts.gpu_here:
        return None
    return found("getenforce: Enforcing", "getsebool container_use_devices: off")


RULES = (
    desktop,
    from_snap,
    toolkit_missing,
    rootless,
    not_configured,
    cdi_missing,
    podman_cdi_missing,
    no_cgroups,
    selinux,
)
