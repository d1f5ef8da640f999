"""Nodes that are missing, or that cannot be opened."""

from rl.doctor.rules.rule import Fix, Found, found, rule
from rl.doctor.schema import Facts


def _lacks_uvm(facts: Facts) -> tuple[str, ...] | None:
    names = {node.name for node in facts.nodes.found if node.opened == "ok"}
    if "nvidiactl" not in names or any(node.name == "nvidia-uvm" for node in facts.nodes.found):
        return None
    if facts.platform.own_way or facts.driver_api.init in (None, 0):
        return None
    return (
        "/dev/nvidiactl opens, /dev/nvidia-uvm does not exist",
        f"cuInit gives {facts.driver_api.init} ({facts.driver_api.init_name})",
    )


@rule(
    "uvm-missing",
    "fatal",
    cause="/dev/nvidia-uvm was not passed to this container, and CUDA needs it",
    symptom="nvidia-smi works, `torch.cuda.is_available()` is False: CUDA unknown error (999).",
    fixes=(
        Fix("docker", "docker run --device /dev/nvidia-uvm --device /dev/nvidia-uvm-tools ..."),
        Fix("podman", "podman run --device /dev/nvidia-uvm --device /dev/nvidia-uvm-tools ..."),
    ),
)
def uvm_missing(facts: Facts) -> Found | None:
    """/dev/nvidiactl opens, /dev/nvidia-uvm is not there, cuInit fails, and the host has nvidia_uvm loaded."""
    evidence = _lacks_uvm(facts)
    return found(*evidence) if evidence and facts.kernel_driver.uvm_loaded else None


@rule(
    "uvm-not-loaded",
    "fatal",
    cause="the kernel module nvidia_uvm is not loaded on the host, and CUDA needs it",
    symptom="nvidia-smi works, `torch.cuda.is_available()` is False: CUDA unknown error (999), often after a boot.",
    fixes=(Fix("host", "sudo nvidia-modprobe -u -c=0", "then start a new container"),),
)
def uvm_not_loaded(facts: Facts) -> Found | None:
    """/dev/nvidiactl opens, /dev/nvidia-uvm is not there, cuInit fails, and /sys/module/nvidia_uvm is missing."""
    evidence = _lacks_uvm(facts)
    return found(*evidence) if evidence and not facts.kernel_driver.uvm_loaded else None


RULES = (uvm_missing, uvm_not_loaded)
