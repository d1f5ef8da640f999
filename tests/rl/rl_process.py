"""The `rl` command in a process of its own, forked from one that has torch imported already: 0.1 s, not 2 s.

As real as a fresh interpreter for all that these tests look at (exit codes, output, signals, files); a few tests start
a fresh one all the same.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path

FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(["pytest", "rl.diagnose"])


class RlProcess:
    """A started `rl`, in the manner of subprocess.Popen."""

    def __init__(
        self,
        *arguments: object,
        cwd: Path | None = None,
        environment: dict[str, str] | None = None,
        ignored_signals: tuple[int, ...] = (),
        new_session: bool = False,
    ) -> None:
        folder = tempfile.mkdtemp(prefix="rl-")
        weakref.finalize(self, shutil.rmtree, folder)
        self.files = [Path(folder, name) for name in ("stdout", "stderr")]
        where = cwd, {**os.environ, **(environment or {})}, ignored_signals, new_session, self.files
        self.process = FORK_SERVER.Process(target=_main, args=([str(argument) for argument in arguments], *where))
        self.process.start()
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float = 120) -> int:
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"still running after {timeout} s"
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    @property
    def returncode(self) -> int | None:
        return self.poll()

    @property
    def stdout(self) -> str:
        return self.files[0].read_text()

    @property
    def stderr(self) -> str:
        return self.files[1].read_text()


def rl(*arguments: object, **options) -> RlProcess:
    """Run `rl` to its end."""
    process = RlProcess(*arguments, **options)
    process.wait()
    return process


def wait_until(condition, process: RlProcess | None = None, seconds: float = 60) -> None:
    """Wait for `condition()`, while `process` lives."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, f"ended too early: {process.stderr}"
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)


def _main(arguments, cwd, environment, ignored_signals, new_session, files) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # rl's own workers, started before, leave the fork server with one
    if new_session:
        os.setsid()
    if cwd:
        os.chdir(cwd)
    os.environ.clear()  # of the process that it was forked from
    os.environ.update(environment)
    for number in ignored_signals:
        signal.signal(number, signal.SIG_IGN)
    for descriptor, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv = ["rl", *arguments]
    from rl.__main__ import main

    main()
