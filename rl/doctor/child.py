"""The parent's side of a probe: a child process with a time limit.

A call into a broken driver may crash, or wait in the kernel for ever, where not even SIGKILL ends it. So nothing here
waits without a limit, and how the child ended is a fact like any other.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Container
from pathlib import Path
from typing import Any

PROBE = Path(__file__).with_name("probe.py")
PROBE_FULL = Path(__file__).with_name("probe_full.py")


class Child:
    """One running probe. Start several, then collect: they share the waiting time."""

    def __init__(
        self, probe: str, *arguments: str, limit: float, without: Container[str] = (), script: Path = PROBE
    ) -> None:
        self.started = time.monotonic()
        self.limit = limit  # seconds
        self.failure = ""
        # -P: a file of the work folder (say, a user's own torch.py) must not stand in for a module.
        command = [sys.executable, "-P", str(script), probe, *arguments]
        self.process: subprocess.Popen[bytes] | None = None
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if name not in without},
            )
        except OSError as error:  # no process left under the pids limit, no memory
            self.failure = f"not started: {error}"

    def collect(self) -> dict[str, Any]:
        """What the child said, one JSON object of `schema.Probe` and its probe's own fields, complete or not."""
        if self.process is None:
            return {"ended": self.failure}
        stuck = False
        try:
            # Half a second in any case: with no time left `communicate` does not even take what the child has said
            # while others were waited for.
            left = max(0.5, self.started + self.limit - time.monotonic())
            out, err = self.process.communicate(timeout=left)
            code = self.process.returncode
            ended = "ok" if code == 0 else f"exit {code}" if code > 0 else f"signal {_signal_name(-code)}"
        except subprocess.TimeoutExpired as expired:
            out, err, ended = expired.output or b"", expired.stderr or b"", "timeout"
            stuck = not self.kill()
        facts = _merge(out)
        facts |= {"ended": ended, "stuck": stuck, "seconds": round(time.monotonic() - self.started, 3)}
        if ended != "ok":
            facts["stderr"] = err.decode(errors="replace")[-2000:]
        return facts

    def kill(self) -> bool:
        """End the child and whatever it started; False if it is still there a second later."""
        process = self.process
        if process is None or process.returncode is not None:
            return True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            process.returncode = -signal.SIGKILL  # given up: nobody may wait for it again
            return False
        finally:
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        return True


def _merge(out: bytes) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for line in out.decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError):  # the last line may be torn
            said = json.loads(line)
            facts |= said if isinstance(said, dict) else {}
    return facts


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else str(number)
