"""How experience comes about: who acts and who steps when."""

from typing import Protocol, cast

import torch
from torch import Tensor

from rl.agent import Agent
from rl.buffers import RolloutBuffer
from rl.envs import Envs
from rl.envs.device import DeviceEnvs
from rl.graph import Graph
from rl.normalize import Normalized
from rl.transition import Transition


class Sampler(Protocol):
    """Brings an agent and its environments together."""

    def sample(self) -> None:
        """Act, step and observe: one or more steps of every environment."""


def make_sampler(agent: Agent, envs: Envs) -> Sampler:
    """The sampler for such an agent in such environments."""
    if (
        isinstance(envs, DeviceEnvs)
        and isinstance(agent.buffer, RolloutBuffer)
        and not isinstance(agent, Normalized)  # its statistics change from step to step, beside the graph
        and agent.acceleration.mode != "eager"
    ):
        return WholeRollouts(agent, envs)
    return Lockstep(agent, envs)


class Lockstep:
    """All environments wait for the agent, and the agent for all of them."""

    def __init__(self, agent: Agent, envs: Envs) -> None:
        self.agent, self.envs = agent, envs

    def sample(self) -> None:
        """See `Sampler`."""
        self.agent.observe(self.envs.step(self.agent.act(self.envs.obs)))


class WholeRollouts:
    """On a GPU: acting and stepping for a whole rollout as one CUDA graph."""

    def __init__(self, agent: Agent, envs: DeviceEnvs) -> None:
        self.agent, self.envs = agent, envs
        self.num_steps = cast(RolloutBuffer, agent.buffer).num_steps
        self.lockstep = Lockstep(agent, envs)
        self.graph = Graph(self._rollout, agent.device, [agent.generator, envs.generator])

    def sample(self) -> None:
        """See `Sampler`."""
        if cast(RolloutBuffer, self.agent.buffer).cursor:  # resumed within a rollout
            self.lockstep.sample()
            return
        *fields, ended, returns, lengths = self.graph()
        for step in zip(*(values.unbind() for values in fields), strict=True):
            self.agent.observe(Transition(*step))
        self.envs.unread += zip(ended, returns, lengths, strict=True)

    def _rollout(self) -> list[Tensor]:
        """What the graph records; returns the transition's fields and the episodes' figures, each [T, N, …]."""
        before, self.envs.unread = self.envs.unread, []
        steps = [self.envs.step(self.agent.act(self.envs.obs)) for _ in range(self.num_steps)]
        unread, self.envs.unread = self.envs.take_unread(), before
        return [*map(torch.stack, zip(*steps, strict=True)), *unread]
