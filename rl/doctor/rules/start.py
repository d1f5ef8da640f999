"""The host's GPU, its driver and the image: what keeps a container from starting, seen before the first `docker run`.

The rules of engine.py and toolkit.py are asked from here, too, with whatever message the user has pasted.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rl.doctor.rules import engine, host, toolkit
from rl.doctor.rules.driver import MINIMUM_DRIVER, major
from rl.doctor.rules.rule import Finding, Fix, Found, Rule, found, rule
from rl.doctor.schema import DriverApi, Facts
from rl.doctor.schema.host import HostFacts


@dataclass(frozen=True)
class Variant:
    """One image: its tag, what its torch is built for, and the compute capabilities it has kernels for."""

    tag: str
    cuda: str
    oldest: tuple[int, int]
    newest: tuple[int, int]
    machines: tuple[str, ...]

    @property
    def driver(self) -> int:
        """The first driver branch that serves it."""
        return MINIMUM_DRIVER[int(self.cuda.split(".")[0])]

    def runs_on(self, facts: HostFacts) -> bool:
        """The processor, and some GPU here, is one that it is built for; what is not known counts as yes."""
        if facts.platform.machine not in ("", *self.machines):
            return False
        known = [gpu.capability for gpu in facts.gpus]
        return not known or any(not gpu or self.oldest <= gpu <= self.newest for gpu in known)

    def served_by(self, facts: HostFacts) -> bool:
        """The driver here is new enough; so is one of unknown version."""
        return (major(facts.driver) or self.driver) >= self.driver


VARIANTS = (
    Variant("torch2.13", "13.0", (7, 5), (12, 9), ("x86_64", "aarch64")),
    Variant("torch2.7", "12.6", (5, 0), (9, 0), ("x86_64",)),
    Variant("torch2.6", "12.4", (5, 0), (9, 0), ("x86_64",)),
)
CURRENT = VARIANTS[0]
IMAGE = f"pytorch-cuda-rl:{CURRENT.tag}"
OTHER = Fix("docker", "docker run --gpus all ... pytorch-cuda-rl:<variant>", "a variant that fits driver and GPU")
CPU = Fix(
    "compose", "docker compose -f docker-compose.yml -f docker-compose.cpu.yml up --detach --wait", "without any GPU"
)
KERNEL_LOG = Fix("host", "sudo dmesg | grep -iE 'nvrm|nvidia' | tail -20", "the kernel's own words")


@rule(
    "host-without-gpu",
    "info",
    cause="this machine has no NVIDIA GPU to give to a container",
    symptom=f"{toolkit.NO_DRIVER_FOR_GPU}, {toolkit.NO_VENDOR} on a machine without an NVIDIA GPU, with one by AMD or"
    " Intel, or on a Mac.",
    fixes=(
        Fix("compose", "make up", "it starts on the CPU by itself"),
        CPU,
        Fix("docker", "docker run ...", "without --gpus"),
        Fix("podman", "podman run ...", "without --gpus and --device"),
    ),
)
def without_gpu(facts: HostFacts) -> Found | None:
    """No NVIDIA GPU on the PCI bus, no NVIDIA kernel module, no /dev/dxg, and nvidia-smi lists none."""
    return found("no NVIDIA GPU on the PCI bus, no NVIDIA driver") if facts.system and not facts.gpu_here else None


@rule(
    "host-driver-mismatch",
    "fatal",
    cause="the host's NVIDIA driver was updated, and the old kernel module is still loaded",
    symptom="`Driver/library version mismatch`, from nvidia-smi or as nvidia-container-cli: initialization error: nvml"
    " error.",
    fixes=(Fix("host", "sudo reboot", "loads the module of the new version"),),
)
def driver_mismatch(facts: HostFacts) -> Found | None:
    """The host's own nvidia-smi says so."""
    return found(facts.smi_error) if "library version mismatch" in facts.smi_error else None


@rule(
    "host-driver-failed",
    "fatal",
    cause="the host's own nvidia-smi fails, so no container can use the GPU either",
    symptom="`NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver`, `No devices were found`,"
    " `nvidia-container-cli: initialization error: nvml error: driver not loaded`, `nvidia-container-cli:"
    " initialization error: load library failed: libnvidia-ml.so.1`, `nvidia-container-cli: initialization error:"
    " cuda error`, `nvidia-container-cli: detection error`.",
    fixes=(
        Fix("host", "nvidia-smi", "until it lists the GPU"),
        KERNEL_LOG,
        Fix("host", "sudo ubuntu-drivers install && sudo reboot", "on Ubuntu, where no driver is installed"),
        Fix("wsl", "wsl --update", "in Windows, beside a recent NVIDIA driver for Windows"),
    ),
)
def driver_failed(facts: HostFacts) -> Found | None:
    """nvidia-smi is there and fails, or hangs for 30 s, on a host with a GPU. A mismatch has its own rule."""
    if not facts.smi_error or not facts.gpu_here or driver_mismatch(facts):
        return None
    return found(facts.smi_error)


@rule(
    "gpu-too-old-for-image",
    "fatal",
    cause=f"{IMAGE} has no kernels for the GPUs of this machine, which are too old for it",
    symptom="The container starts, and torch says `no kernel image is available for execution on the device`.",
    fixes=(OTHER, CPU),
)
def gpu_too_old(facts: HostFacts) -> Found | None:
    """The compute capability of every GPU is below 7.5, the oldest that torch is built for with CUDA 13. Unknown where
    nvidia-smi does not tell it, and not asked on a Jetson, which has images of its own.
    """
    known = [gpu.capability for gpu in facts.gpus]
    if facts.platform.tegra or not known or any(not gpu or gpu >= CURRENT.oldest for gpu in known):
        return None
    evidence = (f"{gpu.name}: compute capability {'.'.join(map(str, gpu.capability))}" for gpu in facts.gpus)
    return _with_variant(facts, gpu_too_old.fixes, *evidence)


@rule(
    "driver-too-old-for-image",
    "fatal",
    cause=f"the NVIDIA driver is too old for {IMAGE}: its CUDA {CURRENT.cuda} needs driver {CURRENT.driver} or newer",
    symptom="`nvidia-container-cli: requirement error: unsatisfied condition: cuda>=`, `unsatisfied condition:"
    " driver>=`, `please update your driver to a newer version, or use an earlier cuda container`; or the container"
    " starts, and torch says `The NVIDIA driver on your system is too old`.",
    fixes=(
        OTHER,
        Fix(
            "host",
            f"sudo apt-get install -y nvidia-driver-{CURRENT.driver} && sudo reboot",
            "on Ubuntu: a newer driver",
        ),
        Fix("wsl", "wsl --update", f"in Windows, after NVIDIA's driver {CURRENT.driver} or newer for Windows"),
    ),
)
def driver_too_old(facts: HostFacts) -> Found | None:
    """The driver's branch is below the first one that serves the image's CUDA major. Minor versions do not matter, nor
    does a driver that is newer.
    """
    if CURRENT.served_by(facts) or facts.platform.tegra:
        return None
    return _with_variant(facts, driver_too_old.fixes, f"the driver is {facts.driver}")


def _with_variant(facts: HostFacts, fixes: tuple[Fix, ...], *evidence: str) -> Found:
    """The first of `fixes` is to take another variant: it stays where one fits both driver and GPU."""
    fits = next((each for each in VARIANTS if each.runs_on(facts) and each.served_by(facts)), None)
    if fits is None:
        return found(*evidence, fixes=fixes[1:])
    fitting = f"{fits.tag} is built for CUDA {fits.cuda}, which driver {fits.driver} and newer serve"
    return found(*evidence, fitting, fixes=fixes, variant=fits.tag)


@rule(
    "driver-files-in-image",
    "fatal",
    cause="the image has files of an NVIDIA driver of its own, where the toolkit wants to put the host's",
    symptom="`nvidia-container-cli: mount error: file creation failed: <path>/libnvidia-ml.so.1: file exists`,"
    " `file creation failed: <path>/libcuda.so.1: file exists`, often in WSL2.",
    fixes=(
        Fix("docker", "docker run --rm --entrypoint sh <image> -c 'ls /usr/lib/x86_64-linux-gnu/lib{cuda,nvidia-}*'"),
        Fix(
            "docker",
            "RUN rm -f /usr/lib/*-linux-gnu/libcuda.so* /usr/lib/*-linux-gnu/libnvidia-*.so*",
            "in its Dockerfile",
        ),
        Fix("host", "make image", "this project's image has none: a test holds it"),
    ),
)
def files_in_image(facts: HostFacts) -> Found | None:
    """Only the pasted message tells: such an image was built, or committed, in a container that had the GPU."""
    return _pasted(files_in_image, facts)


@rule(
    "image-not-built",
    "fatal",
    cause="there is no image of that name on this machine, and none can be pulled under it",
    symptom="`pull access denied for pytorch-cuda-rl`, `pytorch-cuda-rl:<tag>: not found`, `No such image:"
    " pytorch-cuda-rl`.",
    fixes=(Fix("host", "make image", "builds the current variant; make up does so by itself"),),
)
def not_built(facts: HostFacts) -> Found | None:
    """Only the pasted message tells, unless the image has been built since."""
    return None if facts.docker.image else _pasted(not_built, facts)


def _pasted(asked: Rule[HostFacts], facts: HostFacts) -> Found | None:
    return found("the message you gave says so") if mentions(asked, facts.error) else None


BY_MESSAGE = (files_in_image, not_built)
RULES: tuple[Rule[HostFacts], ...] = (
    *engine.ANSWERS,
    without_gpu,
    driver_mismatch,
    driver_failed,
    *toolkit.RULES,
    gpu_too_old,
    driver_too_old,
    *engine.BESIDE,
    *BY_MESSAGE,
)
_WAY_TO_THE_GPU = (driver_mismatch, driver_failed, *toolkit.RULES, gpu_too_old, driver_too_old)
DOUBT = "your message is one of its signs; nothing else that could be seen on this machine says so"
_RANK = {"fatal": 0, "degraded": 1, "info": 2}


def judge(facts: HostFacts) -> list[Finding]:
    """All findings, the one for the headline first: where a message was pasted, the one that explains it."""
    findings = _until_fatal(rule(facts) for rule in engine.ANSWERS)
    if not facts.docker.elsewhere:
        findings += _until_fatal(_on_the_way(facts))
    findings += [finding for rule in (*engine.BESIDE, *BY_MESSAGE) if (finding := rule(facts))]
    findings.sort(key=lambda finding: _RANK[finding.severity])
    meant = candidates(facts.error)
    explained = [finding for rule in meant if (finding := rule(facts))]
    if explained:
        return explained + [finding for finding in findings if finding not in explained]
    findings += [
        Finding(rule.id, rule.severity, rule.cause, (DOUBT,), rule.fixes) for rule in meant if rule not in BY_MESSAGE
    ]
    return sorted(findings, key=lambda finding: _RANK[finding.severity])


def candidates(error: str) -> list[Rule[HostFacts]]:
    """The rules whose symptom is in the pasted text, the one with the longest message first."""
    return sorted((rule for rule in RULES if mentions(rule, error)), key=lambda rule: -mentions(rule, error))


def mentions(asked: Rule[HostFacts], error: str) -> int:
    """How many letters of the text are a message of the rule's symptom, where messages stand in backquotes; 0: none is.

    Letters and digits only are compared, so that quotes, escapes and broken lines do not matter; `<words>` match
    anything.
    """
    text = _letters(error)
    patterns = [
        ".{0,120}?".join(map(_letters, re.split("<.*?>", said))) for said in re.findall("`(.*?)`", asked.symptom)
    ]
    hits = [hit for pattern in patterns if (hit := re.search(pattern, text))]
    return max((len(hit.group()) for hit in hits), default=0)


def _letters(text: str) -> str:
    return "".join(re.findall("[a-z0-9]", text.lower()))


def _on_the_way(facts: HostFacts) -> Iterator[Finding | None]:
    """From the GPU to the container, in the order in which one failure brings about the next."""
    if absent := without_gpu(facts):
        yield absent
        return
    works = DriverApi(ended="ok", init=0, count=len(facts.gpus)) if facts.gpus else DriverApi()
    machine = Facts(platform=facts.platform, kernel_driver=facts.kernel_driver, pci=facts.pci, driver_api=works)
    # no_gpu is a container's word for what without_gpu says of the host.
    yield from (each(machine) for each in host.RULES if each is not host.no_gpu)
    yield from (each(facts) for each in _WAY_TO_THE_GPU)


def _until_fatal(said: Iterable[Finding | None]) -> list[Finding]:
    findings = []
    for finding in said:
        if finding:
            findings.append(finding)
            if finding.severity == "fatal":
                break
    return findings
