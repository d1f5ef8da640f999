"""Asynchronous advantage actor-critic (Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning").

K workers, each a process, share the parameters θ. Each acts in environments of its own by a copy θ′, makes the gradient
Δθ of A2C's loss after `num_steps` steps, applies it to θ, and copies θ anew. The optimiser is RMSProp with statistics
that the workers share (their section 4):

    g ← 0.99 g + 0.01 Δθ²,   θ ← θ − η Δθ / (√g + ε)

The lag of a gradient is the number of updates by others between the copy that it was made with and its own update. In
the paper nothing bounds it; here it never exceeds `max_lag`: updates are made one at a time, and one that would let the
gradient of another worker come too late waits for that worker.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import gymnasium
import torch
from torch import Tensor
from torch.multiprocessing import get_context

from rl import a2c
from rl.accelerate import Acceleration
from rl.errors import UsageError
from rl.optimizers import RMSprop
from rl.transition import Transition
from rl.validate import check_fields

AWAY = -1  # in `Shared.copied_at`: this worker is making no gradient
PATIENCE = 1.0  # seconds of waiting for its turn after which a worker looks whether the others still live
POLL = 2e-4  # seconds until a worker that would come too early looks again


@dataclass(frozen=True)
class Config(a2c.Config):
    """How A3C learns; the defaults solve CartPole-v1. Counts are environment steps, summed over all workers."""

    num_workers: int = 4  # processes, each with --num-envs environments
    max_lag: int = 8  # updates by other workers that a gradient may be late; at least num_workers - 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, at_least_1=("num_workers",), not_negative=("max_lag",))
        if self.max_lag < self.num_workers - 1:
            raise UsageError(
                f"--max-lag {self.max_lag}: must be at least --num-workers - 1 = {self.num_workers - 1}, since every "
                "other worker may be making a gradient at the same time"
            )


class Shared:
    """What the workers of a run have in common, in shared memory."""

    def __init__(self, parameters: list[Tensor], config: Config) -> None:
        self.parameters = [parameter.detach().clone().share_memory_() for parameter in parameters]
        self.squares = [torch.zeros_like(parameter).share_memory_() for parameter in self.parameters]  # RMSProp's g
        self.version = torch.zeros((), dtype=torch.int64).share_memory_()  # updates made
        self.copied_at = torch.full((config.num_workers,), AWAY).share_memory_()  # version of each worker's copy
        self.steps = torch.zeros(config.num_workers, dtype=torch.int64).share_memory_()  # environment steps of each
        self.largest_lag = torch.zeros((), dtype=torch.int64).share_memory_()
        self.max_lag = config.max_lag
        # Held for one update, or one copy. No Condition: its notify waits for ever for a waiter that was killed.
        self.turn = get_context("forkserver").Lock()

    def may_update(self, rank: int) -> bool:
        """Whether after an update by `rank` every other worker can still come in time, the oldest copy first.

        The worker with the oldest copy always may, so some worker can always go on.
        """
        others = sorted(v for i, v in enumerate(self.copied_at.tolist()) if i != rank and v != AWAY)
        version = int(self.version) + 1
        return all(version + place - copied_at <= self.max_lag for place, copied_at in enumerate(others))


class SharedRMSprop(RMSprop):
    """Applies a worker's gradients to the shared parameters, and copies these back into the worker's own."""

    def __init__(self, parameters: list[Tensor], shared: Shared, rank: int, learning_rate: float) -> None:
        super().__init__(parameters, learning_rate)
        self.squares = shared.squares
        self.parameters, self.shared, self.rank = parameters, shared, rank
        self.check: Callable[[], None] = lambda: None  # raises where waiting is in vain
        self.lag = 0  # of the last gradient

    def wait(self, ready: Callable[[], bool]) -> None:
        """Hold the shared state once it is free and `ready()`; `check` is called at least every second until then."""
        while True:
            if self.shared.turn.acquire(timeout=PATIENCE):
                if ready():
                    return
                self.shared.turn.release()
                time.sleep(POLL)
            self.check()

    @contextmanager
    def turn(self, ready: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Hold the shared state within the block."""
        self.wait(ready)
        try:
            yield
        finally:
            self.shared.turn.release()

    @torch.no_grad()
    def step(self) -> None:
        """Make one update when its turn has come."""
        shared = self.shared
        gradients = [cast(Tensor, parameter.grad) for parameter in self.parameters]
        with self.turn(lambda: shared.may_update(self.rank)):
            self.lag = int(shared.version - shared.copied_at[self.rank])
            shared.largest_lag.fill_(max(self.lag, int(shared.largest_lag)))
            self.apply(shared.parameters, gradients)
            shared.version += 1
            self._copy()

    @torch.no_grad()
    def copy(self) -> None:
        """Take the shared parameters over."""
        with self.turn():
            self._copy()

    def _copy(self) -> None:
        torch._foreach_copy_(self.parameters, self.shared.parameters)
        self.shared.copied_at[self.rank] = self.shared.version

    def state_dict(self) -> dict[str, Any]:
        """Nothing: A3C saves what is shared."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""

    def leave(self) -> None:
        """Let the other workers no longer wait for this one."""
        with self.turn():
            self.shared.copied_at[self.rank] = AWAY


class A3C(a2c.A2C):
    """One worker: A2C whose optimiser works on the shared parameters. Rank 0 makes what is shared, and saves it."""

    config: Config

    def __init__(
        self,
        config: Config,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        num_envs: int,
        device: str = "cpu",
        seed: int = 0,
        acceleration: Acceleration = Acceleration(),
        shared: Shared | None = None,
        rank: int = 0,
    ) -> None:
        if device != "cpu":
            raise UsageError(f"A3C's workers share parameters in the CPU's memory, not on {device}: give --device cpu")
        super().__init__(config, observation_space, action_space, num_envs, device, seed, acceleration)
        parameters: list[Tensor] = list(self.network.parameters())
        self.shared = shared or Shared(parameters, config)
        self.rank = rank
        self.optimizer = SharedRMSprop(parameters, self.shared, rank, config.learning_rate)
        self.descent.optimizer = self.optimizer

    def act(self, obs: Tensor, explore: bool = True) -> Tensor:
        """A2C's, by a copy of the shared parameters, taken before the first step and at each update."""
        if explore and self.shared.copied_at[self.rank] == AWAY:
            self.optimizer.copy()
        return super().act(obs, explore)

    def observe(self, transition: Transition) -> None:
        """Store one step of this worker's environments; `step` counts those of all workers."""
        super().observe(transition)
        self.shared.steps[self.rank] += self.num_envs
        self.step = int(self.shared.steps.sum())

    def learn(self) -> dict[str, Tensor | float]:
        """A2C's, with the lag of the gradient and the number of updates of all workers."""
        metrics = super().learn()
        self.updates = int(self.shared.version)
        return {**metrics, "lag": float(self.optimizer.lag), "updates": float(self.updates)} if metrics else {}

    def state_dict(self) -> dict[str, Any]:
        """The shared parameters and statistics, and this worker's rollout and generator."""
        state = super().state_dict()
        with self.optimizer.turn():
            shared = [parameter.clone() for parameter in self.shared.parameters]
            squares = [square.clone() for square in self.shared.squares]
            version = int(self.shared.version)
        names = [name for name, _ in self.network.named_parameters()]
        return state | {"network": dict(zip(names, shared, strict=True)), "squares": squares, "updates": version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, before other workers begin."""
        super().load_state_dict(state)
        for shared, saved in (
            (self.shared.parameters, list(state["network"].values())),
            (self.shared.squares, state["squares"]),
        ):
            torch._foreach_copy_(shared, saved)
        self.shared.version.fill_(state["updates"])
        self.shared.steps.zero_()
        self.shared.steps[self.rank] = state["step"]
        self.shared.copied_at.fill_(AWAY)
