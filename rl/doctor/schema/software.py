"""Facts of the software in here: torch, the packages beside it, what torch.compile and rendering need."""

from dataclasses import dataclass

from rl.doctor.schema.driver import Probe


@dataclass(frozen=True)
class TorchBuild:
    """The torch that is installed, read from its files: nothing is imported."""

    installed: bool = False
    version: str | None = None
    cuda: str | None = None  # "13.0"; None: not built for CUDA
    hip: str | None = None
    copies: tuple[str, ...] = ()  # "2.13.0 in FOLDER", in the order of Python's search; the first is imported
    image: str | None = None  # the version that the image was built with


@dataclass(frozen=True)
class TorchGpu:
    """One GPU as torch sees it."""

    name: str = ""
    uuid: str = ""
    capability: tuple[int, ...] = ()  # (9, 0)


@dataclass(frozen=True)
class TorchRun(Probe):
    """What torch itself says, imported in a child."""

    error: str | None = None
    missing: bool = False  # the error was that there is no torch
    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    arch_flags: str | None = None  # the GPU architectures this build has kernels for: "sm_80 sm_90 compute_90"
    available: bool | None = None
    count: int | None = None
    current_device: int | None = None
    names: tuple[str, ...] = ()
    gpus: tuple[TorchGpu, ...] = ()
    warnings: tuple[str, ...] = ()
    kernel_error: str | None = None  # a one-line sum on the current device failed
    cudnn_error: str | None = None  # torch.backends.cudnn.version() raises
    cudnn_path: str | None = None  # the libcudnn that was loaded


@dataclass(frozen=True)
class Tools:
    """What torch.compile and rendering need, and the packages beside torch; None: not looked for."""

    compiler: str | None = None  # path of the C compiler that Triton takes, "" where there is none
    cpp_compiler: str | None = None  # path of the C++ compiler that torch.compile takes on the CPU, "": none
    python_headers: bool | None = None
    libcuda: bool | None = None  # where Triton looks for libcuda.so.1: the loader's cache, LD_LIBRARY_PATH
    cache: str = ""  # folder of torch.compile's caches
    cache_error: str | None = None  # writing there fails; "" where it works
    cache_noexec: bool = False
    cache_nfs: bool = False
    egl_library: str | None = None  # why the loader would not find libEGL_nvidia.so.0, "" where it would
    egl_vendor: bool | None = None  # a glvnd file names NVIDIA's EGL
    nvml_packages: tuple[str, ...] = ()  # "nvidia-ml-py 13.595", "pynvml 11.5"


@dataclass(frozen=True)
class Kernel:
    """A notebook kernel for Python that is not the doctor's own interpreter."""

    name: str = ""
    python: str = ""  # its interpreter
    found: bool = True  # that file is there
    torch: bool | None = None  # torch lies in one of its folders of packages; None: not known
