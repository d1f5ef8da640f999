"""One file that a run can go on from: written whole or not at all, verified when read, free of code.

Top keys: `agent`, `envs`, `rng` (every random generator of the process), `counters`, `version`.
"""

import hashlib
import os
import pickle
import random
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch

from rl.errors import RunError

VERSION = 3
MARK = b"sha256:"  # stands before the checksum at the end of the file


def write_atomically(path: Path, write: Any) -> None:  # noqa: ANN401
    """Call `write(file)` on a temporary binary file and rename it to `path` once it is safely on the disk.

    After a power cut `path` holds its old contents or its new ones, never a part. Raises RunError when the disk is full
    or read-only; what was there before stays.
    """
    temporary = path.with_name(f".{path.name}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename itself
        finally:
            os.close(folder)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        cause = error.__context__ if isinstance(error, RuntimeError) else error  # torch.save hides a full disk in one
        if not isinstance(cause, OSError):
            raise
        raise RunError(f"cannot write {path}: {cause.strerror or cause}") from error


def save(path: Path, agent: dict[str, Any], envs: dict[str, Any], counters: dict[str, Any]) -> None:
    """Write a checkpoint of the given states and of every random generator of this process."""
    write(path, {"agent": agent, "envs": envs, "rng": random_state(), "counters": counters})


def write(path: Path, content: dict[str, Any]) -> str:
    """Write plain data and tensors atomically, and after them their SHA-256; returns that in hexadecimal.

    (torch's format has a checksum for each tensor, but none for its own directory.)
    """
    digest = hashlib.sha256()

    def save(file: IO[bytes]) -> None:
        torch.save({**content, "version": VERSION}, cast("IO[bytes]", _Hashed(file, digest)))
        file.write(MARK + digest.digest())

    write_atomically(path, save)
    return digest.hexdigest()


class _Hashed:
    """A binary file that hashes what is written to it."""

    def __init__(self, file: IO[bytes], digest: Any) -> None:  # noqa: ANN401 - hashlib's type is private
        self.file, self.digest = file, digest

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


def load(path: Path, sha256: str | None = None) -> dict[str, Any]:
    """Read what `write` wrote, after verifying its checksum, and that it is the one given.

    Tensors land on the CPU, where generators want their states; each `load_state_dict` moves what it needs.

    Only data is read, never code (`weights_only`): a models folder may be shared. Raises RunError for a missing or
    damaged file or one of another version.
    """
    try:
        found, stored = _checksums(path)
        if not stored:
            raise RunError(f"{path} is no whole checkpoint of this version of rl: use another one of its folder")
        if found != stored or (sha256 and found != sha256):
            raise RunError(f"{path} is damaged (its checksum differs): use another checkpoint of its folder")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist") from error
    except (OSError, pickle.UnpicklingError, RuntimeError) as error:
        if isinstance(error, RunError):
            raise
        reason = str(error).splitlines()[0]
        raise RunError(f"{path} cannot be read as a checkpoint ({reason}): use another one of its folder") from error
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise RunError(f"{path} is not a checkpoint of version {VERSION}: it was written by another version of rl")
    return content


def _checksums(path: Path) -> tuple[str, str]:
    """The checksum of a file's contents, and the one that stands at its end ("" where there is none)."""
    digest, end = hashlib.sha256(), len(MARK) + hashlib.sha256().digest_size
    with path.open("rb") as file:
        left = path.stat().st_size - end
        while left > 0:
            block = file.read(min(left, 2**20))
            digest.update(block)
            left -= len(block)
        mark = file.read()
    return digest.hexdigest(), mark.removeprefix(MARK).hex() if mark.startswith(MARK) else ""


def without_buffer(agent: dict[str, Any]) -> dict[str, Any]:
    """An agent's state that leaves its buffer empty when it is loaded."""
    if "agent" in agent:  # a normalised agent's
        return agent | {"agent": without_buffer(agent["agent"])}
    return agent | {"buffer": {}}


def seed_random_state(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators, so that all that draws from them repeats too."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """The states of Python's, NumPy's and torch's global generators; agents and environments keep their own."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (
            name,
            torch.from_numpy(np.asarray(keys, dtype=np.int64)),
            int(position),
            int(has_gauss),
            float(cached),
        ),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Set every generator that `random_state` read. GPUs' are set only where the same number of GPUs is there."""
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():  # GPU only
        torch.cuda.set_rng_state_all(state["cuda"])
