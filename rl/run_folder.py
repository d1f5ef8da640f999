"""The folder of a run: who owns it, how it was started, how far it is.

config.json  status.json  manifest.json  metrics.csv  TensorBoard events
checkpoints/latest.pt  checkpoints/best.pt  checkpoints/step-N.pt
"""

import fcntl
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, cast

import gymnasium
import numpy
import torch

from rl import checkpoint
from rl.errors import RunError, UsageError


def default_runs_folder() -> Path:
    """`models/runs`, in the folder that RL_MODELS_DIR names where it is set (the image does)."""
    return Path(os.environ.get("RL_MODELS_DIR", "models")) / "runs"


class RunFolder:
    """A run folder held by this process; a context manager that lets go of it.

    A run is live while a process holds the lock on `.lock`: process numbers mean nothing across containers.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @property
    def latest(self) -> Path:
        """The newest checkpoint."""
        return self.path / "checkpoints" / "latest.pt"

    @property
    def best(self) -> Path:
        """The checkpoint with the best evaluation; absent until one was made."""
        return self.path / "checkpoints" / "best.pt"

    def keep(self, step: int, last: int) -> None:
        """Give `latest.pt` the second name `step-N.pt`, and remove all but the `last` newest of these."""
        checkpoints = self.latest.parent
        kept = checkpoints / f"step-{step}.pt"
        kept.unlink(missing_ok=True)
        try:
            kept.hardlink_to(self.latest)
        except OSError:  # file systems without hard links
            with self.latest.open("rb") as latest:
                checkpoint.write_atomically(kept, lambda file: shutil.copyfileobj(latest, file))
        for old in sorted(self._kept(), key=_step_of)[:-last]:
            old.unlink()

    def load_newest(self) -> dict[str, Any] | None:
        """The latest checkpoint or, where that is damaged, the newest sound one before it; says so on stderr.

        None where the run was ended before its first one. Raises RunError where there are some and none can be read.
        """
        by_step = sorted(self._kept(), key=_step_of, reverse=True)
        if not by_step and not self.latest.exists():
            return None
        first_error = None
        for path in [self.latest, *by_step]:
            try:
                content = checkpoint.load(path)
            except RunError as error:
                first_error = first_error or error
                continue
            if first_error:
                print(f"{first_error}. Going on from {path.name}", file=sys.stderr)
            self._join_replay(content["agent"])
            return content
        raise cast(RunError, first_error)

    def write_replay(self, step: int, replay: dict[str, Any]) -> dict[str, str]:
        """Write a replay to a file of its own; returns what `latest.pt` holds instead: its name and checksum."""
        path = self.latest.with_name(f"replay-{step}.pt")
        return {"file": path.name, "sha256": checkpoint.write(path, replay)}

    def drop_replays_before(self, step: int) -> None:
        """Remove replays that `latest.pt` no longer names."""
        for path in self.latest.parent.glob("replay-*.pt"):
            if path.name != f"replay-{step}.pt":
                path.unlink()

    def _join_replay(self, agent: dict[str, Any]) -> None:
        """Put the replay in the place of its name; one that is gone or damaged is filled anew, and stderr says so."""
        named = agent.get("buffer", {})
        if "file" not in named:
            return
        try:
            agent["buffer"] = checkpoint.load(self.latest.with_name(named["file"]), named["sha256"])
        except RunError as error:
            print(f"{error}. Going on with an empty replay, which is filled first", file=sys.stderr)
            agent["buffer"] = {}

    def _kept(self) -> list[Path]:
        return list(self.latest.parent.glob("step-*.pt"))

    def create(self, config: dict[str, Any], **choices: str) -> None:
        """Make the folder of a new run; `choices` that were made for it go to the manifest.

        Raises UsageError if it holds one already, RunError if it cannot be made.
        """
        if (self.path / "config.json").exists():
            raise UsageError(f"{self.path} already holds a run: `rl resume {self.path}`, or give another --run-dir")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"cannot make the run folder {self.path}: {error.strerror}. Make the models folder writable, or give "
                "--run-dir one that is"
            ) from error
        self.acquire()
        self.write_status("running", 0, 0)
        self.write_json("manifest.json", manifest(config["run"]["seed"], config["run"]["device"]) | choices)
        self.write_json("config.json", config)  # last: from here on it is a run that can be resumed

    def acquire(self) -> None:
        """Lock the folder for this process. Raises RunError while another one trains in it."""
        try:
            lock = (self.path / ".lock").open("w")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._lock = lock
        except BlockingIOError as error:
            lock.close()
            raise RunError(f"{self.path} is being trained by another process: wait for it or stop it first") from error
        except OSError as error:
            raise RunError(f"cannot write the run folder {self.path}: {error.strerror}") from error

    def write_status(self, state: str, step: int, episodes: int, reason: str = "") -> dict[str, Any]:
        """Write status.json: `state` is running, finished, interrupted or failed. Returns what was written."""
        updated = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        status = {"state": state, "step": step, "episodes": episodes, "reason": reason, "updated": updated}
        self.write_json("status.json", status)
        return status

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write one of the folder's JSON files, whole or not at all."""
        text = json.dumps(content, indent=2) + "\n"
        checkpoint.write_atomically(self.path / name, lambda file: file.write(text.encode()))

    def close(self) -> None:
        """Let go of the folder."""
        if self._lock:
            self._lock.close()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _step_of(kept: Path) -> int:
    return int(kept.stem.removeprefix("step-"))


def read_config(path: Path) -> dict[str, Any]:
    """The config.json of a run folder. Raises UsageError where there is none."""
    return _read_json(path, "config.json")


def read_status(path: Path) -> dict[str, Any]:
    """The status.json of a run folder. Raises UsageError where there is none."""
    return _read_json(path, "status.json")


def is_live(path: Path) -> bool:
    """Whether a process holds the run's lock."""
    try:
        with (path / ".lock").open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _read_json(path: Path, name: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads((path / name).read_text())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"{path} is not a run folder (it has no {name}): `ls {default_runs_folder()}`") from error
    except (OSError, json.JSONDecodeError) as error:
        raise RunError(f"cannot read {path / name}: {error}") from error
    return content


def manifest(seed: int, device: str) -> dict[str, Any]:
    """What a reader needs to know to repeat the run: command, code, libraries, machine, seed."""
    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "seed": seed,
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": bool(_git("status", "--porcelain")),
        "image": os.environ.get("RL_IMAGE"),
        "lock_sha256": _sha256(os.environ.get("RL_LOCK")),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "numpy": numpy.__version__,
        "gymnasium": gymnasium.__version__,
        "driver": _driver(),
        "gpu": gpu,
        "machine": platform.platform(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _git(*arguments: str) -> str | None:
    """What git says of the current folder, or None where there is no git or no repository."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _driver() -> str | None:
    """The NVIDIA driver's version, or None without one."""
    try:
        first_line = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
    return next((word for word in first_line.split() if word[0].isdigit() and "." in word), None)


def _sha256(file: str | None) -> str | None:
    """Of the lock that the image's packages were installed from; None outside an image."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).exists() else None
