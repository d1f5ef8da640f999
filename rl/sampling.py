"""How experience comes about: who acts and who steps when."""

from typing import Protocol, cast

import torch
from torch import Tensor

from rl.agent import Agent
from rl.buffers import RolloutBuffer
from rl.envs import DeviceEnvs, Envs, Halves
from rl.graph import Graph
from rl.normalize import Normalized
from rl.transition import Transition


class Sampler(Protocol):
    """Brings an agent and its environments together."""

    def sample(self) -> None:
        """Act, step and observe: one or more steps of every environment."""

    def take_metrics(self) -> dict[str, float]:
        """What to log of the steps since the last call."""


def make_sampler(agent: Agent, envs: Envs | Halves) -> Sampler:
    """The sampler for such an agent in such environments."""
    if isinstance(envs, Halves):
        return DoubleBuffered(agent, envs)
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

    def take_metrics(self) -> dict[str, float]:
        """Nothing."""
        return {}


class DoubleBuffered:
    """While the agent acts for one half of the environments the other half steps, and both do while it learns.

    (Double-buffered sampling: Petrenko et al. 2020, "Sample Factory".) The order of all draws is fixed, so a run
    repeats bit for bit as one in lockstep does, although not with the same draws.

    A step is sent before the agent has learned from the one before it. Its lag is the number of updates between acting
    and observing. An agent with a replay may learn from older actions, and the lag is at most the updates of one
    `learn`. One with a rollout must have acted by its present networks, and the lag is 0: where a step fills the
    rollout the next one is sent after the update.
    """

    def __init__(self, agent: Agent, halves: Halves) -> None:
        self.agent, self.halves = agent, halves

    def sample(self) -> None:
        """See `Sampler`; one step, whose lag it takes down. On return the next one is in progress, as a rule."""
        agent, halves, buffer = self.agent, self.halves, self.agent.buffer
        for half in (0, 1):
            if not halves.in_progress(half):
                self._send(half, halves.obs(half))
        fills_rollout = isinstance(buffer, RolloutBuffer) and buffer.cursor + 1 == buffer.num_steps
        received = []
        for half in (0, 1):
            received.append(halves.receive(half))
            if not fills_rollout:
                self._send(half, received[half].obs)
        halves.largest_lag = max(halves.largest_lag, *(agent.updates - half.updates for half in received))
        agent.observe(halves.join(received))

    def take_metrics(self) -> dict[str, float]:
        """The largest lag, in updates."""
        lag, self.halves.largest_lag = self.halves.largest_lag, 0
        return {"policy_lag": float(lag)}

    def _send(self, half: int, obs: Tensor) -> None:
        self.halves.send(half, self.agent.act(obs), self.agent.updates)


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

    def take_metrics(self) -> dict[str, float]:
        """Nothing."""
        return {}
