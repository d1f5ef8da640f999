"""Native environments on the agent's own device: no step leaves it, and none waits for the host."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl.envs.contract import Episode
from rl.errors import NotFiniteError
from rl.native_envs import NativeEnvironment
from rl.random_state import restore
from rl.transition import Transition

READ_INTERVAL = 32  # steps between the host's looks at finished episodes: each look waits for the device


class DeviceRandom:
    """Draws as `numpy.random.Generator` does, in float32 on a device."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def uniform(self, low: float, high: float, size: int | tuple[int, ...]) -> Tensor:
        """Numbers uniform in low … high."""
        return torch.rand(size, generator=self.generator, device=self.generator.device) * (high - low) + low


class DeviceEnvs:
    """A batched environment of native_envs.py with its time limit, stepped by torch in float32.

    Every tensor keeps its place in memory, and nothing depends on a number being read: a step, or many, can be recorded
    as a CUDA graph. So first states are drawn for all environments, and taken where an episode ended.
    """

    unsaved = ""
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def __init__(self, environment: NativeEnvironment, num_envs: int, seed: int, device: str) -> None:
        self.environment = environment
        self.num_envs = num_envs
        self.observation_space = environment.observation_space
        self.action_space = space = environment.action_space
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.random = DeviceRandom(self.generator)
        self.state = environment.initial(torch, num_envs, self.random)
        self.obs = self._observe(self.state)
        self.returns = torch.zeros(num_envs, dtype=torch.float64, device=device)  # of the episodes in progress
        self.lengths = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.finite = torch.ones((), dtype=torch.bool, device=device)  # so far
        self.unread: list[tuple[Tensor, Tensor, Tensor]] = []  # of each step since the host looked: see `step`
        self.bounds: tuple[Tensor, Tensor] | None = None
        if isinstance(space, spaces.Box):
            low, high = (torch.from_numpy(bound).to(device) for bound in (space.low, space.high))
            self.bounds = low, high - low

    def step(self, actions: Tensor) -> Transition:
        """See `Envs.step`; numbers that are not finite are noticed by `take_episodes`."""
        state, rewards, terminations = self.environment.step(torch, self.state, self._scaled(actions))
        obs, next_obs = self.obs.clone(), self._observe(state)
        self.finite &= torch.isfinite(next_obs).all() & torch.isfinite(rewards).all()
        self.returns += rewards
        self.lengths += 1
        truncations = (self.lengths >= self.environment.max_episode_steps) & ~terminations
        ended = terminations | truncations
        self.unread.append((ended, self.returns.clone(), self.lengths.clone()))
        self.returns.masked_fill_(ended, 0.0)
        self.lengths.masked_fill_(ended, 0)
        first = self.environment.initial(torch, self.num_envs, self.random)
        self.state.copy_(torch.where(ended, first, state))
        self.obs.copy_(self._observe(self.state))
        return Transition(obs, actions, rewards, next_obs, terminations, truncations)

    def take_episodes(self) -> list[Episode]:
        """See `Envs.take_episodes`: none until some steps have gathered."""
        if len(self.unread) < READ_INTERVAL:
            return []
        if not self.finite:
            raise NotFiniteError("an environment gave a number that is not finite: mend it, or bound its actions")
        ended, returns, lengths = (values.cpu().numpy() for values in self.take_unread())
        return [*map(Episode, returns[ended].tolist(), lengths[ended].tolist())]

    def take_unread(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of the steps since the last look, [T, N]: whether an episode ended, and its return and length so far."""
        ended, returns, lengths = map(torch.stack, zip(*self.unread, strict=True))
        self.unread = []
        return ended, returns, lengths

    def render(self) -> tuple[np.ndarray, int]:
        """Not here: `make(…, render=True)` gives gymnasium's environments."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """See `Envs.state_dict`."""
        return {
            "state": self.state.double(),
            "generator": self.generator.get_state(),
            "episodes": {"returns": self.returns, "lengths": self.lengths},
            "unread": [torch.stack(values) for values in zip(*self.unread, strict=True)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Envs.load_state_dict`."""
        self.state.copy_(state["state"])
        self.obs.copy_(self._observe(self.state))
        self.returns.copy_(state["episodes"]["returns"])
        self.lengths.copy_(state["episodes"]["lengths"])
        restore(self.generator, state.get("generator"))
        unread = [values.to(self.device).unbind() for values in state.get("unread", [])]
        self.unread = [*zip(*unread, strict=True)]

    def close(self) -> None:
        """Nothing to release."""

    def _observe(self, state: Tensor) -> Tensor:
        return self.environment.observe(torch, state).float().contiguous()

    def _scaled(self, actions: Tensor) -> Tensor:
        """Continuous actions from ±1 to the environment's Box, as `ActionScale` does in NumPy."""
        if self.bounds is None:
            return actions
        low, width = self.bounds
        return low + (actions.clamp(-1, 1) + 1) / 2 * width
