"""The driver: calls that hang or crash, and its age against torch."""

import re
from typing import Any

from rl.doctor.rules.rule import Fix, Found, found, rule
from rl.doctor.schema import Facts, Probe

MINIMUM_DRIVER = {11: 450, 12: 525, 13: 580}  # CUDA major → first driver branch; NVIDIA's CUDA release notes, table 2
TOOLKIT_DRIVER = {  # CUDA → the driver that came with it, which compiles its PTX; the release notes, table 3
    "11.8": "520.61.05",
    "12.1": "530.30.02",
    "12.4": "550.54.14",
    "12.6": "560.28.03",
    "12.8": "570.26",
    "12.9": "575.51.03",
    "13.0": "580.65.06",
    "13.1": "590.44.01",
    "13.2": "595.45.04",
}
IMAGES = {"torch2.13": "13.0", "torch2.7": "12.6", "torch2.6": "12.4"}  # our variants, newest first → CUDA of its torch
NEWEST_GPU_OF_CUDA_12 = 9  # compute capability's major: torch 2.6 and 2.7, and the wheels cu126, have no kernels beyond
WHEELS = "https://download.pytorch.org/whl"
# PIP_CONSTRAINT: in the image it holds torch, against being replaced by accident.
WHEEL_FOR = {
    11: f"PIP_CONSTRAINT= pip install --force-reinstall torch==2.7.1 --index-url {WHEELS}/cu118",
    12: f"PIP_CONSTRAINT= pip install --force-reinstall torch --index-url {WHEELS}/cu126",
    13: f"PIP_CONSTRAINT= pip install --force-reinstall torch --index-url {WHEELS}/cu130",
}
STAYS = "if the driver has to stay: its torch is built for CUDA <image_cuda>, which this driver serves"
OTHER_IMAGE = (
    Fix("docker", "docker run --gpus all ... pytorch-cuda-rl:<image>", STAYS),
    Fix("compose", "image: pytorch-cuda-rl:<image>", STAYS),
    Fix("podman", "podman run --device nvidia.com/gpu=all ... pytorch-cuda-rl:<image>", STAYS),
    Fix("kubernetes", "image: pytorch-cuda-rl:<image>", STAYS),
)
NEWER_DRIVER = (
    Fix("host", "sudo apt-get install -y nvidia-driver-<minimum> && sudo reboot", "on Ubuntu; elsewhere <least>"),
    Fix("wsl", "in Windows, install NVIDIA's <least>; then: wsl --update"),
)
WRONG_LIBRARY = (34, 803, 804)  # results of cuInit where another libcuda than the driver's own gave the version
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
    symptom="The NVIDIA driver on your system is too old (found version 12040); at the container's start: "
    "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0.",
    fixes=(
        *NEWER_DRIVER,
        *OTHER_IMAGE,
        Fix("inside", "<wheel>", "if the driver has to stay, without changing the image"),
        Fix("inside", "pip install --force-reinstall torch==<built>", "to have the image's own torch back"),
    ),
)
def too_old(facts: Facts) -> Found | None:
    """The driver's CUDA major is below that of torch. Majors only: within one, an older minor is allowed. The image
    that is named fits the driver's branch and the GPU: none does below driver 525, or with a GPU newer than sm_90.
    """
    evidence = age(facts)
    if evidence is None:
        return None
    *host, wheel, restore = (fix for fix in too_old.fixes if fix not in OTHER_IMAGE)
    serves = (facts.driver_api.version or 0) // 1000
    fixes = [*host, *(OTHER_IMAGE if image(facts) else ())]
    if not image(facts):
        reason = "have no kernels for this GPU" if _too_new(facts, 12) else f"need driver {MINIMUM_DRIVER[12]} or newer"
        evidence.append(f"our images with an older CUDA {reason}")
    if serves in WHEEL_FOR and not _too_new(facts, serves):
        fixes.append(wheel)
    built = (facts.torch_build.image or "").split("+")[0]
    if built and built != (facts.torch_version or "").split("+")[0]:
        evidence.append(f"this image was built with torch {built}; something installed another one since")
        fixes.append(restore)
    return found(*evidence, fixes=tuple(fixes), wheel=WHEEL_FOR.get(serves, ""), built=built, **age_words(facts))


def age(facts: Facts) -> list[str] | None:
    """Evidence that the driver's CUDA major is below that of torch; None where it is not, or is not known."""
    needed, driver_cuda = major(facts.torch_cuda), facts.driver_api.version
    if needed is None or not driver_cuda or driver_cuda // 1000 >= needed or facts.torch.available:
        return None
    driver, minimum = major(facts.driver_version), MINIMUM_DRIVER.get(needed)
    if facts.driver_api.init in WRONG_LIBRARY or (driver and minimum and driver >= minimum):
        return None
    evidence = [
        f"driver {facts.driver_version or '(version unknown)'} serves CUDA up to {cuda_text(driver_cuda)}",
        f"torch {facts.torch_version} is built for CUDA {facts.torch_cuda}",
    ]
    if facts.environment.get("NVIDIA_DISABLE_REQUIRE"):
        evidence.append("NVIDIA_DISABLE_REQUIRE is set, so the container started in spite of it")
    return evidence


def age_words(facts: Facts) -> dict[str, Any]:
    """What fills the words in `NEWER_DRIVER` and `OTHER_IMAGE`."""
    needed = major(facts.torch_cuda)
    minimum, fitting = MINIMUM_DRIVER.get(needed or 0), image(facts)
    return {
        "needed": needed,
        "least": f"driver {minimum} or newer" if minimum else "a newer driver",
        "minimum": minimum or "<newest>",
        "image": fitting,
        "image_cuda": IMAGES.get(fitting or ""),
    }


def image(facts: Facts) -> str | None:
    """The newest of our images whose torch runs on this driver and these GPUs."""
    driver, serves = major(facts.driver_version), (facts.driver_api.version or 0) // 1000
    for tag, cuda in IMAGES.items():
        cuda_major = major(cuda) or 0
        new_enough = driver >= MINIMUM_DRIVER[cuda_major] if driver else serves >= cuda_major
        if new_enough and not _too_new(facts, cuda_major):
            return tag
    return None


def _too_new(facts: Facts, cuda_major: int) -> bool:
    """Whether a GPU is newer than what torch for CUDA 12 has kernels for; not known, no."""
    return cuda_major <= 12 and any(gpu.capability[:1] > (NEWEST_GPU_OF_CUDA_12,) for gpu in facts.nvml.gpus)


@rule(
    "driver-lacks-ptx",
    "degraded",
    cause="this driver cannot compile the PTX that torch's CUDA brings along",
    symptom="the provided PTX was compiled with an unsupported toolchain (CUDA error 222).",
    fixes=(
        Fix("host", "sudo apt-get install -y nvidia-driver-<minimum> && sudo reboot", "on Ubuntu; elsewhere <least>"),
        Fix("wsl", "in Windows, install NVIDIA's <least>"),
        Fix("inside", "<wheel>", "if the driver has to stay: a wheel with kernels for more GPUs"),
    ),
)
def lacks_ptx(facts: Facts) -> Found | None:
    """CUDA answers 222 to a kernel: fatal where it is torch's own first sum. A driver with a smaller CUDA minor than
    torch's is no fault by itself: kernels that need no compiling run on it.
    """
    own = facts.torch.kernel_error or ""
    tried = [error for work in facts.full.works for error in (work.jit, work.compile, work.matmul) if error]
    errors = [error for error in (own, *tried) if re.search(r"unsupported toolchain|UNSUPPORTED_PTX|\b222\b", error)]
    if not errors:
        return None
    toolkit = TOOLKIT_DRIVER.get(facts.torch_cuda or "")
    serves = facts.driver_api.version
    return found(
        errors[0],
        f"driver {facts.driver_version or '(version unknown)'} serves CUDA {cuda_text(serves) if serves else '?'}, "
        f"torch is built for CUDA {facts.torch_cuda}",
        severity="fatal" if own in errors else None,
        least=f"driver {toolkit} or newer" if toolkit else "a newer driver",
        minimum=major(toolkit) or "<newest>",
        wheel=WHEEL_FOR.get((serves or 0) // 1000, WHEEL_FOR[max(WHEEL_FOR)]),
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
RULES = (too_old, lacks_ptx)
