"""A driver that is reached and refuses, in a state that only the host can mend: upgraded, suspended, blocked."""

import re

from rl.doctor.rules.rule import Fix, Found, found, rule
from rl.doctor.schema import Facts

MISMATCH = 18  # of NVML: Driver/library version mismatch
SAID = "Failed to initialize NVML: Driver/library version mismatch; CUDA error 803"
REBOOT = Fix("host", "sudo reboot")
ANEW = (
    Fix("docker", "docker rm -f <container> && docker run --gpus all ..."),
    Fix("compose", "docker compose up -d --force-recreate"),
    Fix("podman", "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", "on the host; then a new container"),
    Fix("kubernetes", "kubectl delete pod <pod>", "if something makes it anew"),
)


def _versions(facts: Facts) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Those of the libraries and of the kernel module where they do not fit, () for what is not known.

    NVML says so itself. cuInit's 803 does too, where no NVML was given; where NVML works, it is another libcuda.so.
    """
    if facts.usable:
        return None
    library, module = (_numbers(version) for version in (facts.library_version, facts.kernel_driver.version))
    other = facts.driver_api.init == 803 and facts.nvml.init != 0 and library and module and library != module
    return (library, module) if facts.nvml.init == MISMATCH or other else None


def _numbers(version: str | None) -> tuple[int, ...]:
    known = re.fullmatch(r"[0-9]{3}(\.[0-9]{1,4})+", version or "")
    return tuple(map(int, known[0].split("."))) if known else ()


def _told(facts: Facts) -> tuple[str, ...]:
    nvml, api = facts.nvml, facts.driver_api
    codes = [f"nvmlInit gives {nvml.init} ({nvml.init_name})"] if nvml.init == MISMATCH else []
    codes += [f"cuInit gives {api.init} ({api.init_name})"] if api.init else []
    library, module = facts.library_version or "unknown", facts.kernel_driver.version or "unknown"
    return (*codes, f"version of the libraries: {library}; of the kernel module: {module}")


@rule(
    "host-needs-reboot",
    "fatal",
    cause="the host's NVIDIA driver was upgraded and its kernel module is still the old one: reboot the host",
    symptom=f"{SAID}; after unattended-upgrades or apt upgrade on the host.",
    fixes=(
        REBOOT,
        Fix("host", "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia", "or, if unused"),
    ),
)
def needs_reboot(facts: Facts) -> Found | None:
    """NVML gives 18 (or cuInit 803), and the file that was loaded as its library has a newer version than the module in
    /proc/driver/nvidia/version. Full versions are compared.
    """
    versions = _versions(facts)
    return found(*_told(facts)) if versions and all(versions) and versions[0] > versions[1] else None


@rule(
    "container-older-than-driver",
    "fatal",
    cause="this container still has the libraries of the driver that the host had before its upgrade: make it anew",
    symptom=f"{SAID}; on the host nvidia-smi works.",
    fixes=ANEW,
)
def older_than_driver(facts: Facts) -> Found | None:
    """NVML gives 18 (or cuInit 803), in a container, and the file that was loaded as its library has an older version
    than the module in /proc/driver/nvidia/version.
    """
    versions = _versions(facts)
    older = versions and all(versions) and versions[0] < versions[1]
    return found(*_told(facts)) if older and facts.platform.engine else None


@rule(
    "driver-version-mismatch",
    "fatal",
    cause="the driver's libraries and its kernel module are of different versions",
    symptom=f"{SAID}.",
    fixes=(REBOOT, *ANEW, Fix("host", "sudo apt-get install --reinstall -y nvidia-driver-<branch>", "if that fails")),
)
def version_mismatch(facts: Facts) -> Found | None:
    """NVML gives 18, and which of the two is newer is not known, or there is no container that could be the older."""
    versions = _versions(facts)
    if not versions:
        return None
    branch = versions[1][0] if versions[1] else "<branch>"
    reboot, *anew, reinstall = version_mismatch.fixes
    fixes = (reboot, *anew) if facts.platform.engine else (reboot, reinstall)
    return found(*_told(facts), fixes=fixes, branch=branch)


@rule(
    "cuda-lost-in-suspend",
    "fatal",
    cause="CUDA was lost when the host was suspended: it must load the kernel module nvidia_uvm again",
    symptom="CUDA unknown error (999) after suspend and resume; nvidia-smi works.",
    fixes=(
        Fix("host", "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm", "with this container stopped; then start it"),
        Fix(
            "host",
            "echo options nvidia NVreg_PreserveVideoMemoryAllocations=1 | sudo tee /etc/modprobe.d/nvidia-suspend.conf"
            " && sudo systemctl enable nvidia-suspend nvidia-resume",
            "so that it does not happen again",
        ),
    ),
)
def lost_in_suspend(facts: Facts) -> Found | None:
    """cuInit gives 999 while NVML works and all nodes open, and the machine has been suspended since it booted: the
    kernel's clock that counts suspension is more than five seconds ahead of the one that does not.
    """
    nodes = facts.nodes.found
    needed = {"nvidiactl", "nvidia-uvm"} <= {node.name for node in nodes} and bool(facts.gpu_nodes)
    if not needed or any(node.opened != "ok" for node in nodes) or facts.nvml.init != 0 or facts.usable:
        return None
    slept = facts.platform.slept
    if facts.driver_api.init != 999 or not slept > 5:
        return None
    return found("cuInit gives 999, NVML works, all nodes open", f"the machine was suspended for {slept:.0f} s in all")


@rule(
    "wsl-gpu-blocked",
    "fatal",
    cause="Windows blocks the GPU for WSL",
    symptom="Failed to initialize NVML: GPU access blocked by the operating system.",
    fixes=(
        Fix("wsl", "wsl --update && wsl --shutdown", "in Windows, beside a recent NVIDIA driver for Windows"),
        Fix("wsl", "nvidia-smi -g 0 -dm 0", "in Windows as administrator, if it says TCC: WSL needs WDDM; then reboot"),
        Fix(
            "wsl",
            "sudo apt-get install -y --only-upgrade nvidia-container-toolkit && sudo systemctl restart docker",
            "in the WSL distribution, if nvidia-smi works there; never install a Linux driver in it",
        ),
    ),
)
def wsl_blocked(facts: Facts) -> Found | None:
    """/dev/dxg is there, NVML gives 17, and no GPU is usable."""
    nvml = facts.nvml
    if not facts.platform.dxg or nvml.init != 17 or facts.usable:
        return None
    absent = facts.platform.wsl_libraries is False
    libraries = ["/usr/lib/wsl/lib or /usr/lib/wsl/drivers is missing in here"] if absent else []
    return found(f"nvmlInit gives 17 ({nvml.init_name})", *libraries)


RULES = (needs_reboot, older_than_driver, version_mismatch, lost_in_suspend, wsl_blocked)
