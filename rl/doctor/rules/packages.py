"""Packages and libraries that stand in the way of torch's own: another torch, cuDNN, the CUDA libraries, pynvml."""

from rl.doctor.rules import driver, torch_fit
from rl.doctor.rules.rule import Fix, Found, Severity, found, rule
from rl.doctor.schema import Facts

UNCOVER = Fix("inside", "pip uninstall -y torch", "the copy that is imported; the next one then is")


@rule(
    "cuda-libraries-shadowed",
    "fatal",
    cause="LD_LIBRARY_PATH puts other CUDA libraries before those of torch",
    symptom="ImportError: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12; libcusparse, "
    "libcudnn or libnccl in an error of `import torch`.",
    fixes=(
        Fix("inside", "unset LD_LIBRARY_PATH", "and take it out of the file that sets it"),
        Fix("docker", "docker run -e LD_LIBRARY_PATH= ..."),
    ),
)
def libraries_shadowed(facts: Facts) -> Found | None:
    """Importing torch fails, and in a second process without LD_LIBRARY_PATH it does not."""
    run, alone = facts.torch, facts.torch_alone
    failed = run.error is not None or run.ended.startswith("signal")
    if not failed or alone.ended != "ok" or alone.error is not None:
        return None
    setters = [f"{file} sets it to {value}" for file, value in sorted(facts.libraries.environment_files.items())]
    return found(
        run.error or f"'{run.step}' ended the process: {run.ended}",
        f"without LD_LIBRARY_PATH={facts.environment.get('LD_LIBRARY_PATH', '')} torch can be imported",
        *setters,
    )


@rule(
    "cudnn-mismatch",
    "degraded",
    cause="another cuDNN than that of torch is loaded, so convolutions fail",
    symptom="RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (9, 20, 0) but found runtime "
    "version (8, 9, 7).",
    fixes=(Fix("inside", "<mend>"),),
)
def cudnn_mismatch(facts: Facts) -> Found | None:
    """torch.backends.cudnn.version() raises: another major version, or an older minor one. A newer minor one is fine,
    wherever it lies.
    """
    error, path = facts.torch.cudnn_error, facts.torch.cudnn_path
    if error is None:
        return None
    given = [folder for folder in facts.environment.get("LD_LIBRARY_PATH", "").split(":") if folder]
    others = [folder for folder in given if not (path or "").startswith(folder.rstrip("/") + "/")]
    mend = f"export LD_LIBRARY_PATH={':'.join(others)}" if others else "unset LD_LIBRARY_PATH"
    if given == others:  # it came in another way
        mend = f"pip install --force-reinstall torch=={(facts.torch_version or '').split('+')[0]}"
    return found(error, *([f"loaded: {path}"] if path else []), mend=mend)


@rule(
    "torch-replaced",
    "info",
    cause="torch <version> is imported, while this image was built with <image>",
    symptom="A GPU that worked does no more since `pip install` of some other package brought a torch of its own.",
    fixes=(
        Fix("inside", "pip uninstall -y torch", "if it lies beside the image's own: that is then found again"),
        Fix("inside", "pip install --force-reinstall torch==<image>", "otherwise"),
    ),
)
def torch_replaced(facts: Facts) -> Found | None:
    """The version of the torch that is imported is not the one that the image recorded when it was built; build tags
    such as +cu130 do not count. No more than a note where it works: then it was wanted.
    """
    version, image = facts.torch_version, facts.torch_build.image
    if not version or not image or version.split("+")[0] == image.split("+")[0]:
        return None
    uncover, again = torch_replaced.fixes
    beside = any(copy.startswith(f"{image} in ") for copy in facts.torch_build.copies)
    severity: Severity | None = "degraded" if _torch_fails(facts) else None
    fixes = (uncover if beside else again,)
    return found(*facts.torch_build.copies, severity=severity, fixes=fixes, version=version, image=image)


@rule(
    "torch-twice",
    "info",
    cause="torch is installed <count> times; the first one is imported",
    symptom="`pip list` and `torch.__version__` differ; an update of torch changes nothing.",
    fixes=(UNCOVER,),
)
def torch_twice(facts: Facts) -> Found | None:
    """Several copies of torch on Python's search path, ~/.local and the user's own packages among them, or two of pip's
    records of it in one folder. No more than a note where it works.
    """
    copies = facts.torch_build.copies
    if len(copies) < 2 or torch_replaced(facts):
        return None
    return found(*copies, severity="degraded" if _torch_fails(facts) else None, count=len(copies))


@rule(
    "cuda-of-image-differs",
    "info",
    cause="torch is built for CUDA <torch>, and this image for CUDA <image>",
    symptom="nvcc, CUDA_VERSION and the image's name speak of another CUDA than torch.version.cuda.",
    fixes=(),
)
def cuda_of_image_differs(facts: Facts) -> Found | None:
    """The major versions of CUDA_VERSION, which NVIDIA's base images set, and of torch.version.cuda differ. The wheel
    brings its own CUDA libraries, so this matters for what is compiled in here; the driver counts for the rest.
    """
    image, torch = facts.environment.get("CUDA_VERSION"), facts.torch_cuda
    if facts.platform.engine is None or None in (driver.major(image), driver.major(torch)):
        return None
    if driver.major(image) == driver.major(torch):
        return None
    return found(f"CUDA_VERSION is {image}", torch=torch, image=image)


@rule(
    "pynvml-shadows",
    "info",
    cause="the old package <package> overwrites a module of nvidia-ml-py",
    symptom="The pynvml package is deprecated; NVML: Function Not Found in nvitop or gpustat.",
    fixes=(
        Fix(
            "inside",
            "pip uninstall -y pynvml && pip install --force-reinstall nvidia-ml-py",
            "both own the file pynvml.py",
        ),
    ),
)
def pynvml_shadows(facts: Facts) -> Found | None:
    """The package pynvml is there in a version below 12; from then on it only requires nvidia-ml-py."""
    for package in facts.tools.nvml_packages:
        name, _, version = package.partition(" ")
        if name == "pynvml" and (driver.major(version) or 12) < 12:
            return found(", ".join(facts.tools.nvml_packages), package=package)
    return None


@rule(
    "nvml-functions-unknown",
    "info",
    cause="nvidia-ml-py is newer than the driver, which lacks some of its functions",
    symptom="NVML: Function Not Found, NVMLLibraryMismatchError in nvitop or gpustat.",
    fixes=(Fix("inside", "pip install 'nvidia-ml-py<13'", "if some tool fails over it"),),
)
def nvml_functions_unknown(facts: Facts) -> Found | None:
    """The driver's libnvidia-ml.so.1 does not have a function that nvidia-ml-py asks for. No fault of the GPU."""
    functions = facts.nvml.unknown_functions
    return found(", ".join(functions)) if functions and facts.nvml.init == 0 else None


def _torch_fails(facts: Facts) -> bool:
    run = facts.torch
    fails = run.error is not None or run.ended not in ("ok", "not run")
    blind = facts.driver_usable and run.available is False
    return fails or blind or any(rule(facts) for rule in (*driver.RULES, *torch_fit.FIT))


IMPORT = (libraries_shadowed,)
RULES = (
    cudnn_mismatch,
    torch_replaced,
    torch_twice,
    cuda_of_image_differs,
    pynvml_shadows,
    nvml_functions_unknown,
)
