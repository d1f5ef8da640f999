"""Which GPUs CUDA_VISIBLE_DEVICES selects, MIG, and the order in which CUDA counts."""

import re
from dataclasses import dataclass

from rl.doctor.rules.rule import Fix, Found, Severity, found, rule
from rl.doctor.schema import Facts

UNSET = Fix("inside", "unset CUDA_VISIBLE_DEVICES", "to use all GPUs of this container")
BY_ENGINE = Fix("docker", "docker run --gpus '\"device=1\"' ...", "selects by the host's numbers, without the variable")


@dataclass(frozen=True)
class _Selection:
    """What CUDA makes of CUDA_VISIBLE_DEVICES, and the entry that it stops at."""

    taken: tuple[str, ...] = ()
    bad: str | None = None
    twice: bool = False  # it is bad because it stands there a second time


def _selection(facts: Facts) -> _Selection:
    """Read the list as torch.cuda's _parse_visible_devices: it ends at the first entry that is no GPU, on purpose at a
    negative number, and a repeated entry makes it empty. Empty also where nobody can tell.
    """
    taken: list[str] = []
    for entry in (entry.strip() for entry in _given(facts).split(",")):
        known = _is_gpu(entry, facts)
        if known is None:
            return _Selection()
        if entry in taken:
            return _Selection((), entry, twice=True)
        if not known:
            return _Selection(tuple(taken), None if entry == "" or entry.startswith("-") else entry)
        taken.append(entry)
    return _Selection(tuple(taken))


def _is_gpu(entry: str, facts: Facts) -> bool | None:
    """Whether NVML knows it, or the nodes where NVML is not there; None: that cannot be told."""
    count, gpus = facts.nvml.count, facts.nvml.gpus
    number = re.match("[0-9]+", entry)
    if facts.nvml.init != 0 or not count or count != len(gpus):
        nodes = len(facts.gpu_nodes) if facts.nvml.load_error else 0
        beyond = number and nodes and (len(number[0]) > 5 or int(number[0]) >= nodes)
        return False if beyond and facts.driver_api.init == 100 else None
    if number:  # with MIG, CUDA counts the instances
        instances = sum(max(1, len(gpu.mig_uuids)) for gpu in gpus)
        return len(number[0]) < 6 and int(number[0]) < instances
    if entry.startswith("GPU-"):  # a beginning will do, if it is one GPU's only
        uuids = [gpu.uuid for gpu in gpus]
        return sum(uuid.startswith(entry) for uuid in uuids) == 1 if all(uuids) else None
    if entry.startswith("MIG-GPU-"):  # the form of drivers before 470
        return None
    if entry.startswith("MIG-"):
        mig_uuids = [uuid for gpu in gpus for uuid in gpu.mig_uuids]
        if not mig_uuids:
            return False if all(gpu.mig is False for gpu in gpus) else None
        return sum(uuid.startswith(entry) for uuid in mig_uuids) == 1
    return False


def _stops(facts: Facts) -> tuple[_Selection, str, Severity] | None:
    """The selection, its bad entry and how bad that is; None where CUDA itself takes more of the list than we do."""
    selection = _selection(facts)
    if selection.bad is None or (facts.driver_api.count or 0) > len(selection.taken):
        return None
    return selection, selection.bad, "degraded" if selection.taken else "fatal"


@rule(
    "visible-devices-out-of-range",
    "fatal",
    cause="CUDA_VISIBLE_DEVICES=<given> names GPU <entry>, but this container counts its own from 0",
    symptom="no CUDA-capable device is detected (100); CUDA error: invalid device ordinal (101).",
    fixes=(Fix("inside", "export CUDA_VISIBLE_DEVICES=0"), UNSET, BY_ENGINE),
)
def out_of_range(facts: Facts) -> Found | None:
    """A number in CUDA_VISIBLE_DEVICES is not below the number of GPUs that NVML counts in this container; without
    NVML, of its nodes /dev/nvidia0 …, where cuInit gives 100. Degraded where other entries before it are right.
    """
    stops = _stops(facts)
    if stops is None or stops[0].twice or not re.match("[0-9]", stops[1]):
        return None
    _, entry, severity = stops
    return found(_counts(facts), severity=severity, given=_given(facts), entry=entry)


@rule(
    "visible-devices-unknown-uuid",
    "fatal",
    cause="CUDA_VISIBLE_DEVICES names <entry>, which this container does not have",
    symptom="no CUDA-capable device is detected (100), with a UUID in CUDA_VISIBLE_DEVICES.",
    fixes=(Fix("inside", "export CUDA_VISIBLE_DEVICES=<known>"), UNSET),
)
def unknown_uuid(facts: Facts) -> Found | None:
    """An entry GPU-… or MIG-… of CUDA_VISIBLE_DEVICES is the beginning of no UUID that NVML lists in here."""
    stops = _stops(facts)
    if stops is None or stops[0].twice or not stops[1].startswith(("GPU-", "MIG-")):
        return None
    _, entry, severity = stops
    known = _uuids(facts)
    return found(f"NVML lists: {', '.join(known)}", severity=severity, entry=entry, known=known[0])


@rule(
    "visible-devices-unreadable",
    "fatal",
    cause="CUDA_VISIBLE_DEVICES=<given> is no list of GPUs: CUDA stops at '<entry>'",
    symptom="no CUDA-capable device is detected (100), with CUDA_VISIBLE_DEVICES=all or a GPU named twice.",
    fixes=(Fix("inside", "export CUDA_VISIBLE_DEVICES=0"), UNSET),
)
def unreadable(facts: Facts) -> Found | None:
    """An entry of CUDA_VISIBLE_DEVICES is neither a number nor a UUID (`all` is for NVIDIA_VISIBLE_DEVICES), or stands
    in it twice, by which the whole list counts as empty.
    """
    stops = _stops(facts)
    if stops is None or (re.match("[0-9]|GPU-|MIG-", stops[1]) and not stops[0].twice):
        return None
    selection, entry, severity = stops
    said = f"{entry} stands in it twice" if selection.twice else "an entry is a number from 0, GPU-… or MIG-…"
    return found(said, _counts(facts), severity=severity, given=_given(facts), entry=entry)


@rule(
    "uuid-not-understood",
    "fatal",
    cause="torch <version> does not understand the UUID in CUDA_VISIBLE_DEVICES=<given>",
    symptom="`torch.cuda.device_count()` is 0; ValueError: invalid literal for int() with base 10: 'GPU-...'.",
    fixes=(Fix("inside", "export CUDA_VISIBLE_DEVICES=<index>"),),
)
def uuid_not_understood(facts: Facts) -> Found | None:
    """All UUIDs of CUDA_VISIBLE_DEVICES are NVML's, the driver API finds the GPUs, and torch counts none, or raises
    that the UUID is no number.
    """
    selection = _selection(facts)
    by_uuid = [part for part in selection.taken if part.startswith(("GPU-", "MIG-"))]
    run, raised = facts.torch, "invalid literal for int()" in (facts.torch.error or "")
    if not by_uuid or not facts.driver_usable or not (run.count == 0 or raised):
        return None
    numbers = [str(i) for i, uuid in enumerate(_uuids(facts)) if uuid.startswith(tuple(by_uuid))]
    said = run.error if raised else f"the driver API counts {facts.driver_api.count}, torch 0"
    return found(str(said), version=facts.torch_version, given=_given(facts), index=",".join(numbers))


@rule(
    "mig-one-instance",
    "info",
    cause="of <count> MIG instances a process uses one only, by design",
    symptom="`torch.cuda.device_count()` is 1 although several MIG instances are here; DistributedDataParallel fails.",
    fixes=(Fix("inside", "CUDA_VISIBLE_DEVICES=<second> python ...", "one process for each instance"),),
)
def mig_one_instance(facts: Facts) -> Found | None:
    """NVML lists several MIG instances, and CUDA counts one GPU without CUDA_VISIBLE_DEVICES having chosen it."""
    instances = [uuid for gpu in facts.nvml.gpus if gpu.mig for uuid in gpu.mig_uuids]
    if len(instances) < 2 or facts.driver_api.count != 1 or "CUDA_VISIBLE_DEVICES" in facts.environment:
        return None
    return found(*instances, count=len(instances), second=instances[1])


@rule(
    "gpu-order-differs",
    "degraded",
    cause="CUDA numbers the GPUs in another order than nvidia-smi does: cuda:<index> is <name>",
    symptom="A job runs on another GPU than nvidia-smi shows under that number: CUDA begins with the fastest.",
    fixes=(Fix("inside", "export CUDA_DEVICE_ORDER=PCI_BUS_ID"),),
)
def order_differs(facts: Facts) -> Found | None:
    """A GPU that torch lists is of another model than the one which NVML has at the same place (or at that number of
    CUDA_VISIBLE_DEVICES), by their UUIDs. GPUs of one model may stand in any order, and UUIDs say what they mean.
    """
    gpus, seen = facts.nvml.gpus, facts.torch.gpus
    taken = _selection(facts).taken
    if facts.environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or any(gpu.mig for gpu in gpus):
        return None
    if not all(re.fullmatch("[0-9]+", part) for part in taken):
        return None
    if _given(facts) and not taken:
        return None
    meant = [gpus[int(part)] for part in taken] if taken else list(gpus)
    if len(meant) != len(seen) or not {gpu.uuid for gpu in seen} <= {gpu.uuid for gpu in gpus if gpu.uuid}:
        return None
    for index, (ours, theirs) in enumerate(zip(seen, meant, strict=True)):
        if ours.uuid != theirs.uuid and ours.name != theirs.name:
            said = f"nvidia-smi's number {taken[index] if taken else index} is {theirs.name}"
            return found(f"cuda:{index} is {ours.name}", said, index=index, name=ours.name)
    return None


def _given(facts: Facts) -> str:
    return facts.environment.get("CUDA_VISIBLE_DEVICES", "")


def _uuids(facts: Facts) -> list[str]:
    """What CUDA counts from 0: the GPUs, or their MIG instances."""
    return [uuid for gpu in facts.nvml.gpus for uuid in gpu.mig_uuids or (gpu.uuid,)]


def _counts(facts: Facts) -> str:
    if facts.nvml.init == 0 and facts.nvml.count:
        return f"NVML counts {facts.nvml.count} here"
    return f"there are nodes for {len(facts.gpu_nodes)} here, and cuInit finds no device"


RULES = (out_of_range, unknown_uuid, unreadable, uuid_not_understood, mig_one_instance, order_differs)
