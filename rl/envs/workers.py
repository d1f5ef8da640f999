"""One process per environment: gymnasium's AsyncVectorEnv, made safe against the death of either side.

Workers are forked from a fork server, never from this process, whose threads and CUDA context a fork would break. They
outlive the signals that stop a container, because this process saves their state first; they end when it ends, even by
kill -9. A worker that raises or dies is a RunError within seconds.
"""

import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, forkserver, resource_tracker, util
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncVectorEnv, _async_worker
from gymnasium.vector.utils import iterate

from rl.errors import RunError, UsageError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CLOSING_SECONDS = 5  # that workers get to end by themselves

StepResult = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]  # as gymnasium's `step` returns it


# RLlib holds gymnasium at 1.2, which talks to its workers otherwise, and whose class takes no type parameters.
PROCESSES_WORK = tuple(map(int, gymnasium.__version__.split(".")[:2])) >= (1, 4)
if TYPE_CHECKING:
    _AsyncVectorEnv = AsyncVectorEnv[Any, Any]
else:
    _AsyncVectorEnv = AsyncVectorEnv


class Workers(_AsyncVectorEnv):
    """Environments in processes of their own, in SAME_STEP mode, observations in shared memory."""

    def __init__(self, makers: Sequence[Callable[[], gymnasium.Env[Any, Any]]]) -> None:
        if not PROCESSES_WORK:
            raise UsageError(
                f"--backend async needs gymnasium 1.4 or newer, and this is {gymnasium.__version__} (for ray?): "
                "take --backend sync"
            )
        start_fork_server(__name__)
        try:
            with self._watched(), _main_left_alone():
                super().__init__(
                    makers,
                    context="forkserver",
                    worker=_work,
                    autoreset_mode=AutoresetMode.SAME_STEP,
                    copy=False,
                )
        except BaseException:
            _end_workers(getattr(self, "processes", []), getattr(self, "parent_pipes", []))
            self.closed = True
            raise
        # also at exit: multiprocessing would wait for ever for workers that ignore its SIGTERM
        self._end = util.Finalize(self, _end_workers, (self.processes, self.parent_pipes), exitpriority=10)

    def reset(self, **options: Any) -> Any:  # noqa: ANN401
        """See AsyncVectorEnv; this and the next five raise RunError where a worker died or its environment raised."""
        with self._watched():
            return super().reset(**options)

    def step(self, actions: Any) -> Any:  # noqa: ANN401
        """See AsyncVectorEnv."""
        with self._watched():
            return super().step(actions)

    def send(self, rows: slice, actions: np.ndarray) -> None:
        """Start a step of the environments `rows`, one action each. None of them may have one in progress."""
        with self._watched():
            for pipe, action in zip(self.parent_pipes[rows], iterate(self.action_space, actions), strict=True):
                pipe.send(("step", action))

    def receive(self, rows: slice) -> StepResult:
        """Wait for the step of `rows`; what `step` returns, for these rows, and of the infos `final_obs` alone."""
        with self._watched():
            results, successes = zip(*[pipe.recv() for pipe in self.parent_pipes[rows]], strict=True)
            self._raise_if_errors(successes)
        _, rewards, terminations, truncations, infos = zip(*results, strict=True)
        final_obs = [info.get("final_obs") for info in infos]
        ends = np.array(terminations, dtype=np.bool_), np.array(truncations, dtype=np.bool_)
        return self.observations[rows], np.array(rewards, dtype=np.float64), *ends, {"final_obs": final_obs}

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """See AsyncVectorEnv."""
        with self._watched():
            return super().call(name, *args, **kwargs)

    def set_attr(self, name: str, values: Any) -> None:  # noqa: ANN401
        """See AsyncVectorEnv."""
        with self._watched():
            super().set_attr(name, values)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Ask the workers to end, and kill those that have not after a few seconds."""
        self._end()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:  # the other end of a pipe has gone
            started = [process for process in getattr(self, "processes", []) if process.pid]
            dead = connection.wait([process.sentinel for process in started], timeout=CLOSING_SECONDS)
            for index, process in enumerate(started):
                if process.sentinel in dead:
                    raise RunError(f"environment {index}: {_how_it_ended(process)}") from error
            raise

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        if not all(successes):
            index, reason = list(successes).index(False), "an error that it could not report"
            with suppress(queue.Empty):
                index, reason = self.error_queue.get(timeout=CLOSING_SECONDS)
            raise RunError(f"environment {index} raised {reason} (--backend sync shows where)")


def _how_it_ended(process: multiprocessing.Process) -> str:
    code = process.exitcode or 0
    name = f" ({signal.Signals(-code).name}: memory may have run out)" if code == -signal.SIGKILL else ""
    return f"its worker process ended with exit code {code}{name}; resume the run, or try --backend sync"


def _end_workers(processes: list[multiprocessing.Process], pipes: list[connection.Connection]) -> None:
    for pipe in pipes:
        with suppress(OSError):
            pipe.send(("close", None))
    deadline = time.monotonic() + CLOSING_SECONDS
    for process in processes:
        if process.pid:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
    for pipe in pipes:
        pipe.close()


def start_fork_server(*modules: str) -> None:
    """Start the process that workers are forked from, with `modules` imported and one thread for their libraries.

    It inherits a mask that blocks the stop signals, and so does Python's resource tracker; none is lost meanwhile.
    """
    multiprocessing.set_forkserver_preload(list(modules))
    one_thread = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS") if name not in os.environ}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    os.environ.update(one_thread)
    try:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # the line before unblocks two of them
        forkserver.ensure_running()
    finally:
        for name in one_thread:
            del os.environ[name]
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def _main_left_alone() -> Iterator[None]:
    """Keep workers from importing the main module, which would run a script that has no `if __name__ == "__main__"`
    again. They do not need it: what it defines reaches them by value (cloudpickle).
    """
    main = vars(sys.modules["__main__"])
    spec, file = main.get("__spec__"), main.get("__file__")
    main["__spec__"] = main["__file__"] = None
    try:
        yield
    finally:
        main["__spec__"], main["__file__"] = spec, file
        if file is None:  # a terminal or notebook, which has none
            del main["__file__"]


class _Reports:
    """Stands in for a worker's error queue, and sends what surely can be pickled: text."""

    def __init__(self, errors: "multiprocessing.Queue[Any]") -> None:
        self.errors = errors

    def put(self, error: tuple[int, type[BaseException], BaseException, str]) -> None:
        index, kind, value, _ = error
        self.errors.put((index, f"{kind.__name__}: {value}".splitlines()[0]))


def _work(index: int, make: Callable[[], Any], *channels: Any) -> None:  # noqa: ANN401
    """What a worker runs."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    env = make()
    pipe, parent_pipe, memory, errors, mode, semaphore = channels
    reports: Any = _Reports(errors)
    with suppress(ConnectionError):  # the parent has gone, and nobody is left to tell
        _async_worker(index, lambda: env, pipe, parent_pipe, memory, reports, mode, semaphore)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent:
        connection.wait([parent.sentinel])
        os._exit(1)
