"""The driver: calls that hang or crash, and its age against torch."""

from rl.doctor.rules.rule import Fix, Found, found, rule
from rl.doctor.schema import Facts, Probe

MINIMUM_DRIVER = {11: 450, 12: 525, 13: 580}  # CUDA major → first driver branch; NVIDIA's CUDA release notes, table 2
WHEELS = "https://download.pytorch.org/whl"
WHEEL_FOR = {
    11: f"pip install --force-reinstall torch==2.7.1 --index-url {WHEELS}/cu118",
    12: f"pip install --force-reinstall torch --index-url {WHEELS}/cu126",
    13: f"pip install --force-reinstall torch --index-url {WHEELS}/cu130",
}
NOT_THE_DRIVERS_AGE = (34, 803, 804)  # another libcuda than the driver's own gave the version
KERNEL_LOG = Fix("host", "sudo dmesg | grep -iE 'nvrm|xid' | tail -20")


@rule(
    "driver-call-hung",
    "fatal",
    cause="a call to the NVIDIA driver hangs",
    symptom="nvidia-smi, `import torch` or the first CUDA call never returns; the kernel log has Xid 119 or 154.",
    fixes=(KERNEL_LOG, Fix("host", "sudo reboot", "the usual way out of a wedged driver")),
)
def call_hung(facts: Facts) -> Found | None:
    """A call had not returned after 30 s: a driver without persistence takes seconds per GPU for its first one."""
    hung = [probe for probe in _driver_probes(facts) if probe.ended == "timeout"]
    if not hung:
        return None
    evidence = [f"'{probe.step}' had not returned after {probe.seconds:.0f} s" for probe in hung]
    if any(probe.stuck for probe in hung):
        evidence.append("the process cannot even be killed: it waits inside the kernel driver")
    return found(*evidence, severity="degraded" if facts.usable else None)


@rule(
    "driver-call-crashed",
    "fatal",
    cause="the NVIDIA driver's library crashes",
    symptom="Segmentation fault in nvidia-smi, or when torch first touches CUDA.",
    fixes=(KERNEL_LOG, Fix("host", "sudo reboot")),
)
def call_crashed(facts: Facts) -> Found | None:
    """A signal ended the process that called a driver library."""
    crashed = [probe for probe in _driver_probes(facts) if probe.ended.startswith("signal")]
    if not crashed:
        return None
    evidence = (f"'{probe.step}' ended the process: {probe.ended}" for probe in crashed)
    return found(*evidence, severity="degraded" if facts.usable else None)


@rule(
    "driver-too-old",
    "fatal",
    cause="the NVIDIA driver is too old for this torch: CUDA <needed> needs <least>",
    symptom="The NVIDIA driver on your system is too old (found version 12040).",
    fixes=(
        Fix("host", "sudo apt-get install -y nvidia-driver-<minimum> && sudo reboot", "on Ubuntu; elsewhere <least>"),
        Fix("wsl", "in Windows, install NVIDIA's <least>; then: wsl --update"),
        Fix(
            "docker",
            "docker run --gpus all ... pytorch-cuda-rl:torch2.7",
            "if the driver has to stay: this variant is built for CUDA 12.6",
        ),
        Fix("inside", "<wheel>", "if the driver has to stay, without changing the image"),
    ),
)
def too_old(facts: Facts) -> Found | None:
    """The driver's CUDA major is below that of torch. Majors only: within one, an older minor is allowed."""
    needed, driver_cuda = major(facts.torch_cuda), facts.driver_api.version
    if needed is None or not driver_cuda or driver_cuda // 1000 >= needed or facts.torch.available:
        return None
    driver, minimum = major(facts.driver_version), MINIMUM_DRIVER.get(needed)
    if facts.driver_api.init in NOT_THE_DRIVERS_AGE or (driver and minimum and driver >= minimum):
        return None
    serves = driver_cuda // 1000
    newer, windows, variant, wheel = too_old.fixes
    fixes = [newer, windows, *([variant] if serves == 12 else []), *([wheel] if serves in WHEEL_FOR else [])]
    return found(
        f"driver {facts.driver_version or '(version unknown)'} serves CUDA up to {cuda_text(driver_cuda)}",
        f"torch {facts.torch_version} is built for CUDA {facts.torch_cuda}",
        fixes=tuple(fixes),
        needed=needed,
        least=f"driver {minimum} or newer" if minimum else "a newer driver",
        minimum=minimum or "<newest>",
        wheel=WHEEL_FOR.get(serves, ""),
    )


def cuda_text(version: int) -> str:
    """13000 → "13.0", as the driver counts."""
    return f"{version // 1000}.{version % 1000 // 10}"


def major(version: str | None) -> int | None:
    """580.95.05 → 580, 13.0 → 13."""
    first = (version or "").split(".")[0]
    return int(first) if first.isdecimal() and len(first) < 6 else None


def _driver_probes(facts: Facts) -> tuple[Probe, ...]:
    return (facts.nodes, facts.driver_api, facts.nvml)


CALLS = (call_hung, call_crashed)
RULES = (too_old,)
