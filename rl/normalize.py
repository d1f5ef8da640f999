"""Observations and rewards brought to a common scale, by statistics that training gathers on the way."""

from typing import Any

import torch
from torch import Tensor

from rl.accelerate import Acceleration, Descent
from rl.agent import Agent
from rl.buffers import ReplayBuffer, RolloutBuffer
from rl.transition import Transition

CLIP = 10.0  # normalised values are cut to ±10 (Huang et al. 2022, continuous details 6 and 8)
EPSILON = 1e-8


class RunningStatistics:
    """Mean and variance of all values seen, in float64 (float32 drifts for means far from 0), mergeable.

    By the pairwise update of Chan, Golub & LeVeque (1979).

    >>> statistics = RunningStatistics((), "cpu")
    >>> for batch in ([1.0, 2.0], [3.0]):
    ...     statistics.update(torch.tensor(batch))
    >>> statistics.mean.item(), round(statistics.variance.item(), 4)  # of 1, 2, 3
    (2.0, 0.6667)
    """

    def __init__(self, shape: tuple[int, ...], device: str) -> None:
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.variance = torch.ones(shape, dtype=torch.float64, device=device)

    def update(self, values: Tensor) -> None:
        """Take in a batch [N, *shape]."""
        values = values.double()
        self.merge(torch.tensor(float(values.shape[0])), values.mean(dim=0), values.var(dim=0, correction=0))

    def merge(self, count: Tensor, mean: Tensor, variance: Tensor) -> None:
        """Take in another set of values by its count, mean and (population) variance."""
        total = self.count + count
        share = count / total
        gap = mean - self.mean
        self.variance = self.variance * (1 - share) + variance * share + gap.square() * share * (1 - share)
        self.mean = self.mean + gap * share
        self.count = total

    def state_dict(self) -> dict[str, Tensor]:
        """Count, mean and variance."""
        return {"count": self.count, "mean": self.mean, "variance": self.variance}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned, on this device."""
        for name, value in state.items():
            setattr(self, name, value.to(self.mean.device))


class Normalized:
    """An agent that sees normalised observations, rewards or both; itself an agent, with the same four verbs.

    Observations: (obs − mean) / std. Each is counted once, when it was acted on; acting and evaluating count nothing,
    and the last observation of an episode is normalised without being counted. Rewards: divided by the standard
    deviation of the discounted return, their mean left alone, so that their signs stay (Engstrom et al. 2020).
    For agents that learn from fresh rollouts: a replay would mix observations of different scales.
    """

    def __init__(
        self,
        agent: Agent,
        obs_shape: tuple[int, ...],
        gamma: float,
        *,
        obs: bool,
        rewards: bool,
    ) -> None:
        self.agent = agent
        self.device, self.num_envs = agent.device, agent.num_envs
        self.gamma = gamma
        self.obs_statistics = RunningStatistics(obs_shape, agent.device) if obs else None
        self.return_statistics = RunningStatistics((), agent.device) if rewards else None
        self.returns = torch.zeros(agent.num_envs, dtype=torch.float64, device=agent.device)  # discounted, so far

    def act(self, obs: Tensor, explore: bool = True) -> Tensor:
        """Actions of the agent for the normalised observations."""
        return self.agent.act(self._scaled(obs), explore)

    def observe(self, transition: Transition) -> None:
        """Hand the normalised transition on, by the statistics that were acted on; then take it into them."""
        rewards = transition.rewards
        if self.return_statistics:
            self.returns = self.returns * self.gamma + rewards
            self.return_statistics.update(self.returns)
            self.returns = self.returns * ~(transition.terminations | transition.truncations)
            std = (self.return_statistics.variance + EPSILON).sqrt()
            rewards = (rewards / std).clamp(-CLIP, CLIP).float()
        obs, next_obs = self._scaled(transition.obs), self._scaled(transition.next_obs)
        self.agent.observe(transition._replace(obs=obs, next_obs=next_obs, rewards=rewards))
        if self.obs_statistics:
            self.obs_statistics.update(transition.obs)

    @property
    def acceleration(self) -> Acceleration:
        """The agent's."""
        return self.agent.acceleration

    @property
    def generator(self) -> torch.Generator:
        """The agent's."""
        return self.agent.generator

    @property
    def step(self) -> int:
        """The agent's."""
        return self.agent.step

    @property
    def updates(self) -> int:
        """The agent's."""
        return self.agent.updates

    @property
    def buffer(self) -> RolloutBuffer | ReplayBuffer:
        """The agent's."""
        return self.agent.buffer

    @property
    def descents(self) -> dict[str, Descent]:
        """The agent's."""
        return self.agent.descents

    def learn(self) -> dict[str, Tensor | float]:
        """The agent's."""
        return self.agent.learn()

    def _scaled(self, obs: Tensor) -> Tensor:
        if not self.obs_statistics:
            return obs
        statistics = self.obs_statistics
        return ((obs - statistics.mean) / (statistics.variance + EPSILON).sqrt()).clamp(-CLIP, CLIP).float()

    def state_dict(self) -> dict[str, Any]:
        """The agent's state and the statistics."""
        parts = {"obs": self.obs_statistics, "returns": self.return_statistics}
        statistics = {name: part.state_dict() for name, part in parts.items() if part}
        return {"agent": self.agent.state_dict(), "statistics": statistics, "returns": self.returns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.agent.load_state_dict(state["agent"])
        for name, part in (("obs", self.obs_statistics), ("returns", self.return_statistics)):
            if part:
                part.load_state_dict(state["statistics"][name])
        self.returns = state["returns"].to(self.device)
