"""The child's side: `python -P probe.py PROBE` asks one subject and writes what it learns, a JSON object per line.

It runs as a lone script, so that it needs nothing but the standard library (and the package it asks about). Each step
is announced before it is taken: when a call never returns, the last line says which.
"""

import ctypes
import errno
import json
import os
import runpy
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Libraries may print; what they print goes to stderr, and the pipe to the parent carries facts only.
CHANNEL = os.dup(1)
os.dup2(2, 1)


def say(**facts: object) -> None:
    """Send facts to the parent at once."""
    os.write(CHANNEL, json.dumps(facts).encode() + b"\n")


def nodes(root: str) -> None:
    """Open each node of a GPU for reading and writing, as the driver's libraries will."""
    say(uid=os.geteuid(), groups=sorted({os.getegid(), *os.getgroups()}))
    device_files = Path(root, "dev")
    found = [*sorted(device_files.glob("nvidia*")), *device_files.glob("nvmap")]
    # isdir, unlike Path.is_dir, is silent where the node cannot be looked at; nvidia-caps holds the nodes of MIG.
    say(found=[_opened(path) for path in found if not os.path.isdir(path)])
    say(render=[_opened(path) for path in sorted(device_files.glob("dri/renderD*"))])


def _opened(path: Path) -> dict[str, object]:
    say(step=f"open /dev/{path.name}")
    node: dict[str, object] = {"name": path.name}
    try:
        status = path.stat()
        mode = f"{status.st_mode & 0o7777:04o}"
        node |= {"mode": mode, "group": status.st_gid, "major": os.major(status.st_rdev)}
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        node["opened"] = "ok"
    except OSError as error:
        node["opened"] = errno.errorcode.get(error.errno or 0, str(error))
    return node


def driver_api() -> None:
    """Ask libcuda.so.1; the version comes first, since it needs no initialisation."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    say(mps_folder=folder if os.path.isdir(folder) else None)
    say(step="load libcuda.so.1")
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return say(load_error=str(error))
    say(path=_mapped("libcuda.so"), step="cuDriverGetVersion")
    number, name = ctypes.c_int(), ctypes.c_char_p()
    if library.cuDriverGetVersion(ctypes.byref(number)) == 0:
        say(version=number.value)
    say(step="cuInit")
    code = library.cuInit(0)
    library.cuGetErrorName(code, ctypes.byref(name))
    say(init=code, init_name=name.value.decode() if name.value else None)
    if code == 0:
        say(step="cuDeviceGetCount")
        if library.cuDeviceGetCount(ctypes.byref(number)) == 0:
            say(count=number.value)
    return None


def nvml() -> None:
    """Ask libnvidia-ml.so.1 through nvidia-ml-py."""
    say(step="load libnvidia-ml.so.1")
    try:  # pynvml hides the loader's words
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return say(load_error=str(error))
    say(path=_mapped("libnvidia-ml.so"), step="import pynvml")
    try:
        import pynvml
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the package is the answer
        return say(binding_error=_words(error))
    say(step="nvmlInit")
    began = time.monotonic()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:  # after this no other call may be trusted
        return say(init=error.value, init_name=str(error))
    say(init=0)
    asking = runpy.run_path(str(Path(__file__).with_name("ask_nvml.py")))["Nvml"](pynvml, say)
    say(driver_version=asking("nvmlSystemGetDriverVersion"))
    say(cuda_version=asking("nvmlSystemGetCudaDriverVersion_v2"))
    count = asking("nvmlDeviceGetCount") or 0
    say(count=count)
    handles = [asking.handle(index) for index in range(count)]  # the first use of a GPU: without persistence it is slow
    say(init_seconds=round(time.monotonic() - began, 3))
    gpus = []
    for handle in handles:
        gpus.append(asking.gpu(handle))
        say(gpus=gpus, unknown_functions=sorted(asking.unknown))
    return None


def torch() -> None:
    """Import torch, ask it about CUDA, and let the current device add two numbers."""
    say(step="import torch")
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a torn install raises anything
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        return say(error=_words(error), missing=missing)
    try:
        _ask_torch(torch)
    except Exception as error:  # noqa: BLE001
        say(error=_words(error))
    return None


def _ask_torch(torch: Any) -> None:  # noqa: ANN401 - whatever was importable under that name
    say(version=str(torch.__version__), cuda=torch.version.cuda, hip=getattr(torch.version, "hip", None))
    say(step="torch.cuda.is_available")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = bool(torch.cuda.is_available())
    say(
        available=available,
        warnings=[str(warning.message)[:1000] for warning in caught],
        step="torch.cuda.device_count",
    )
    count = int(torch.cuda.device_count())
    say(count=count, arch_flags=_ask(torch._C._cuda_getArchFlags) if torch.version.cuda else None)
    if not available:
        return
    say(step="torch.cuda.current_device")
    say(current_device=torch.cuda.current_device(), names=[torch.cuda.get_device_name(i) for i in range(count)])
    say(step="add two numbers on the GPU")
    try:
        total = float((torch.ones(2, device="cuda") + 1).sum())
        say(kernel_error=None if total == 4.0 else f"1 + 1 + 1 + 1 gave {total}")
    except Exception as error:  # noqa: BLE001
        say(kernel_error=_words(error))


def _ask(function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - as the function answers
    """The function's answer, or None: one call that is not supported is no reason to drop the others."""
    say(step=getattr(function, "__name__", "?"))
    try:
        answer = function(*arguments)
    except Exception:  # noqa: BLE001 - NVMLLibraryMismatchError is not an NVMLError
        return None
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


def _mapped(name: str) -> str | None:
    """Path of the loaded library whose file name begins with `name`."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return None
    paths = (line.split(maxsplit=5)[-1] for line in lines)
    return next((path for path in paths if Path(path).name.startswith(name)), None)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:1000]


PROBES: dict[str, Callable[..., None]] = {"nodes": nodes, "driver_api": driver_api, "nvml": nvml, "torch": torch}

if __name__ == "__main__":
    PROBES[sys.argv[1]](*sys.argv[2:])
