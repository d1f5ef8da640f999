"""The processes of an A3C run: rank 0 is the process that logs, evaluates and saves; the others only learn."""

import signal
import time
from multiprocessing import parent_process
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing import get_context

from rl import a3c, envs
from rl.envs import Episode
from rl.envs.workers import start_fork_server
from rl.errors import RunError
from rl.run_config import RunConfig
from rl.transition import Transition

GRACE = 5.0  # seconds that the workers may take to end before they are killed


class Stopped(Exception):
    """The run is over, or its first process gone."""


class Workers:
    """The environments of all workers, as one `Envs`: those of rank 0 are stepped here, the others step theirs.

    The other workers start with the first step, after a checkpoint was loaded. Their environments are not saved: a
    resumed run starts new episodes in them, seeded anew.
    """

    def __init__(self, own: envs.Envs, agent: a3c.A3C, run: RunConfig) -> None:
        self.own, self.agent, self.run = own, agent, run
        self.num_envs = own.num_envs
        self.observation_space, self.action_space = own.observation_space, own.action_space
        self.obs = own.obs
        others = "the environments of the other workers are not saved" if agent.config.num_workers > 1 else ""
        self.unsaved = own.unsaved or others
        self.restarts = 0
        self.processes: list[Any] = []
        start_fork_server(__name__)
        context = get_context("forkserver")
        self.episodes = context.SimpleQueue()
        self.stop = context.Event()
        self.context = context
        agent.optimizer.check = self.check

    def step(self, actions: Tensor) -> Transition:
        """Step rank 0's environments. Raises RunError when another worker has died."""
        if not self.processes:
            self._start()
        self.check()
        transition = self.own.step(actions)
        self.obs = self.own.obs
        return transition

    def take_episodes(self) -> list[Episode]:
        """The episodes that any worker finished since the last call."""
        finished = self.own.take_episodes()
        while not self.episodes.empty():
            finished += self.episodes.get()
        return finished

    def check(self) -> None:
        """Raise RunError when another worker has died."""
        for rank, process in enumerate(self.processes, start=1):
            if process.exitcode is not None:
                raise RunError(
                    f"worker {rank} of a3c ended early (exit code {process.exitcode}): its message stands above. "
                    "-9 means that it was killed, often for want of memory"
                )

    def render(self) -> tuple[np.ndarray, int]:
        """See `Envs.render`."""
        return self.own.render()

    def state_dict(self) -> dict[str, Any]:
        """Rank 0's environments."""
        return {"own": self.own.state_dict(), "restarts": self.restarts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Envs.load_state_dict`; before the first step."""
        self.own.load_state_dict(state["own"])
        self.obs = self.own.obs
        self.restarts = state["restarts"] + 1

    def close(self) -> None:
        """Stop every worker, the hard way if need be."""
        self.stop.set()
        deadline = time.monotonic() + GRACE
        for process in self.processes:
            process.join(max(deadline - time.monotonic(), 0))
            if process.exitcode is None:
                process.kill()
                process.join()
        self.processes = []
        self.own.close()

    def _start(self) -> None:
        config = self.agent.config
        for rank in range(1, config.num_workers):
            seed = int(np.random.SeedSequence([self.run.seed, rank, self.restarts]).generate_state(1)[0])
            arguments = rank, seed, self.run, config, self.agent.shared, self.episodes, self.stop
            process = self.context.Process(target=work, args=arguments, name=f"a3c worker {rank}", daemon=True)
            process.start()
            self.processes.append(process)


def work(
    rank: int,
    seed: int,
    run: RunConfig,
    config: a3c.Config,
    shared: a3c.Shared,
    episodes: Any,  # noqa: ANN401 - multiprocessing's types depend on the context
    stop: Any,  # noqa: ANN401
) -> None:
    """What worker `rank` does until it is told to stop."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # rank 0 gets them too, saves, and stops the others
    torch.set_num_threads(max(run.threads, 1))
    own = envs.make(run.env_id, run.num_envs, seed, backend=run.backend)
    spaces = own.observation_space, own.action_space
    agent = a3c.A3C(config, *spaces, run.num_envs, "cpu", seed, run.acceleration, shared, rank)

    def check() -> None:
        parent = parent_process()
        if stop.is_set() or parent is None or not parent.is_alive():
            raise Stopped

    agent.optimizer.check = check
    try:
        while True:
            agent.observe(own.step(agent.act(own.obs)))
            if agent.learn():
                check()
            if finished := own.take_episodes():
                episodes.put(finished)
    except Stopped:
        agent.optimizer.leave()
    finally:
        own.close()
