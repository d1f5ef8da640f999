"""Nodes that are missing, or that lead nowhere: ENXIO is a number that no driver has."""

from rl.doctor.rules.access import shut_nodes, told
from rl.doctor.rules.rule import Fix, Found, found, rule
from rl.doctor.schema import Facts

FRONTEND = "nvidia-frontend"  # name of the driver's number with older drivers


@rule(
    "stale-node",
    "fatal",
    cause="/dev/<node> is of before the host loaded its driver again, and leads nowhere now",
    symptom="CUDA unknown error (999) after the driver was loaded again; /dev/nvidia-uvm: No such device or address.",
    fixes=(
        Fix("docker", "docker rm -f <container> && docker run --gpus all ...", "a new container gets the new nodes"),
        Fix("compose", "docker compose up -d --force-recreate"),
        Fix("podman", "podman rm -f <container> && podman run --device nvidia.com/gpu=all ..."),
        Fix("kubernetes", "kubectl delete pod <pod>", "if something makes it anew"),
        Fix("lxc", "lxc restart <container>", "LXD; elsewhere pct reboot <id>, or lxc-stop and lxc-start"),
        Fix("host", "sudo rm /dev/<node> && sudo nvidia-modprobe -u -c=0", "if the host's own node is as old"),
    ),
)
def stale_node(facts: Facts) -> Found | None:
    """Opening a node gives ENXIO, and /proc/devices has another number for its driver than the node. The number of
    nvidia-uvm is given out anew each time it is loaded. Where the numbers agree, the GPU itself is at fault.
    """
    majors = facts.kernel_driver.majors
    for node in shut_nodes(facts, "ENXIO"):
        number = majors.get("nvidia-uvm") if node.name == "nvidia-uvm" else majors.get("nvidia", majors.get(FRONTEND))
        if number is not None and node.major not in (None, number):
            numbers = f"its number is {node.major}, and /proc/devices has {number} for the driver"
            return found(*told([node]), numbers, node=node.name)
    return None


def _lacks_uvm(facts: Facts, *, dead: bool = False) -> tuple[str, ...] | None:
    """Evidence that /dev/nvidia-uvm is not there, or `dead`: without its driver."""
    names = {node.name for node in facts.nodes.found if node.opened == "ok"}
    uvm = [node.opened for node in facts.nodes.found if node.name == "nvidia-uvm"]
    if "nvidiactl" not in names or not (uvm == [] or (dead and uvm == ["ENXIO"])):
        return None
    if facts.platform.own_way or facts.driver_api.init in (None, 0):
        return None
    return (
        f"/dev/nvidiactl opens, /dev/nvidia-uvm {'answers ENXIO' if uvm else 'does not exist'}",
        f"cuInit gives {facts.driver_api.init} ({facts.driver_api.init_name})",
    )


@rule(
    "uvm-missing",
    "fatal",
    cause="/dev/nvidia-uvm was not passed to this container, and CUDA needs it",
    symptom="nvidia-smi works, `torch.cuda.is_available()` is False: CUDA unknown error (999).",
    fixes=(
        Fix("docker", "docker run --device /dev/nvidia-uvm --device /dev/nvidia-uvm-tools ..."),
        Fix("compose", "devices: ['/dev/nvidia-uvm', '/dev/nvidia-uvm-tools']", "in the service, if you use compose"),
        Fix("podman", "podman run --device /dev/nvidia-uvm --device /dev/nvidia-uvm-tools ..."),
        Fix("lxc", "lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file"),
        Fix("lxc", "lxc config device add <container> uvm unix-char path=/dev/nvidia-uvm", "with LXD"),
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
    """/dev/nvidiactl opens, /dev/nvidia-uvm is not there or has no driver, cuInit fails, and /sys/module has nvidia
    and not nvidia_uvm. A sandbox that shows neither module says nothing of the host.
    """
    evidence, driver = _lacks_uvm(facts, dead=True), facts.kernel_driver
    return found(*evidence) if evidence and driver.loaded and not driver.uvm_loaded else None


RULES = (stale_node, uvm_missing, uvm_not_loaded)
