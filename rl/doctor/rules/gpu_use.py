"""Who may use the GPUs, and who does: fabric manager, MPS, compute mode, memory that others hold, persistence."""

import re

from rl.doctor.rules.gpu_state import label, numbered
from rl.doctor.rules.rule import Fix, Found, found, rule
from rl.doctor.schema import Facts, NvmlGpu

# Boards whose GPUs are connected by NVSwitches, which the fabric manager sets up.
SWITCHED = re.compile(r"SXM|HGX|\b(H20|H[128]00|G?B[123]00)\b")
BY_PCIE = re.compile(r"PCIe|\bNVL\b")
MPS_CODES = {
    805: "the MPS daemon cannot be reached",
    806: "the connection to the MPS server broke",
    807: "the MPS server is not ready",
    808: "the MPS server has all the clients it takes",
    809: "the MPS server has all the connections it takes",
}
HELD = 2 * 2**30  # bytes; contexts and a desktop take less
SLOW_START = 5.0  # seconds


@rule(
    "fabric-manager",
    "fatal",
    cause="the GPUs of this NVSwitch machine wait for the host's fabric manager",
    symptom="system not yet initialized (CUDA error 802), while nvidia-smi shows the GPUs.",
    fixes=(
        Fix("host", "sudo systemctl enable --now nvidia-fabricmanager && systemctl status nvidia-fabricmanager"),
        Fix(
            "host",
            "dpkg -l | grep -i fabricmanager; cat /proc/driver/nvidia/version",
            "if it is running: both must be of exactly the same version, <driver>",
        ),
        Fix("kubernetes", "kubectl cordon <node>", "and have the pod scheduled elsewhere, if the host is not yours"),
    ),
)
def fabric_manager(facts: Facts) -> Found | None:
    """cuInit gives 802, and NVML says that the fabric is not ready or, where it cannot say (A100), the name is that of
    such a board. With a fabric that is complete, or on a PCIe card, something else is the cause.
    """
    api, gpus = facts.driver_api, facts.nvml.gpus
    states = {gpu.fabric_state for gpu in gpus}
    named = [gpu.name for gpu in gpus if SWITCHED.search(gpu.name) and not BY_PCIE.search(gpu.name)]
    if api.init != 802 or not (states & {1, 2} or (named and 3 not in states)):
        return None
    evidence = [f"cuInit gives 802 ({api.init_name})"]
    for index, gpu in numbered(facts):
        if gpu.fabric_state in (1, 2):
            state = "not started" if gpu.fabric_state == 1 else "in progress"
            evidence.append(f"{label(index, gpu)}: fabric {state}")
    if len(evidence) == 1:
        evidence.append(f"{named[0]} is a board with NVSwitch")
    return found(*evidence, driver=facts.driver_version or "(unknown)")


@rule(
    "mps-unreachable",
    "fatal",
    cause="CUDA wants to go through NVIDIA's MPS, and <reason>",
    symptom="MPS client failed to connect to the MPS control daemon or the MPS server (CUDA error 805).",
    fixes=(
        Fix("docker", "docker run --gpus all --ipc=host -v <folder>:<folder> --user <uid-of-the-daemon> ..."),
        Fix("podman", "podman run --device nvidia.com/gpu=all --ipc=host -v <folder>:<folder> ..."),
        Fix("inside", "unset CUDA_MPS_PIPE_DIRECTORY", "if MPS is not wanted"),
        Fix("host", "echo quit | sudo nvidia-cuda-mps-control", "to end MPS for all"),
    ),
)
def mps(facts: Facts) -> Found | None:
    """CUDA answers 805 to 809, to cuInit or to torch's first sum. MPS that merely runs, or a variable that is set, is
    no fault.
    """
    api, error = facts.driver_api, facts.torch.kernel_error or ""
    code = api.init if api.init in MPS_CODES else None
    if code is None and not re.search(r"\bMPS (client|server|daemon)", error):
        return None
    variable = facts.environment.get("CUDA_MPS_PIPE_DIRECTORY")
    folder = variable or api.mps_folder or "/tmp/nvidia-mps"
    evidence = [f"cuInit gives {code} ({api.init_name})" if code else error]
    evidence += [f"CUDA_MPS_PIPE_DIRECTORY is {variable}"] if variable else []
    evidence.append(f"{folder} is here" if api.mps_folder else f"there is no folder {folder} in here")
    fixes = mps.fixes if variable else tuple(fix for fix in mps.fixes if fix.where != "inside")
    return found(*evidence, fixes=fixes, reason=MPS_CODES.get(code or 0, "that fails"), folder=folder)


@rule(
    "compute-mode",
    "info",
    cause="the GPU's compute mode lets <whom> use it",
    symptom="CUDA-capable device(s) is/are busy or unavailable (CUDA error 46).",
    fixes=(
        Fix("host", "sudo nvidia-smi -c 0", "for the default mode; add -i <index> for one GPU"),
        Fix("host", "nvidia-smi", "to see which process has the GPU"),
    ),
)
def compute_mode(facts: Facts) -> Found | None:
    """A GPU's mode is exclusive or prohibited: fatal where torch's first sum finds it busy, or all are prohibited and
    torch has not shown that it computes; degraded where one is prohibited; else a note, since one process works.
    Busy GPUs of the default mode have another cause.
    """
    limited = [(index, gpu) for index, gpu in numbered(facts) if gpu.compute_mode in (2, 3)]
    if not limited:
        return None
    words = {2: "nobody", 3: "one process at a time"}
    error, prohibited = facts.torch.kernel_error, [gpu for _, gpu in limited if gpu.compute_mode == 2]
    evidence = [f"{label(index, gpu)}: {words[gpu.compute_mode or 2]} may use it" for index, gpu in limited]
    whom = words[2 if prohibited else 3]
    index = limited[0][0]
    if error and "busy or unavailable" in error:
        return found(error, *evidence, severity="fatal", whom=whom, index=index)
    if len(prohibited) == len(facts.nvml.gpus) and not facts.torch.available:
        return found(*evidence, severity="fatal", whom=whom, index=index)
    return found(*evidence, severity="degraded" if prohibited else None, whom=whom, index=index)


def _held(facts: Facts) -> list[tuple[int, NvmlGpu]]:
    """GPUs whose memory nobody in here holds; with MIG one cannot tell an instance's own from its neighbours'."""
    if facts.processes or any(gpu.mig for gpu in facts.nvml.gpus):
        return []
    asked = [(index, gpu, gpu.memory_used or 0, gpu.memory_bytes or 0) for index, gpu in numbered(facts)]
    return [(index, gpu) for index, gpu, used, total in asked if total and used > max(HELD, total // 10)]


def _use(held: list[tuple[int, NvmlGpu]]) -> list[str]:
    return [
        f"{label(index, gpu)}: {(gpu.memory_used or 0) // 2**20} of {(gpu.memory_bytes or 0) // 2**20} MiB are in use"
        + (f", and it is {gpu.utilization} % busy" if gpu.utilization else "")
        for index, gpu in held
    ]


@rule(
    "gpu-memory-held",
    "degraded",
    cause="GPU memory is held by processes that are not visible in here: another container, or the host",
    symptom="CUDA out of memory at once; nvidia-smi in the container shows the memory as used, and no process.",
    fixes=(
        Fix("host", "nvidia-smi", "shows who; end what is not needed"),
        Fix("docker", "docker run --gpus all --pid=host ...", "to see the host's processes in here"),
        Fix("podman", "podman run --device nvidia.com/gpu=all --pid=host ..."),
        Fix("inside", "export CUDA_VISIBLE_DEVICES=<free>", "to use a GPU that is free"),
    ),
)
def memory_held(facts: Facts) -> Found | None:
    """More than 2 GiB and more than a tenth of a GPU's memory is in use, and no process in here has a GPU open.
    Contexts and a desktop take less; with MIG it is not asked.
    """
    held = _held(facts)
    if not held:
        return None
    free = ",".join(gpu.uuid for index, gpu in numbered(facts) if gpu.uuid and (index, gpu) not in held)
    return found(*_use(held), fixes=memory_held.fixes if free else memory_held.fixes[:-1], free=free)


@rule(
    "gpu-shared",
    "info",
    cause="this pod seems to share its GPU with others, and nothing keeps their memory apart",
    symptom="CUDA out of memory in a pod that was given a whole nvidia.com/gpu (time-slicing).",
    fixes=(
        Fix("inside", "torch.cuda.set_per_process_memory_fraction(0.5)", "in your program, with your share"),
        Fix("host", "kubectl describe node <node> | grep -E 'nvidia.com/gpu'", "labels *-SHARED or *.replicas tell"),
    ),
)
def shared(facts: Facts) -> Found | None:
    """On Kubernetes, memory of the GPU is held by nobody in this pod. There is no mark of time-slicing in a container,
    so this is a note.
    """
    held = _held(facts) if facts.platform.engine == "kubernetes" else []
    return found(*_use(held)) if held else None


@rule(
    "persistence-off",
    "info",
    cause="the driver starts the GPU anew for each first user, which took <seconds> s (persistence mode is off)",
    symptom="The first CUDA call, and nvidia-smi, take many seconds each time.",
    fixes=(
        Fix("host", "sudo systemctl enable --now nvidia-persistenced"),
        Fix("host", "sudo nvidia-smi -pm 1", "where there is no such service"),
    ),
)
def persistence_off(facts: Facts) -> Found | None:
    """Persistence mode is off, and NVML took more than 5 s to start and to find its GPUs. Off and fast is normal."""
    seconds = facts.nvml.init_seconds or 0.0
    off = [label(index, gpu) for index, gpu in numbered(facts) if gpu.persistence is False]
    if not off or seconds <= SLOW_START:
        return None
    return found(*(f"{name}: persistence mode is off" for name in off), seconds=f"{seconds:.0f}")


RULES = (fabric_manager, mps, compute_mode, memory_held, shared, persistence_off)
