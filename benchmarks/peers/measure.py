"""What every runner of this folder measures, and the hyper-parameters that all sides share where the work is the same.

A runner trains one agent in a process of its own, `run_sb3.py --work ppo-cartpole --seed 0 --threads 1`, and prints one
line of JSON. It imports this module from its own folder, in the environment of its peer: only torch and gymnasium are
needed here. Two kinds of work are trained:

*Goals*: each side by its own best set-up, until the mean return of the last training episodes reaches a bound.
`seconds` counts from where training is called. Returns are counted by `Recorded`, around each environment, for half a
microsecond a step.

*Works*: a fixed number of updates with the same hyper-parameters, network and environment code. Steps of the peers'
optimisers are counted by torch's own hook, steps of ours, which are not torch.optim's, around their `step`; `rate` is
measured from the end of the first fifth of them to the last.
"""

import argparse
import importlib.metadata
import json
import math
import os
import resource
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gymnasium
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


@dataclass(frozen=True)
class Goal:
    """Train until the last `window` training episodes average `bound`."""

    env_id: str
    bound: float
    window: int
    max_steps: int  # environment steps after which the run has failed


@dataclass(frozen=True)
class OnPolicy:
    """PPO's work: rollouts of `num_steps` steps of `num_envs` environments, each learned from `num_epochs` times."""

    env_id: str
    num_envs: int
    num_steps: int
    num_epochs: int
    num_minibatches: int
    rollouts: int
    learning_rate: float = 1e-3
    gamma: float = 0.98
    gae_lambda: float = 0.8
    clip_coef: float = 0.2
    value_coef: float = 0.5
    entropy_coef: float = 0.0
    max_grad_norm: float = 0.5
    hidden_sizes: tuple[int, ...] = (64, 64)  # tanh, policy and values apart …
    shared_trunk: bool = False  # … or on the same hidden layers
    unit = "steps"  # of `rate`, a second

    @property
    def batch_size(self) -> int:
        """Transitions in an update."""
        return self.num_envs * self.num_steps // self.num_minibatches

    @property
    def steps(self) -> int:
        """Environment steps in all."""
        return self.rollouts * self.num_envs * self.num_steps

    @property
    def updates(self) -> int:
        """Optimiser steps in all."""
        return self.rollouts * self.num_epochs * self.num_minibatches


@dataclass(frozen=True)
class OffPolicy:
    """DQN's and SAC's work: one update for each step of one environment, from `learning_starts` on."""

    env_id: str
    steps: int
    batch_size: int
    hidden_sizes: tuple[int, ...]  # ReLU
    learning_rate: float = 1e-3
    gamma: float = 0.99
    buffer_size: int = 50_000
    learning_starts: int = 100
    target_interval: int = 500  # environment steps between copies of DQN's target network
    tau: float = 0.005  # share by which SAC's target critics follow
    unit = "updates"

    @property
    def updates(self) -> int:
        """Updates in all."""
        return self.steps - self.learning_starts


@dataclass(frozen=True)
class Stepping:
    """Raw stepping by actions drawn beforehand, no agent."""

    env_id: str
    num_envs: int
    seconds: float = 2.0
    unit = "steps"


WORKS: dict[str, Goal | OnPolicy | OffPolicy | Stepping] = {
    "ppo-cartpole-475": Goal("CartPole-v1", 475.0, 100, 300_000),
    "dqn-cartpole-195": Goal("CartPole-v1", 195.0, 100, 200_000),
    "sac-pendulum-200": Goal("Pendulum-v1", -200.0, 10, 20_000),
    "ppo-cartpole": OnPolicy("CartPole-v1", 8, 32, 20, 1, rollouts=50),
    "dqn-cartpole": OffPolicy("CartPole-v1", 2_100, 64, (128, 128)),
    "sac-pendulum": OffPolicy("Pendulum-v1", 600, 256, (256, 256)),
    "ppo-cartpole-4096": OnPolicy(
        "CartPole-v1", 4_096, 64, 1, 8, rollouts=12, gamma=0.95, gae_lambda=0.9, hidden_sizes=(128,), shared_trunk=True
    ),
    "ppo-pong": OnPolicy(
        "ALE/Pong-v5", 8, 128, 4, 4, rollouts=4, learning_rate=2.5e-4, clip_coef=0.1, entropy_coef=0.01, hidden_sizes=()
    ),
    "step-cartpole-4096": Stepping("CartPole-v1", 4_096),
    "step-pendulum-1024": Stepping("Pendulum-v1", 1_024),
    "step-mountaincar-1024": Stepping("MountainCar-v0", 1_024),
    "step-acrobot-1024": Stepping("Acrobot-v1", 1_024),
}
WARM_UP = 0.2  # share of the updates, or of the seconds of stepping, left out of `rate`


class Ended(Exception):
    """Raised out of a peer's training loop: the goal is reached, or the time over."""


class Run:
    """One measurement, printed as one line of JSON."""

    def __init__(self, peer: str, package: str) -> None:
        """Read the command line; `package` gives the peer's version."""
        parser = argparse.ArgumentParser(description=f"Measure {peer} and print one line of JSON.")
        parser.add_argument("--work", required=True, choices=WORKS)
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--threads", type=int, default=1, help="of torch")
        parser.add_argument("--limit", type=float, default=600.0, help="seconds after which a goal counts as missed")
        parser.add_argument("--share", type=float, default=1.0, help="of the work's updates, for a quick look")
        asked = parser.parse_args()
        self.peer, self.version = peer, importlib.metadata.version(package)
        self.name, self.seed, self.threads, self.limit = asked.work, asked.seed, asked.threads, asked.limit
        self.work: Any = WORKS[asked.work]
        self.share = asked.share
        self.returns: deque[float] = deque(maxlen=getattr(self.work, "window", 1))
        self.reached: bool | None = None  # None for what has no goal
        self.steps = 0  # environment steps
        self.optimizers: set[int] = set()
        self.optimizer_steps = 0
        self.rate: float | None = None
        self.extra: dict[str, Any] = {}  # what else the line shall say
        torch.set_num_threads(self.threads)
        self.out = os.fdopen(os.dup(1), "w")  # whatever a peer prints goes to stderr
        os.dup2(2, 1)
        self.folder = tempfile.TemporaryDirectory()  # some peers write where they stand
        os.chdir(self.folder.name)

    def unknown(self) -> None:
        """End with an error: this runner has no such work."""
        sys.exit(f"{self.peer} is not measured on {self.name}")

    @property
    def updates(self) -> int:
        """Updates made: optimiser steps, by how many optimisers take part in each (SAC's actor, critics, α)."""
        return self.optimizer_steps // max(len(self.optimizers), 1)

    @property
    def asked_steps(self) -> int:
        """Environment steps to train for; two whole rollouts at least where there are any."""
        if isinstance(self.work, Goal):
            return self.work.max_steps
        if isinstance(self.work, OnPolicy):
            return self.work.steps // self.work.rollouts * max(round(self.share * self.work.rollouts), 2)
        return self.work.learning_starts + round(self.share * self.work.updates)

    @property
    def algorithm(self) -> str:
        """The first word of the work's name: ppo, dqn, sac or step."""
        return self.name.split("-")[0]

    def train(self, learn: Callable[[], Any]) -> None:
        """Time `learn()`, the peer's training, to its end or to the goal."""
        handle = register_optimizer_step_post_hook(self.stepped)
        self.warm: tuple[float, int] | None = None  # when the warm-up was over, and after how many updates
        self.last = self.start = time.perf_counter()
        if isinstance(self.work, Goal):
            self.reached = False
        else:  # the warm-up ends with a rollout's last update
            self.warm_updates = WARM_UP * self.share * self.work.updates
            if isinstance(self.work, OnPolicy):
                each = self.work.updates // self.work.rollouts
                self.warm_updates = math.ceil(self.warm_updates / each) * each
        with suppress(Ended):
            learn()
        self.seconds = time.perf_counter() - self.start
        handle.remove()
        if self.warm and self.last > self.warm[0]:
            updates, seconds = self.updates - self.warm[1], self.last - self.warm[0]
            per_update = self.work.steps / self.work.updates if isinstance(self.work, OnPolicy) else 1.0
            self.rate = updates * per_update / seconds

    def stepped(self, optimizer: object, *_: object) -> None:
        """Count a step of `optimizer`."""
        self.optimizers.add(id(optimizer))
        self.optimizer_steps += 1
        if isinstance(self.work, Goal):
            return
        self.last = time.perf_counter()
        if self.warm is None and self.updates >= self.warm_updates:
            self.warm = (self.last, self.updates)

    def step_for(self, step: Callable[[int], Any]) -> None:
        """Call `step(i)`, one step of all environments, over and over for the work's seconds."""
        for i in range(10):
            step(i)
        share, i = self.share * self.work.seconds, 0
        start = time.perf_counter()
        warm, warm_steps = start, 0
        while (now := time.perf_counter()) < start + share:
            if warm == start and now > start + WARM_UP * share:
                warm, warm_steps = now, i
            step(i)
            i += 1
        self.start, self.seconds, self.steps = start, now - start, i * self.work.num_envs
        self.rate = (i - warm_steps) * self.work.num_envs / (now - warm)

    def episode(self, episode_return: float) -> None:
        """Count a finished training episode; raises Ended at the goal, and past the limit."""
        if not isinstance(self.work, Goal):
            return
        self.returns.append(episode_return)
        if len(self.returns) == self.work.window and sum(self.returns) / self.work.window >= self.work.bound:
            self.reached = True
            raise Ended
        if time.perf_counter() - self.start > self.limit:
            raise Ended

    def report(self) -> None:
        """Print the line; ends with an error where nothing was left to time after the warm-up."""
        if self.rate is None and not isinstance(self.work, Goal):
            sys.exit(f"--share {self.share}: too little of {self.name} to time anything")
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        row = {
            "peer": self.peer,
            "version": self.version,
            "work": self.name,
            "seed": self.seed,
            "threads": self.threads,
            "seconds": round(self.seconds, 3),
            "steps": self.steps,
            "updates": self.updates,
            "reached": self.reached,
            "rate": round(self.rate, 2) if self.rate else None,
            "peak_memory_mb": round(kilobytes / 1024, 1),
        }
        print(json.dumps(row | self.extra), file=self.out, flush=True)


class Recorded(gymnasium.Wrapper):
    """Tells a Run of every step and finished episode."""

    def __init__(self, env: gymnasium.Env, run: Run) -> None:
        super().__init__(env)
        self.run, self.total = run, 0.0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """As the environment's own."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.run.steps += 1
        self.total += float(reward)
        if terminated or truncated:
            total, self.total = self.total, 0.0
            self.run.episode(total)
        return obs, reward, terminated, truncated, info
