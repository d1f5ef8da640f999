"""What every agent can do. There is no base class: an agent is whatever has these verbs."""

from typing import Any, Protocol

import torch
from torch import Tensor

from rl.accelerate import Acceleration, Descent
from rl.buffers import ReplayBuffer, RolloutBuffer
from rl.transition import Transition


class Agent(Protocol):
    """Four verbs, called by the loop in this order: act, then the environments step, observe, learn."""

    device: str  # where its tensors live
    num_envs: int  # environments that it acts in

    @property
    def acceleration(self) -> Acceleration:
        """How it computes."""

    @property
    def generator(self) -> torch.Generator:
        """What its actions are drawn from."""

    @property
    def step(self) -> int:
        """Environment steps observed, summed over environments."""

    @property
    def updates(self) -> int:
        """Updates made: tells by which version of the networks a step was acted."""

    @property
    def buffer(self) -> RolloutBuffer | ReplayBuffer:
        """Where its transitions wait."""

    @property
    def descents(self) -> dict[str, Descent]:
        """Its optimisers, each with its loss, by name."""

    def act(self, obs: Tensor, explore: bool = True) -> Tensor:
        """Actions [n, …] for observations [n, …] of any number of environments, the best known without `explore`;
        nothing that is learned changes.
        """

    def observe(self, transition: Transition) -> None:
        """Store one step of all environments."""

    def learn(self) -> dict[str, Tensor | float]:
        """Make the updates that are due, if any; returns what to log, {} where none was due."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that the agent knows: networks, optimisers, buffer, generator, counters."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
