"""torch against the GPU: built for CUDA at all, and with kernels for this GPU's architecture."""

import re

from rl.doctor.rules.driver import WHEEL_FOR, WHEELS, major
from rl.doctor.rules.rule import Fix, Found, Severity, found, rule
from rl.doctor.rules.torch_build import REINSTALL, wheel
from rl.doctor.schema import Facts, TorchGpu

Capability = tuple[int, int]

# Which variant to propose, never what the torch in here has: image → oldest capability, newest major one.
VARIANTS: dict[str, tuple[Capability, int]] = {"torch2.13": ((7, 5), 12), "torch2.7": ((5, 0), 9)}
# Jetson's and Drive's GPUs: code for them runs on no other, and other code not on them (torch.cuda.DEVICE_REQUIREMENT).
TEGRA = ((5, 3), (6, 2), (7, 2), (8, 7), (10, 1))
FROM_TORCH = r"pip install torch==[\w.+]+ --index-url https://download\.pytorch\.org/whl/(?:nightly/)?cu(\d{3})\b"
JETSON = Fix("host", "jetson-containers run $(autotag l4t-pytorch)", "torch for Jetson, by dusty-nv/jetson-containers")
IMAGES = (
    Fix("docker", "docker run --gpus all ... pytorch-cuda-rl:<variant>", "<why>"),
    Fix("podman", "podman run --device nvidia.com/gpu=all ... pytorch-cuda-rl:<variant>", "<why>"),
    Fix("kubernetes", "image: pytorch-cuda-rl:<variant>", "<why>"),
)
ON_CPU = Fix("inside", "export CUDA_VISIBLE_DEVICES=", "to train on the CPU")
OTHER_TORCH = Fix("inside", "<wheel>", "without changing the image")


@rule(
    "torch-not-for-jetson",
    "fatal",
    cause="torch <version> is not built for the GPU of a Jetson",
    symptom="On a Jetson: Torch not compiled with CUDA enabled; no kernel image is available for execution.",
    fixes=(JETSON,),
)
def not_for_jetson(facts: Facts) -> Found | None:
    """On a Jetson, torch.version.cuda is None, or its kernels are for none of the GPUs."""
    version, gpus = facts.torch_version, _gpus(facts)
    if not facts.platform.tegra or version is None:
        return None
    if facts.torch_cuda is None:
        return found("torch.version.cuda is None", version=version)
    if not gpus or len(_unsupported(facts)) < len(gpus):
        return None
    return found(*_evidence(facts), version=version)


@rule(
    "torch-cpu-build",
    "fatal",
    cause="torch <version> is a CPU-only build, although a GPU is here",
    symptom="Torch not compiled with CUDA enabled.",
    fixes=(REINSTALL,),
)
def cpu_build(facts: Facts) -> Found | None:
    """torch.version.cuda is None, and a GPU can be reached. Right in an image for the CPU."""
    reachable = facts.driver_usable or any(node.opened == "ok" for node in facts.gpu_nodes)
    version, hip = facts.torch_version, facts.torch.hip or facts.torch_build.hip
    if not reachable or version is None or facts.torch_cuda or hip:
        return None
    return found("torch.version.cuda is None", version=version, wheel=wheel(facts))


@rule(
    "gpu-too-new-for-torch",
    "fatal",
    cause="<name> is newer than torch <version>, which has no kernels for it",
    symptom="NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch "
    "installation; no kernel image is available for execution on the device. is_available() is True.",
    fixes=(*IMAGES, OTHER_TORCH),
)
def too_new(facts: Facts) -> Found | None:
    """No GPU's compute capability is among the architectures that torch says it was compiled for, and the current one
    is newer than all of them. An sm_86 serves 8.9, PTX serves all that is newer; a GPU that has just added numbers is
    fine, whatever the list says.
    """
    gpu = _the_unsupported_one(facts)
    if gpu is None or not _is_newer(gpu, facts):
        return None
    return _found(facts, gpu)


@rule(
    "gpu-too-old-for-torch",
    "fatal",
    cause="torch <version> has no kernels for <name> any more: it is too old",
    symptom="Found GPU0 ... which is of compute capability (CC) 6.1; NVIDIA GeForce GTX 1080 with CUDA capability "
    "sm_61 is not compatible with the current PyTorch installation; no kernel image is available for execution.",
    fixes=(*IMAGES, OTHER_TORCH),
)
def too_old(facts: Facts) -> Found | None:
    """As for a GPU that is too new; but torch has kernels for newer architectures than the current GPU's."""
    gpu = _the_unsupported_one(facts)
    if gpu is None or _is_newer(gpu, facts):
        return None
    return _found(facts, gpu)


@rule(
    "some-gpus-without-kernels",
    "degraded",
    cause="torch <version> has kernels for some of the GPUs only",
    symptom="no kernel image is available for execution on the device, on one of several GPUs.",
    fixes=(Fix("inside", "export CUDA_VISIBLE_DEVICES=<good>"),),
)
def some_unsupported(facts: Facts) -> Found | None:
    """As for a GPU that is too new or too old, for one of several; fatal where it is the one that torch takes."""
    bad, gpus = [index for index, _ in _unsupported(facts)], _gpus(facts)
    if not bad or len(bad) == len(gpus):
        return None
    good = [index for index, _ in gpus if index not in bad]
    given = facts.environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    words = [given[index].strip() if index < len(given) and given[0] else str(index) for index in good]
    severity: Severity | None = "fatal" if facts.torch.current_device in bad else None
    return found(*_evidence(facts), severity=severity, version=facts.torch_version, good=",".join(words))


def _gpus(facts: Facts) -> list[tuple[int, TorchGpu]]:
    """Those whose compute capability is known."""
    return [(i, gpu) for i, gpu in enumerate(facts.torch.gpus) if len(gpu.capability) == 2 and min(gpu.capability) >= 0]


def _flags(facts: Facts) -> list[tuple[str, Capability, str]]:
    """sm_90a → ("sm", (9, 0), "a")."""
    read = re.findall(r"\b(sm|compute)_([0-9]{2,3})([af]?)\b", facts.torch.arch_flags or "")
    return [(kind, (int(number[:-1]), int(number[-1])), suffix) for kind, number, suffix in read]


def _is_newer(gpu: TorchGpu, facts: Facts) -> bool:
    """Than all that torch has kernels for, or at least than those of its own major version: sm_100a is not for 10.3."""
    codes = [code for _, code, _ in _flags(facts)]
    return gpu.capability > max(codes) or any(code[0] == gpu.capability[0] and code < gpu.capability for code in codes)


def _runs(kind: str, code: Capability, suffix: str, gpu: tuple[int, ...], cuda: str | None) -> bool:
    """Whether code of this architecture runs on that GPU; torch.cuda.DEVICE_REQUIREMENT and NVIDIA's programming
    guide: machine code on the same major and a newer minor one, sm_90a on 9.0 alone, sm_100f within its family, and
    PTX (compute_90) on all that is newer.
    """
    if gpu == code:
        return True
    if suffix == "a":
        return False
    if kind == "compute" and not suffix:
        return gpu > code
    if code in TEGRA or gpu in TEGRA:
        orin = gpu == (8, 7) and code in ((8, 0), (8, 6)) and _version(cuda) >= (13, 2)
        return orin or (code == (10, 1) and gpu == (11, 0))  # 10.1 was given another number
    return gpu[0] == code[0] and gpu[1] > code[1]


def _unsupported(facts: Facts) -> list[tuple[int, TorchGpu]]:
    run, flags = facts.torch, _flags(facts)
    if not flags:
        return []
    added = run.ended == "ok" and run.kernel_error is None  # the last thing that the probe does
    return [
        (index, gpu)
        for index, gpu in _gpus(facts)
        if not (added and index == run.current_device)
        and not any(_runs(*flag, gpu.capability, facts.torch_cuda) for flag in flags)
    ]


def _the_unsupported_one(facts: Facts) -> TorchGpu | None:
    """The current GPU, where torch has kernels for none."""
    bad, gpus = dict(_unsupported(facts)), _gpus(facts)
    if len(bad) < len(gpus) or facts.platform.tegra:
        return None
    return bad.get(facts.torch.current_device or 0)


def _evidence(facts: Facts) -> list[str]:
    gpus = [f"GPU {i}, {gpu.name}, has compute capability {_text(gpu)}" for i, gpu in _unsupported(facts)]
    return [*gpus, f"this torch has kernels for: {facts.torch.arch_flags}"]


def _text(gpu: TorchGpu) -> str:
    return ".".join(map(str, gpu.capability))


def _found(facts: Facts, gpu: TorchGpu) -> Found:
    """With the variant of this image and the wheel that have kernels for it."""
    running = "torch" + ".".join((facts.torch_version or "").split(".")[:2])
    fits = [name for name, (low, high) in VARIANTS.items() if gpu.capability >= low and gpu.capability[0] <= high]
    fits.sort(key=lambda name: name == running)
    version, name, wheel_for_it = facts.torch_version, gpu.name or "this GPU", _wheel(facts, gpu)
    if not fits:
        fixes = (OTHER_TORCH, ON_CPU) if _is_newer(gpu, facts) else (ON_CPU,)
        return found(*_evidence(facts), fixes=fixes, version=version, name=name, wheel=wheel_for_it)
    low, high = VARIANTS[fits[0]]
    why = f"it has kernels for compute capability {low[0]}.{low[1]} to {high}.x"
    if fits[0] == "torch2.13" and (facts.driver_api.version or 13000) < 13000:
        why += ", and needs driver 580 or newer on the host"
    if fits[0] == "torch2.7":
        why += ", as torch2.6 has"
    return found(*_evidence(facts), version=version, name=name, wheel=wheel_for_it, variant=fits[0], why=why)


def _wheel(facts: Facts, gpu: TorchGpu) -> str:
    """The newest that torch itself names and the driver serves, or else the usual one for such a GPU."""
    served = (facts.driver_api.version or 13000) // 1000
    hints = [(int(hint[1]), hint[0]) for text in facts.torch.warnings for hint in re.finditer(FROM_TORCH, text)]
    fitting = [hint for hint in hints if hint[0] // 10 <= served]
    if fitting:  # pip takes the same version for installed already, whatever it was built for
        return max(fitting)[1].replace("pip install", "pip install --force-reinstall")
    if gpu.capability < (7, 5):
        return WHEEL_FOR[12]
    if served < 13:
        return f"PIP_CONSTRAINT= pip install --force-reinstall 'torch<2.12' --index-url {WHEELS}/cu128"
    return WHEEL_FOR[13]


def _version(cuda: str | None) -> tuple[int, int]:
    first, _, second = (cuda or "").partition(".")
    return major(first) or 0, major(second) or 0


FIT = (not_for_jetson, cpu_build, too_new, too_old, some_unsupported)
