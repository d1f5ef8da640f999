"""Samples per second of slow environments: stepped in turn, in processes, and in processes in two halves.

`python benchmarks/sampling.py` prints the table, in about 4 minutes. A step works (spins) or waits (sleeps) for 0, 1, 5
or 20 ms; DQN makes an update every 4 steps, PPO 40 updates every 16 steps of each environment. Acting, stepping,
storing and learning are counted; start-up and the first steps are not.
"""

import functools
import os
import platform
import time
from typing import Any

import gymnasium
import numpy as np
import torch
import tyro
from gymnasium import spaces

from rl import dqn, envs, ppo
from rl.backend import available_cores, decide
from rl.sampling import DoubleBuffered, Lockstep

SAMPLERS = ("sync", "async, lockstep", "async, in halves")
AGENTS = {
    "DQN": (dqn.DQN, dqn.Config(learning_starts=64)),
    "PPO": (ppo.PPO, ppo.Config(num_steps=16)),
}


class Slow(gymnasium.Env[np.ndarray, np.int64]):
    """Random observations, episodes of 200 steps, each of which takes `seconds`."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space: gymnasium.Space[Any] = spaces.Discrete(2)

    def __init__(self, seconds: float, works: bool) -> None:
        self.seconds, self.works, self.steps = seconds, works, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """A first observation."""
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Take the time."""
        self.steps += 1
        if not self.works:
            time.sleep(self.seconds)
            return self._obs(), 1.0, False, self.steps == 200, {}
        until = time.thread_time() + self.seconds  # of this thread: eight processes share the cores
        while time.thread_time() < until:
            pass
        return self._obs(), 1.0, False, self.steps == 200, {}

    def _obs(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)


def samples_per_second(sampler_name: str, agent_name: str, slow: Any, num_envs: int, seconds: float) -> float:  # noqa: ANN401
    """Environment steps per second over about `seconds`, updates and all."""
    vector = envs.vectorize([slow] * num_envs, processes=sampler_name != "sync")
    made = envs.GymnasiumEnvs(vector, 0, "cpu")
    agent_type, config = AGENTS[agent_name]
    agent = agent_type(config, made.observation_space, made.action_space, num_envs)
    in_halves = sampler_name == "async, in halves" and made.workers
    sampler = DoubleBuffered(agent, envs.Halves(made, made.workers)) if in_halves else Lockstep(agent, made)
    try:
        started, first_step = 0.0, 0
        while not started or time.perf_counter() - started < seconds or agent.step % (16 * num_envs):
            sampler.sample()
            agent.learn()
            if not started and agent.updates:
                started, first_step = time.perf_counter(), agent.step
        return (agent.step - first_step) / (time.perf_counter() - started)
    finally:
        made.close()


def main(num_envs: int = 8, seconds: float = 5.0, milliseconds: tuple[float, ...] = (0, 1, 5, 20)) -> None:
    """Print the table.

    Args:
        num_envs: environments
        seconds: to measure each figure for
        milliseconds: that a step takes
    """
    torch.set_num_threads(1)
    cores = available_cores()
    print(
        f"{num_envs} environments, {cores} of {os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}"
    )
    print(f"{'agent':<6}{'step':>14}" + "".join(f"{name:>18}" for name in SAMPLERS) + f"{'halves/sync':>13}  auto")
    for agent_name in AGENTS:
        for works in (True, False):
            for step_ms in milliseconds if works else [value for value in milliseconds if value]:
                slow = functools.partial(Slow, step_ms / 1000, works)
                rates = [samples_per_second(name, agent_name, slow, num_envs, seconds) for name in SAMPLERS]
                step = f"{step_ms:g} ms {'work' if works else 'wait'}"
                figures = "".join(f"{rate:>18,.0f}" for rate in rates) + f"{rates[2] / rates[0]:>12.2f}x"
                print(
                    f"{agent_name:<6}{step:>14}{figures}  {decide(step_ms / 1000, num_envs, cores).backend}", flush=True
                )


if __name__ == "__main__":
    tyro.cli(main)
