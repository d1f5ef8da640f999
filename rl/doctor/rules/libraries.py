"""Another libcuda than the driver's own: a stub, cuda-compat, a left-over; and libraries that stand in front of it."""

import re
from typing import Any

from rl.doctor.rules.driver import NEWER_DRIVER, OTHER_IMAGE, age, age_words, image, major
from rl.doctor.rules.rule import Fix, Found, found, rule
from rl.doctor.schema import Facts

SHARING_LAYER = re.compile(r"vgpu|hami|cuda-control|gpushare|nvshare|gemhook", re.IGNORECASE)
# NVIDIA's boards for data centers, on which alone cuda-compat works; not Quadro T1000, RTX A2000, GeForce …
DATA_CENTER = re.compile(
    r"Tesla|\b(A(2|10G?|16|30|40|100|800)|[BH][128]00|H20|B300|G[BH][23]00|L(2|4|20|40)S?|[TP]4|P(40|100)|V100S?)\b"
)
LEAVE_OUT = Fix("inside", "<without>", "in this shell; where it is set for good, take '<element>' out there")
LOOK = Fix("inside", "ldconfig -p | grep -E 'libcuda|libnvidia-ml'", "to see what else the loader finds")
REMOVE_COMPAT = Fix("inside", "rm -rf <compat> && ldconfig", "as root, where LD_LIBRARY_PATH does not name it")
NEW_CONTAINER = (
    Fix("docker", "docker rm -f <container> && docker run --gpus all ...", "a new container gets the driver's own"),
    Fix("podman", "podman rm -f <container> && podman run --device nvidia.com/gpu=all ..."),
)


@rule(
    "gpu-sharing-layer",
    "info",
    cause="a GPU-sharing layer stands between CUDA and the driver: <library>",
    symptom="/tmp/cuda-control/src/loader.c: can't find library libcuda.so; less GPU memory than the card has.",
    fixes=(
        Fix("kubernetes", "kubectl exec -it <pod> -- rl doctor", "if that works, only this session lost its variables"),
        Fix("inside", "cat /etc/ld.so.preload", "what the platform put there; ask whoever runs it"),
    ),
)
def sharing_layer(facts: Facts) -> Found | None:
    """LD_PRELOAD or /etc/ld.so.preload names a library of vGPU, HAMi, cuda-control, nvshare or the like. It is named
    without blame, unless CUDA does not start and the error names it too.
    """
    layers = [library for library in facts.libraries.preload if SHARING_LAYER.search(library)]
    if not layers:
        return None
    said = [line for line in (facts.driver_api.load_error or facts.driver_api.stderr).splitlines() if line.strip()]
    blamed = [line for line in said if SHARING_LAYER.search(line)]
    fatal = bool(blamed) and not facts.usable
    evidence = (f"preloaded: {library}" for library in layers)
    return found(*evidence, *(blamed[-2:] if fatal else ()), severity="fatal" if fatal else None, library=layers[0])


@rule(
    "stub-library",
    "fatal",
    cause="a stub, which is there for linking only, was loaded in place of the driver's <library>",
    symptom="CUDA driver is a stub library (CUDA error 34, CUDA_ERROR_STUB_LIBRARY).",
    fixes=(LEAVE_OUT, LOOK, *NEW_CONTAINER),
)
def stub(facts: Facts) -> Found | None:
    """cuInit gives 34, or the library that does not work was loaded from a folder 'stubs'. Such a folder in
    LIBRARY_PATH, or in LD_LIBRARY_PATH behind the true library, does no harm.
    """
    api, nvml = facts.driver_api, facts.nvml
    unclear = not facts.usable and api.init not in range(802, 810)  # which a true driver gives, each for a reason
    if api.init == 34 or (_from("stubs", api.path) and unclear):
        evidence = [f"cuInit gives {api.init} ({api.init_name})"] if api.init else []
        evidence += _origin(facts, "stubs", api.path)
        return found(*evidence, fixes=_fixes(facts, stub.fixes), **_words(facts, "stubs"), library="libcuda.so.1")
    if _from("stubs", nvml.path) and nvml.init:
        evidence = [f"nvmlInit gives {nvml.init} ({nvml.init_name})", *_origin(facts, "stubs", nvml.path)]
        fixes = _fixes(facts, stub.fixes)
        words = _words(facts, "stubs")
        return found(*evidence, severity="degraded", fixes=fixes, **words, library="libnvidia-ml.so.1")
    return None


@rule(
    "compat-unsupported",
    "fatal",
    cause="cuda-compat was loaded, which works on NVIDIA's data-center GPUs only",
    symptom="forward compatibility was attempted on non supported HW (CUDA error 804).",
    fixes=(
        LEAVE_OUT,
        REMOVE_COMPAT,
        Fix(
            "host",
            "sudo nvidia-ctk config --set nvidia-container-runtime.modes.legacy.cuda-compat-mode=disabled --in-place",
            "if it is the container toolkit (1.17.5 or newer) that puts cuda-compat first",
        ),
        *NEWER_DRIVER,
        *OTHER_IMAGE,
    ),
)
def compat_unsupported(facts: Facts) -> Found | None:
    """cuInit gives 804. On a data-center GPU the same library works, and nothing is said."""
    api = facts.driver_api
    if api.init != 804:
        return None
    evidence = [f"cuInit gives 804 ({api.init_name})", *_origin(facts, "compat", api.path)]
    evidence += [f"the host's driver is {facts.driver_version}"] if facts.driver_version else []
    evidence += _alone(facts)
    fixes = _fixes(facts, compat_unsupported.fixes)
    return found(*evidence, fixes=fixes, **_words(facts, "compat"), **age_words(facts))


@rule(
    "libcuda-mismatch",
    "fatal",
    cause="the libcuda.so.1 that was loaded is not that of the host's driver <driver>",
    symptom="system has unsupported display driver / cuda driver combination (CUDA error 803).",
    fixes=(LEAVE_OUT, REMOVE_COMPAT, LOOK, *NEW_CONTAINER),
)
def mismatch(facts: Facts) -> Found | None:
    """cuInit gives 803, and there is another library to take: cuInit succeeds without LD_LIBRARY_PATH, or the one that
    was loaded is cuda-compat's, or not the kernel driver's version while another one in the order of search is. Where
    NVML does not fit the kernel driver either (18), all of the driver was exchanged.
    """
    api, files = facts.driver_api, facts.libraries.libcuda
    if api.init != 803 or facts.nvml.init == 18:
        return None
    version = facts.kernel_driver.version
    fitting = [file for file in files.values() if version and file.endswith(f".so.{version}") and file != api.path]
    if facts.driver_api_alone.init != 0 and not _from("compat", api.path) and not fitting:
        return None
    evidence = [f"cuInit gives 803 ({api.init_name})", *_origin(facts, "compat", api.path), *_alone(facts)]
    evidence += [f"in the order of search: {path} is {file}" for path, file in files.items()]
    driver = facts.driver_version or "(version unknown)"
    return found(*evidence, fixes=_fixes(facts, mismatch.fixes), **_words(facts, "compat"), driver=driver)


@rule(
    "compat-not-loaded",
    "fatal",
    cause="the driver is too old for this torch, and cuda-compat, made for that and here, is not loaded",
    symptom="The NVIDIA driver on your system is too old: since container toolkit 1.17.4, in an image that worked.",
    fixes=(
        Fix("inside", "export LD_LIBRARY_PATH=<compat>", "in this shell"),
        Fix("docker", "docker run --gpus all -e LD_LIBRARY_PATH=<compat> ..."),
        Fix("podman", "podman run --device nvidia.com/gpu=all -e LD_LIBRARY_PATH=<compat> ..."),
        Fix("kubernetes", "env: [{name: LD_LIBRARY_PATH, value: '<compat>'}]"),
        Fix(
            "host",
            "sudo nvidia-ctk config --set nvidia-container-runtime.modes.legacy.cuda-compat-mode=ldconfig --in-place",
            "with nvidia-container-toolkit 1.17.5 or newer, for all containers",
        ),
        *NEWER_DRIVER,
        *OTHER_IMAGE,
    ),
)
def compat_not_loaded(facts: Facts) -> Found | None:
    """The driver's CUDA major is below that of torch, all GPUs are data-center boards, and a folder cuda-compat of
    torch's CUDA major lies in the image without being the one that was loaded. On other boards it would give 804.
    """
    evidence, compat = age(facts), facts.libraries.compat
    names = [gpu.name for gpu in facts.nvml.gpus]
    boards = names and all(DATA_CENTER.search(name) for name in names)
    if not evidence or not compat or not boards or _from("compat", facts.driver_api.path):
        return None
    serves = re.search(r"cuda-(\d{1,3})\b", compat)
    if serves and int(serves[1]) < (major(facts.torch_cuda) or 0):
        return None
    evidence += [f"{compat}/libcuda.so.1 is there, loaded was {facts.driver_api.path or 'another one'}"]
    return found(*evidence, fixes=_fixes(facts, compat_not_loaded.fixes), compat=compat, **age_words(facts))


def _from(folder: str, path: str | None) -> bool:
    return f"/{folder}/" in (path or "")


def _elements(facts: Facts) -> list[str]:
    return [element for element in facts.environment.get("LD_LIBRARY_PATH", "").split(":") if element]


def _blamed(facts: Facts, word: str) -> list[str]:
    """The elements of LD_LIBRARY_PATH that give the library that was loaded, or that are called by `word`."""
    loaded = facts.driver_api.path
    files = facts.libraries.libcuda
    gives = [one for one in _elements(facts) if loaded and files.get(f"{one.rstrip('/')}/libcuda.so.1") == loaded]
    return gives or [one for one in _elements(facts) if word in one]


def _origin(facts: Facts, word: str, path: str | None) -> list[str]:
    """Evidence of where the library comes from, and of what put its folder into LD_LIBRARY_PATH."""
    evidence = [f"loaded was {path}"] if path else []
    for element in _blamed(facts, word):
        setters = [f for f, value in facts.libraries.environment_files.items() if element in value]
        if element in facts.init_environment.get("LD_LIBRARY_PATH", "").split(":"):
            setters.append("the container's own environment (its image, or -e)")
        evidence.append(f"LD_LIBRARY_PATH names {element}" + (f", set by {', '.join(setters)}" if setters else ""))
    return evidence


def _alone(facts: Facts) -> list[str]:
    return ["without LD_LIBRARY_PATH, cuInit succeeds"] if facts.driver_api_alone.init == 0 else []


def _fixes(facts: Facts, fixes: tuple[Fix, ...]) -> tuple[Fix, ...]:
    """Those that can be filled in: another image where one fits, LD_LIBRARY_PATH where it is set."""
    useless = (*(() if image(facts) else OTHER_IMAGE), *(() if _elements(facts) else (LEAVE_OUT,)))
    return tuple(fix for fix in fixes if fix not in useless)


def _words(facts: Facts, word: str) -> dict[str, Any]:
    """What fills the words in `LEAVE_OUT` and `REMOVE_COMPAT`."""
    blamed = _blamed(facts, word)
    rest = ":".join(element for element in _elements(facts) if element not in blamed)
    return {
        "element": blamed[0] if blamed else word,
        "without": f"export LD_LIBRARY_PATH={rest}" if rest else "unset LD_LIBRARY_PATH",
        "compat": facts.libraries.compat or "/usr/local/cuda/compat",
    }


RULES = (stub, compat_unsupported, mismatch, compat_not_loaded)  # sharing_layer is asked before any call is judged
