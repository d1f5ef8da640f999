"""The state of the GPUs: lost, waiting for a reset, worn, throttled, on a narrow link; as NVML tells it."""

from rl.doctor.rules.driver import KERNEL_LOG
from rl.doctor.rules.rule import Fix, Found, Severity, found, rule
from rl.doctor.schema import Facts, NvmlGpu

LOST, RESET_REQUIRED, UNKNOWN = 15, 16, 999  # NVML's codes
RECOVERY = {
    1: "reset the GPU",
    2: "reboot the machine",
    3: "drain peer-to-peer traffic, then reset",
    4: "drain the GPU's work, then reset",
    5: "recover the IMEX domain",
    6: "reset the GPU's bus",
    7: "reboot the whole system",
}
RESET = Fix("host", "sudo nvidia-smi --gpu-reset -i <index>", "after all that uses this GPU has ended")
REBOOT = Fix("host", "sudo reboot", "where the reset is refused")
SLOWED_BY_HARDWARE = {0x08: "hardware slowdown", 0x40: "hardware thermal slowdown", 0x80: "hardware power brake"}
SLOWED = {**SLOWED_BY_HARDWARE, 0x20: "software thermal slowdown"}


def numbered(facts: Facts) -> list[tuple[int, NvmlGpu]]:
    """The GPUs with NVML's index."""
    return list(enumerate(facts.nvml.gpus))


def label(index: int, gpu: NvmlGpu) -> str:
    """`GPU 0 (NVIDIA H200, PCI 00000000:01:00.0)`, as far as known."""
    known = ", ".join(part for part in (gpu.name, f"PCI {gpu.pci}" if gpu.pci else "") if part)
    return f"GPU {index} ({known})" if known else f"GPU {index}"


def overall(facts: Facts) -> Severity | None:
    """What is fatal for one GPU is degraded while others work."""
    return "degraded" if facts.usable else None


@rule(
    "gpu-off-the-bus",
    "fatal",
    cause="<gpu> does not answer any more: it has fallen off the bus, or cannot be started",
    symptom="Unable to determine the device handle for GPU: Unknown Error; GPU is lost; Xid 79 in the kernel log.",
    fixes=(
        KERNEL_LOG,
        Fix("host", "sudo reboot", "if it does not come back: switch the machine off, check power cable, slot, riser"),
        Fix("inside", "export CUDA_VISIBLE_DEVICES=<others>", "to go on with the others"),
    ),
)
def lost(facts: Facts) -> Found | None:
    """NVML answers 15 for the GPU, or 999 while it answers for another one; or more nodes /dev/nvidia0 … can be reached
    than NVML counts GPUs. Fewer GPUs than the host has are normal, so those on the bus count for nothing.
    """
    gpus = numbered(facts)
    answering = any(gpu.error is None for _, gpu in gpus)
    gone = [(i, gpu) for i, gpu in gpus if gpu.error == LOST or (gpu.error == UNKNOWN and answering)]
    evidence = [f"NVML gives {gpu.error} for {label(index, gpu)}" for index, gpu in gone]
    named = label(*gone[0]) if gone else _missing(facts)
    if named is None:
        return None
    if not gone:
        evidence.append(f"NVML counts {facts.nvml.count} GPUs, {named} is here all the same")
    others = ",".join(uuid for gpu in facts.nvml.gpus if gpu.error is None and (uuid := gpu.uuid))
    fixes = lost.fixes if others and gone else lost.fixes[:-1]
    return found(*evidence, severity=overall(facts), fixes=fixes, gpu=named, others=others)


def _missing(facts: Facts) -> str | None:
    """The nodes of GPUs that NVML does not count."""
    nvml = facts.nvml
    # EIO: the driver is there and cannot start the GPU. Other errors say that this container may not use it.
    given = [node.name for node in facts.gpu_nodes if node.opened in ("ok", "EIO")]
    known = {f"nvidia{gpu.minor}" for gpu in nvml.gpus if gpu.minor is not None}
    if facts.platform.own_way or not nvml.count or len(known) != nvml.count or len(given) <= nvml.count:
        return None
    return ", ".join(f"/dev/{name}" for name in given if name not in known) or None


@rule(
    "gpu-memory-failed",
    "fatal",
    cause="the memory of <gpu> is worn: errors that can no longer be mended",
    symptom="uncorrectable ECC error encountered (CUDA error 214); Xid 64 or 94 in the kernel log.",
    fixes=(
        Fix("host", "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT", "what to show when you ask for a new one"),
        KERNEL_LOG,
        RESET,
    ),
)
def memory_failed(facts: Facts) -> Found | None:
    """A spare row could not be put in place of a bad one, or torch's first sum met an uncorrectable error. Rows that
    have been replaced are healthy. Fatal where it is every GPU, or the one that torch uses.
    """
    worn = [(index, gpu) for index, gpu in numbered(facts) if gpu.remap_failed]
    error = facts.torch.kernel_error or ""
    met = "uncorrectable" in error.lower() and "ECC" in error
    if not worn and not met:
        return None
    evidence = [f"{label(index, gpu)}: row remapping has failed" for index, gpu in worn]
    every = met or len(worn) == len(facts.nvml.gpus)
    name = label(*worn[0]) if worn else "the GPU that torch uses"
    return found(
        *([error] if met else []),
        *evidence,
        severity=None if every else "degraded",
        gpu=name,
        index=worn[0][0] if worn else facts.torch.current_device or 0,
    )


@rule(
    "gpu-reset-pending",
    "degraded",
    cause="<gpu> waits for a reset, which will put spare memory in place of bad",
    symptom="Xid 63 in the kernel log; nvidia-smi -q: Remapped Rows, Pending: Yes; Retired Pages, Pending: Yes.",
    fixes=(RESET, REBOOT),
)
def reset_pending(facts: Facts) -> Found | None:
    """Row remapping, or before Ampere page retirement, is pending. Rows that have been remapped say nothing."""
    waiting = [(index, gpu) for index, gpu in numbered(facts) if gpu.remap_pending]
    if not waiting:
        return None
    evidence = (f"{label(index, gpu)}: bad memory is still in use, its replacement pending" for index, gpu in waiting)
    return found(*evidence, gpu=label(*waiting[0]), index=waiting[0][0])


@rule(
    "gpu-needs-reset",
    "fatal",
    cause="the driver asks to <action>: <gpu> has met an error that it cannot leave by itself",
    symptom="GPU requires reset; Xid 119, 120 or 154 (GPU recovery action changed) in the kernel log.",
    fixes=(KERNEL_LOG, RESET, REBOOT),
)
def needs_reset(facts: Facts) -> Found | None:
    """NVML answers 16, or names a recovery action; where bad memory is to be replaced, that is said instead."""
    asking = [
        (index, gpu)
        for index, gpu in numbered(facts)
        if gpu.error == RESET_REQUIRED or (gpu.recovery_action and not gpu.remap_pending)
    ]
    if not asking:
        return None
    evidence = [
        f"NVML gives 16 for {label(index, gpu)}"
        if gpu.error == RESET_REQUIRED
        else f"{label(index, gpu)}: recovery action {gpu.recovery_action}"
        for index, gpu in asking
    ]
    index, gpu = asking[0]
    action = RECOVERY.get(gpu.recovery_action or 1, "recover the GPU")
    return found(*evidence, severity=overall(facts), action=action, gpu=label(index, gpu), index=index)


@rule(
    "gpu-throttled",
    "degraded",
    cause="<gpu> is slowed down: <reason>",
    symptom="Training becomes slower for no reason of its own; nvidia-smi -q -d PERFORMANCE: HW Slowdown: Active.",
    fixes=(
        Fix("host", "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"),
        Fix("host", "nvidia-smi dmon -s pc", "while training; then look at fans, airflow, power supply and cable"),
    ),
)
def throttled(facts: Facts) -> Found | None:
    """NVML's clock reasons name a slowdown by the hardware; or two samples under load (rl doctor --full) do, or name
    one for heat. Idle clocks, set clocks and the power cap are normal.
    """
    slow = [
        (index, words, f"{label(index, gpu)}: {words}{_heat(gpu)}")
        for index, gpu in numbered(facts)
        if (words := _reasons(gpu.clock_reasons or 0, SLOWED_BY_HARDWARE))
    ]
    for work in facts.full.works:
        bits = (bit for bit in SLOWED if sum(bool(sample & bit) for sample in work.clock_reasons) >= 2)
        if words := _reasons(sum(bits), SLOWED):
            slow.append((work.device or 0, words, f"GPU {work.device} at work: {words}"))
    if not slow:
        return None
    index, words, _ = slow[0]
    return found(*(line for _, _, line in slow), gpu=f"GPU {index}", reason=words)


def _reasons(bits: int, names: dict[int, str]) -> str:
    return ", ".join(name for bit, name in names.items() if bits & bit)


def _heat(gpu: NvmlGpu) -> str:
    return f", at {gpu.temperature} °C" if gpu.temperature is not None else ""


@rule(
    "pcie-link-narrow",
    "degraded",
    cause="<gpu> is connected by <width> PCIe lanes of the <most> that it could have",
    symptom="Copies between memory and GPU are slow; nvidia-smi -q: Link Width, Current: 4x, Max: 16x.",
    fixes=(
        Fix("host", "sudo lspci -vv -d 10de: | grep -E 'NVIDIA|LnkSta:'", "then reseat the card: slot, riser, cable"),
    ),
)
def narrow_link(facts: Facts) -> Found | None:
    """Fewer PCIe lanes under load (rl doctor --full) than the most that card and slot have: 8 of 16 is a note only.
    Nothing is said of idle links, which save power, nor on WSL2, Jetson and virtual GPUs.
    """
    if facts.platform.own_way or any(gpu.virtual for gpu in facts.nvml.gpus):
        return None
    links = ((work.device or 0, work.pcie_width or 0, work.pcie_width_max or 0) for work in facts.full.works)
    narrow = sorted((link for link in links if 0 < link[1] < link[2]), key=lambda link: link[1])
    if not narrow:
        return None
    evidence = (f"GPU {device} at work: {width} of {most} lanes" for device, width, most in narrow)
    device, width, most = narrow[0]
    severity: Severity | None = "info" if width >= 8 else None
    return found(*evidence, severity=severity, gpu=f"GPU {device}", width=width, most=most)


RULES = (lost, memory_failed, needs_reset, reset_pending, throttled, narrow_link)
