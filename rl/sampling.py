"""How experience comes about: who acts and who steps when."""

from typing import Protocol

from rl.agent import Agent
from rl.envs import Envs


class Sampler(Protocol):
    """Brings an agent and its environments together."""

    def sample(self) -> None:
        """Act, step and observe: one or more steps of every environment."""


class Lockstep:
    """All environments wait for the agent, and the agent for all of them."""

    def __init__(self, agent: Agent, envs: Envs) -> None:
        self.agent, self.envs = agent, envs

    def sample(self) -> None:
        """See `Sampler`."""
        self.agent.observe(self.envs.step(self.agent.act(self.envs.obs)))
