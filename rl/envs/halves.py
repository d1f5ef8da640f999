"""Environments in worker processes as two halves, so that one half steps while the other one is dealt with."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl.envs.contract import Episode
from rl.envs.gymnasium_envs import GymnasiumEnvs, Outcome
from rl.envs.workers import Workers
from rl.transition import Transition


@dataclass
class Step:
    """A step of one half from when it is sent until it is received."""

    actions: Tensor  # [n, …]
    updates: int  # that the agent had made when it chose them
    outcome: Outcome | None = None  # where it was waited for, but not received yet


class Received(NamedTuple):
    """A step of one half that is over."""

    actions: Tensor
    updates: int
    outcome: Outcome
    obs: Tensor  # [n, …] to act on next


class Halves:
    """N >= 2 environments, the first half of them one more where N is odd.

    Each step sent is received once, and both halves of it are joined to one transition. A step in progress is part of
    the state: `state_dict` waits for it and saves its outcome, which is received later, as if nothing had happened.
    """

    def __init__(self, envs: GymnasiumEnvs, workers: Workers) -> None:
        self.envs, self.workers = envs, workers
        self.num_envs = envs.num_envs
        self.observation_space, self.action_space = envs.observation_space, envs.action_space
        middle = (envs.num_envs + 1) // 2
        self.rows = slice(0, middle), slice(middle, envs.num_envs)
        self.steps: list[Step | None] = [None, None]  # in progress
        self.largest_lag = 0  # updates, since it was last logged

    @property
    def unsaved(self) -> str:
        """See `Envs.unsaved`."""
        return self.envs.unsaved

    def in_progress(self, half: int) -> bool:
        """Whether a step of this half was sent and not received."""
        return self.steps[half] is not None

    def obs(self, half: int) -> Tensor:
        """What to act on, [n, …], where no step is in progress."""
        return self.envs.obs[self.rows[half]]

    def send(self, half: int, actions: Tensor, updates: int) -> None:
        """Start a step with `actions` [n, …], chosen by an agent that had made so many updates."""
        self.workers.send(self.rows[half], self.envs.scale(actions))
        self.steps[half] = Step(actions, updates)

    def receive(self, half: int) -> Received:
        """Wait for the step in progress. Raises NotFiniteError for nan or inf in an observation or reward."""
        step, outcome = self._finished(half)
        outcome.check_finite(step.actions, self.rows[half].start)
        self.steps[half] = None
        return Received(step.actions, step.updates, outcome, self.envs.tensor(outcome.obs))

    def join(self, halves: list[Received]) -> Transition:
        """The transition [N] of one step of both halves."""
        actions = torch.cat([half.actions for half in halves])
        outcome = Outcome(*map(np.concatenate, zip(*(half.outcome for half in halves), strict=True)))
        return self.envs.deliver(actions, outcome)

    def take_episodes(self) -> list[Episode]:
        """See `Envs.take_episodes`; those of steps in progress are not among them."""
        return self.envs.take_episodes()

    def state_dict(self) -> dict[str, Any]:
        """See `Envs.state_dict`; waits for the steps in progress."""
        steps = []
        for half in (0, 1):
            if self.steps[half]:
                step, outcome = self._finished(half)
                arrays = [torch.from_numpy(array) for array in outcome]
                steps.append({"actions": step.actions, "updates": step.updates, "outcome": arrays})
        return {"envs": self.envs.state_dict(), "steps": steps, "largest_lag": self.largest_lag}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Envs.load_state_dict`; environments that start anew have no step in progress."""
        for half in (0, 1):
            if self.steps[half]:
                self._finished(half)
        self.envs.load_state_dict(state["envs"])
        self.steps, self.largest_lag = [None, None], state["largest_lag"]
        if state["envs"]["envs"] is not None:
            for half, step in enumerate(state["steps"]):
                outcome = Outcome(*(array.numpy() for array in step["outcome"]))
                self.steps[half] = Step(step["actions"].to(self.envs.device), step["updates"], outcome)

    def close(self) -> None:
        """See `Envs.close`; a step in progress has a few seconds to end."""
        self.envs.close()

    def _finished(self, half: int) -> tuple[Step, Outcome]:
        """The step of this half, its outcome waited for."""
        step = self.steps[half]
        if step is None:
            raise RuntimeError("no step is in progress: send one first")
        if step.outcome is None:
            step.outcome = self.envs.outcome(self.workers.receive(self.rows[half]))
        return step, step.outcome
