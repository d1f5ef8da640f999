"""What torch.compile and rendering need: compilers, headers, a folder for caches, libraries that the loader finds."""

import contextlib
import os
import re
import shutil
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rl.doctor.facts.files import text_of
from rl.doctor.facts.software import installed
from rl.doctor.schema import Tools

LIBCUDA, EGL = "libcuda.so.1", "libEGL_nvidia.so.0"
MULTIARCH = f"{os.uname().machine}-linux-gnu"
# Where the loader looks beside its cache.
DEFAULT_FOLDERS = ("lib", "usr/lib", "lib64", "usr/lib64", f"lib/{MULTIARCH}", f"usr/lib/{MULTIARCH}")
EGL_VENDORS = ("etc/glvnd/egl_vendor.d", "usr/share/glvnd/egl_vendor.d")
NVML_PACKAGES = {"nvidia_ml_py": "nvidia-ml-py", "pynvml": "pynvml"}  # as their folders begin → as pip calls them


def tools(root: Path, environment: Mapping[str, str]) -> Tools:
    """See `Tools`."""
    caches = [_look_at(root, folder) for folder in _cache_folders(environment)]
    cache = next((cache for cache in caches if cache.error or cache.noexec or cache.nfs), caches[0])
    egl_found = (
        _in_loader_cache(root, EGL)
        or _in_library_path(EGL, environment)
        or any((root / folder / EGL).exists() for folder in DEFAULT_FOLDERS)
    )
    return Tools(
        compiler=_program(environment, "CC", "gcc", "clang", "cc"),
        cpp_compiler=_program(environment, "CXX", "g++"),
        python_headers=Path(sysconfig.get_path("include"), "Python.h").exists(),
        libcuda=_libcuda(root, environment),
        cache=str(cache.folder),
        cache_error=cache.error,
        cache_noexec=cache.noexec,
        cache_nfs=cache.nfs,
        egl_library="" if egl_found else f"{EGL} is in none of the loader's folders",
        egl_vendor=_egl_vendor(root, environment),
        nvml_packages=tuple(
            f"{name} {version}" for files, name in NVML_PACKAGES.items() for _, version in installed(files)
        ),
    )


def _program(environment: Mapping[str, str], variable: str, *names: str) -> str:
    """Path of the first program that is there, or ""; `variable`, where it is set, is taken instead of all of them."""
    given = environment.get(variable, "").split()
    path = environment.get("PATH")
    return next((found for name in given[:1] or names if (found := shutil.which(name, path=path))), "")


@dataclass(frozen=True)
class _Cache:
    folder: Path
    error: str | None  # None: not tried
    noexec: bool
    nfs: bool


def _cache_folders(environment: Mapping[str, str]) -> list[Path]:
    """Where torch.compile keeps what it compiled: Triton's kernels lie in its folder, unless a variable moves them."""
    default = Path(environment.get("TMPDIR") or "/tmp", f"torchinductor_{_user(environment)}")
    given = [environment.get("TORCHINDUCTOR_CACHE_DIR") or str(default), environment.get("TRITON_CACHE_DIR")]
    return [Path(folder).absolute() for folder in given if folder]


def _user(environment: Mapping[str, str]) -> str:
    """As getpass.getuser, by which torch names the folder."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        if environment.get(name):
            return environment[name]
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid_{os.getuid()}"


def _look_at(root: Path, cache: Path) -> _Cache:
    """Try the folder, or where it is not there yet, the one that it would be made in."""
    folder = cache
    while not os.path.exists(folder) and folder != folder.parent:  # Path.exists raises where it may not look
        folder = folder.parent
    options, kind = _mount(root, folder)
    nfs = kind.startswith("nfs")
    return _Cache(cache, None if nfs else _write_error(folder), "noexec" in options, nfs)  # its server may not answer


def _write_error(folder: Path) -> str:
    file = folder / f".rl-doctor-{os.getpid()}"
    try:
        file.write_bytes(b"1")
    except OSError as error:
        return f"{folder}: {error.strerror}"
    finally:
        with contextlib.suppress(OSError):
            file.unlink()
    return ""


def _mount(root: Path, folder: Path) -> tuple[list[str], str]:
    """Options and file system of the mount that holds the folder: the longest mount point which begins its path."""
    with contextlib.suppress(OSError, RuntimeError):
        folder = folder.resolve()
    length, options, found = 0, [""], ""
    for line in text_of(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) > 5 and kind and folder.is_relative_to(fields[4]) and len(fields[4]) >= length:
            length, options, found = len(fields[4]), fields[5].split(","), kind[0]
    return options, found


def _loader_cache(root: Path) -> bytes:
    try:
        return (root / "etc/ld.so.cache").read_bytes()
    except OSError:
        return b""


def _in_loader_cache(root: Path, library: str) -> bool:
    """Whether `ldconfig -p` would print it, and the file is there."""
    paths = re.findall(rb"(/[^\0]{1,4096}/%b)\0" % re.escape(library).encode(), _loader_cache(root))
    return any((root / path.decode(errors="replace").lstrip("/")).exists() for path in paths)


def _in_library_path(library: str, environment: Mapping[str, str]) -> bool:
    folders = environment.get("LD_LIBRARY_PATH", "").split(":")
    return any(os.path.exists(os.path.join(folder, library)) for folder in folders if folder)


def _libcuda(root: Path, environment: Mapping[str, str]) -> bool | None:
    if not _loader_cache(root) or environment.get("TRITON_LIBCUDA_PATH"):
        return None
    return _in_loader_cache(root, LIBCUDA) or _in_library_path(LIBCUDA, environment)


def _egl_vendor(root: Path, environment: Mapping[str, str]) -> bool:
    """Whether one of glvnd's files names NVIDIA's EGL."""
    files = [Path(name) for name in environment.get("__EGL_VENDOR_LIBRARY_FILENAMES", "").split(":") if name]
    folders = [Path(name) for name in environment.get("__EGL_VENDOR_LIBRARY_DIRS", "").split(":") if name]
    if not files:
        searched = folders or [root / name for name in EGL_VENDORS]
        files = [file for folder in searched for file in folder.glob("*.json")]
    return any("libEGL_nvidia" in text_of(file) for file in files)
