"""Which backend suits an environment here: by a measurement, where there is a choice."""

import math
import os
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from rl import envs

PROBE_SECONDS, PROBE_STEPS = 0.1, (10, 100)  # how long the probe takes, and the least and most steps of it
ROUND_TRIP = 1e-4  # seconds that a step costs for each process beside its own time: about that on 2 cores, measured
CLEARLY = 1.5  # how many times faster processes must be


class Choice(NamedTuple):
    """A backend, and why it was chosen."""

    backend: str
    reason: str


def choose_backend(asked: str, env_id: str, num_envs: int, seed: int) -> Choice:
    """`auto` resolved: ale and native where there are such, else sync or async, by a probe of about 0.1 s.

    The probe steps one environment of its own by random actions, and raises what `envs.make` and its steps raise.
    """
    if asked != "auto":
        return Choice(asked, "it was asked for")
    if special := envs.special_backend(env_id):
        return Choice(special, f"made for {env_id}")
    cores = available_cores()
    if not envs.PROCESSES_WORK:
        return Choice("sync", f"gymnasium {gymnasium.__version__} is older than --backend async needs")
    if num_envs == 1 or cores == 1:
        return Choice("sync", f"{num_envs} environments on {cores} cores: there is nothing to share")
    return decide(_step_seconds(env_id, seed), num_envs, cores)


def decide(step_seconds: float, num_envs: int, cores: int) -> Choice:
    """async where N environments in processes should be clearly faster than one after the other, else sync."""
    in_turn = num_envs * step_seconds
    in_processes = math.ceil(num_envs / cores) * step_seconds + num_envs * ROUND_TRIP
    reason = (
        f"one step took {1000 * step_seconds:.3g} ms: {num_envs} environments should take {1000 * in_turn:.3g} ms in "
        f"turn, {1000 * in_processes:.3g} ms in processes on {cores} cores; processes must be {CLEARLY:g} times faster"
    )
    pays = num_envs > 1 and cores > 1 and in_turn >= CLEARLY * in_processes
    return Choice("async" if pays else "sync", reason)


def available_cores(root: Path = Path("/")) -> int:
    """CPU cores that this process may use: those it may run on, or fewer where the container has a quota.

    `root` is there for tests.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
    except OSError:  # no cgroup of version 2
        return cores
    return cores if quota == "max" else min(cores, max(1, int(quota) // int(period)))


def _step_seconds(env_id: str, seed: int) -> float:
    """Median time of a step: what is made on first use, or a moment in which the machine was busy, does not count."""
    probe_seed = int(np.random.SeedSequence([seed, 2]).generate_state(1)[0])  # apart from training and evaluation
    probe = envs.make(env_id, 1, probe_seed, backend="sync")
    generator = torch.Generator().manual_seed(probe_seed)
    least, most = PROBE_STEPS
    times: list[float] = []
    try:
        while len(times) < least or (sum(times) < PROBE_SECONDS and len(times) < most):
            action = _random_action(probe.action_space, generator)
            started = time.perf_counter()
            probe.step(action)
            times.append(time.perf_counter() - started)
        return statistics.median(times)
    finally:
        probe.close()


def _random_action(space: "gymnasium.Space[object]", generator: torch.Generator) -> torch.Tensor:
    """One environment's, as agents give it."""
    if isinstance(space, spaces.Discrete):
        return torch.randint(int(space.n), (1,), generator=generator)
    return 2 * torch.rand(1, *(space.shape or ()), generator=generator) - 1
