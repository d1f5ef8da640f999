"""Nodes that cannot be opened: EPERM is the device cgroup's, EACCES that of the mode or of SELinux."""

import re

from rl.doctor.rules.rule import Fix, Found, found, rule
from rl.doctor.schema import Facts, Node

NOBODY = 65534  # how a user namespace shows a group of the host that it does not know
ALLOW = Fix(
    "lxc",
    "lxc.cgroup2.devices.allow: c <major>:* rwm",
    "in the container's configuration (Proxmox: /etc/pve/lxc/<id>.conf), then restart it",
)
SLURM = Fix("host", "srun --gpus=1 --pty bash", "in a Slurm cluster: a job that asks for no GPU may open none")
RESTART = (
    Fix("docker", "docker restart <container>", "now; what runs in it ends"),
    Fix("compose", "docker compose restart"),
    Fix("podman", "podman restart <container>", "now; what runs in it ends"),
    Fix("kubernetes", "kubectl delete pod <pod>", "now, if something makes it anew"),
)


def shut_nodes(facts: Facts, error: str) -> list[Node]:
    """Nodes that answer `error` and that CUDA cannot do without: those for all GPUs, or every single GPU's."""
    if facts.usable:
        return []
    for_all = [node for node in facts.nodes.found if node.name in ("nvidiactl", "nvidia-uvm", "nvmap")]
    shut = [node for node in for_all if node.opened == error]
    if shut or all(node.opened == error for node in facts.gpu_nodes):
        shut += [node for node in facts.gpu_nodes if node.opened == error]
    return shut


def told(nodes: list[Node]) -> list[str]:
    """A line of evidence for each."""
    return [f"/dev/{node.name} cannot be opened: {node.opened}" for node in nodes]


@rule(
    "gpu-lost",
    "fatal",
    cause="the GPU worked in this container until the host took it away (systemctl daemon-reload, an upgrade)",
    symptom="Failed to initialize NVML: Unknown Error, in a container where nvidia-smi worked before.",
    fixes=(
        *RESTART,
        Fix(
            "host",
            "sudo nvidia-ctk system create-dev-char-symlinks --create-all",
            "so that it does not happen again; after each boot, say by a udev rule",
        ),
        Fix(
            "docker",
            "docker run --gpus all --device /dev/nvidia0 --device /dev/nvidiactl --device /dev/nvidia-uvm"
            " --device /dev/nvidia-uvm-tools ...",
            "or this, to the same end",
        ),
    ),
)
def gpu_lost(facts: Facts) -> Found | None:
    """Opening the nodes gives EPERM, and the container's self-check has noted when a GPU last worked in here. Without
    EPERM the note proves nothing, and without the note the nodes may have been refused from the start.
    """
    shut = shut_nodes(facts, "EPERM")
    return found(f"a GPU worked in here at {facts.worked}", *told(shut)) if shut and facts.worked else None


@rule(
    "lxc-device-refused",
    "fatal",
    cause="the configuration of this LXC container does not allow the GPU's nodes",
    symptom="Failed to initialize NVML: Unknown Error or Insufficient Permissions, in an LXC container (Proxmox, LXD).",
    fixes=(ALLOW, Fix("lxc", "lxc config device add <container> gpu gpu", "with LXD")),
)
def lxc_refused(facts: Facts) -> Found | None:
    """In LXC opening a node gives EPERM: each device number needs a line, and that of nvidia-uvm may change at boot."""
    shut = shut_nodes(facts, "EPERM")
    if not shut or facts.platform.engine != "lxc":
        return None
    return found(*told(shut), fixes=(*_allow(shut, facts), *lxc_refused.fixes[1:]))


def _allow(shut: list[Node], facts: Facts) -> list[Fix]:
    """A line for each device number, of those the nodes have and those the driver has now."""
    numbers = {*facts.kernel_driver.majors.values(), *(node.major for node in shut if node.major is not None)}
    return [Fix("lxc", ALLOW.command.replace("<major>", str(number)), ALLOW.note) for number in sorted(numbers)]


@rule(
    "device-cgroup-refuses",
    "fatal",
    cause="the device cgroup does not allow the GPU's nodes in here",
    symptom="Failed to initialize NVML: Unknown Error, from the very first second, although ls /dev shows nvidia0.",
    fixes=(
        Fix(
            "host",
            "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups=false --in-place && sudo systemctl restart"
            " docker",
            "if /etc/nvidia-container-runtime/config.toml says no-cgroups = true; then start a new container",
        ),
        *(Fix(fix.where, fix.command, "if the GPU has worked in here before") for fix in RESTART),
        SLURM,
    ),
)
def cgroup_refuses(facts: Facts) -> Found | None:
    """Opening the nodes gives EPERM, which no mode and no user brings about. In a user namespace (rootless) the engine
    has no cgroup of devices of its own: then what is around it refuses, as it does outside a container.
    """
    shut, platform = shut_nodes(facts, "EPERM"), facts.platform
    if not shut:
        return None
    *engines, slurm = cgroup_refuses.fixes
    outside = platform.rootless or platform.engine in (None, "apptainer")
    lines = [Fix("host", fix.command, "if this is inside an LXC container: there") for fix in _allow(shut, facts)]
    return found(*told(shut), fixes=(slurm, *lines) if outside else tuple(engines))


def _mode(node: Node) -> int | None:
    return int(node.mode, 8) if re.fullmatch("[0-7]{3,4}", node.mode) else None


def _lets_in(node: Node, facts: Facts) -> bool | None:
    """Whether its mode lets everybody, or a group of this user, read and write it; None: not known."""
    mode = _mode(node)
    if mode is None or facts.nodes.uid is None:
        return None
    return mode & 0o006 == 0o006 or (mode & 0o060 == 0o060 and node.group in facts.nodes.groups)


@rule(
    "selinux-refuses",
    "fatal",
    cause="SELinux does not let this container use the GPU's nodes",
    symptom="Failed to initialize NVML: Insufficient Permissions, on Fedora, RHEL or CentOS; audit log: avc: denied.",
    fixes=(
        Fix("docker", "docker run --security-opt=label=disable ..."),
        Fix("compose", "security_opt: ['label=disable']", "in the service, if you use compose"),
        Fix("podman", "podman run --security-opt=label=disable ..."),
        Fix("host", "sudo setsebool -P container_use_devices=true", "or this, for every container"),
    ),
)
def selinux_refuses(facts: Facts) -> Found | None:
    """Opening a node gives EACCES although its mode allows it or this is root, and the process's label is of a type
    that SELinux confines. Both are needed: a mode alone, or a label alone, is common.
    """
    nodes, label = facts.nodes, facts.platform.selinux
    confined = label.split(":")[2:3] in (["container_t"], ["container_init_t"], ["svirt_lxc_net_t"])
    root = nodes.uid == 0 and not facts.platform.rootless
    shut = [node for node in shut_nodes(facts, "EACCES") if root or _lets_in(node, facts)]
    modes = (f"/dev/{node.name} has mode {node.mode}, this is user {nodes.uid}" for node in shut)
    return found(f"this process runs as {label}", *told(shut), *modes) if shut and confined else None


@rule(
    "node-permissions",
    "fatal",
    cause="the GPU's nodes are closed to this user: their mode lets in group <group>, which it does not belong to",
    symptom="Failed to initialize NVML: Insufficient Permissions; CUDA error 100 or 304; as root it works.",
    fixes=(
        Fix("docker", "docker run --group-add <group> ..."),
        Fix("compose", "group_add: ['<group>']", "in the service, if you use compose"),
        Fix("podman", "podman run --group-add <group> ..."),
        Fix("kubernetes", "securityContext: {supplementalGroups: [<group>]}", "in the pod's spec"),
        Fix("podman", "podman run --group-add keep-groups ...", "rootless, if you belong to the group on the host"),
        Fix("host", "sudo usermod -aG <group> $USER", "then log in again"),
        Fix(
            "host",
            "echo options nvidia NVreg_DeviceFileMode=0666 | sudo tee /etc/modprobe.d/nvidia-nodes.conf && sudo reboot",
            "for everybody; 0666 with its first 0, else it is not octal",
        ),
    ),
)
def permissions(facts: Facts) -> Found | None:
    """Opening a node gives EACCES, its mode lacks reading and writing for others, and its group is none of this user's.
    A node open to everybody that gives EACCES all the same is not the mode's fault.
    """
    shut = [node for node in shut_nodes(facts, "EACCES") if _lets_in(node, facts) is False]
    if not shut:
        return None
    node, engine, rootless = shut[0], facts.platform.engine, facts.platform.rootless
    *by_group, keep, member, for_all = permissions.fixes
    on_host = engine in (None, "apptainer")
    groups = (member,) if on_host else (keep,) if rootless else tuple(by_group)
    enough = (_mode(node) or 0) & 0o060 == 0o060 and (node.group not in (None, 0, NOBODY) or groups == (keep,))
    modes = (f"/dev/{node.name} has mode {node.mode} and group {node.group}" for node in shut)
    who = f"this is user {facts.nodes.uid}, of groups {', '.join(map(str, facts.nodes.groups)) or 'none'}"
    return found(*told(shut), *modes, who, fixes=(*(groups if enough else ()), for_all), group=node.group)


RULES = (gpu_lost, lxc_refused, cgroup_refuses, selinux_refuses, permissions)
