"""The driver's libraries: which ones the loader could find, and what stands in front of them."""

import os
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from rl.doctor.facts.files import text_of
from rl.doctor.schema import Libraries

LIBCUDA = "libcuda.so.1"
SETS_LIBRARY_PATH = re.compile(r"^[^#\n]*?\bLD_LIBRARY_PATH=(\"[^\"\n]*\"|'[^'\n]*'|[^\s;]*)", re.MULTILINE)
START_FILES = ("etc/environment", "etc/profile", "etc/bash.bashrc")
HOME_FILES = (".bashrc", ".bash_profile", ".profile")


def libraries(root: Path, environment: Mapping[str, str]) -> Libraries:
    """See `Libraries`."""
    above = str(root.resolve()).rstrip("/")
    order = dict.fromkeys(_search_order(root, environment))  # each path once
    found = {path: os.path.realpath(above + path).removeprefix(above) for path in order if os.path.exists(above + path)}
    compat = [*sorted(root.glob("usr/local/cuda-*/compat")), root / "usr/local/cuda/compat"]
    preload = f"{environment.get('LD_PRELOAD', '')} {text_of(root / 'etc/ld.so.preload')}"
    return Libraries(
        libcuda=found,
        compat=next((f"/{folder.relative_to(root)}" for folder in compat if _size(folder / LIBCUDA)), None),
        preload=tuple(re.split(r"[\s:]+", preload.strip())) if preload.strip() else (),
        environment_files=dict(_environment_files(root, environment)),
    )


def _size(file: Path) -> int:
    """0 where there is none, or only what the container toolkit left in an image that was made of a container."""
    return os.path.getsize(file) if os.path.exists(file) else 0


def _search_order(root: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Where the loader looks for libcuda.so.1: LD_LIBRARY_PATH, its cache, its own folders."""
    folders = (folder.rstrip("/") for folder in environment.get("LD_LIBRARY_PATH", "").split(":"))
    yield from (f"{folder}/{LIBCUDA}" for folder in folders if folder.startswith("/"))
    yield from _cached(root / "etc/ld.so.cache")
    yield from (f"/usr/lib/{folder}{LIBCUDA}" for folder in (f"{os.uname().machine}-linux-gnu/", ""))
    yield f"/usr/lib64/{LIBCUDA}"


def _cached(file: Path) -> Iterator[str]:
    """The 64-bit libcuda.so.1 of the loader's cache, in its order.

    glibc's sysdeps/generic/dl-cache.h: a head of 48 bytes, in which the number of entries follows the magic word, then
    entries of 24 bytes that begin with flags and the offsets of name and path; older files have another list before it.
    """
    try:
        data = file.read_bytes()
        data = data[data.index(b"glibc-ld.so.cache1.1") :]
        (count,) = struct.unpack_from("=I", data, 20)
        for entry in range(min(count, len(data) // 24)):
            flags, name, path = struct.unpack_from("=iII", data, 48 + 24 * entry)
            if flags & 0xFF00 and _word(data, name) == LIBCUDA:  # 0: of a 32-bit system
                yield _word(data, path)
    except (OSError, ValueError, struct.error):  # no cache, or not of this form
        return


def _word(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode(errors="replace")


def _environment_files(root: Path, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Which start-up files set LD_LIBRARY_PATH, and to what; nothing else of their lines."""
    files = {f"/{name}": root / name for name in START_FILES}
    files |= {f"/{file.relative_to(root)}": file for file in sorted(root.glob("etc/profile.d/*.sh"))}
    home = root / environment.get("HOME", "").lstrip("/")
    files |= {f"~/{name}": home / name for name in HOME_FILES}
    for name, file in files.items():
        if set_to := SETS_LIBRARY_PATH.findall(text_of(file)):
            yield name, ":".join(value.strip("\"'") for value in set_to)
