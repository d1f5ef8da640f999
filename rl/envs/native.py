"""Native environments: a batch of arrays, stepped at once."""

from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from rl.envs.contract import ActionScale, Episode, EpisodeCounter, check_finite, transition
from rl.native_envs import NativeEnvironment
from rl.transition import Transition


class NativeEnvs:
    """A batched environment of native_envs.py with its time limit, stepped by NumPy in float64."""

    unsaved = ""
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def __init__(self, environment: NativeEnvironment, num_envs: int, seed: int, device: str) -> None:
        self.environment = environment
        self.num_envs = num_envs
        self.observation_space = environment.observation_space
        self.action_space = environment.action_space
        self.scale = ActionScale(self.action_space)
        self.device = device
        self.rng = np.random.default_rng(seed)
        self.state = environment.initial(np, num_envs, self.rng)
        self.episodes = EpisodeCounter(num_envs)
        self.obs = self._tensor(self._observe(self.state))

    def step(self, actions: Tensor) -> Transition:
        """See `Envs.step`."""
        self.state, rewards, terminations = self.environment.step(np, self.state, self.scale(actions))
        truncations = self.episodes.lengths + 1 >= self.environment.max_episode_steps
        ended = terminations | truncations
        next_array = self._observe(self.state)
        check_finite(next_array, rewards, actions)
        self.episodes.count(rewards, ended)
        obs, next_obs = self.obs, self._tensor(next_array)
        rows = np.flatnonzero(ended)
        if rows.size:
            first = self.environment.initial(np, rows.size, self.rng)
            self.state[:, rows] = first
            array = next_array.copy()
            array[rows] = self._observe(first)
            self.obs = self._tensor(array)
        else:
            self.obs = next_obs
        return transition(obs, actions, rewards, next_obs, terminations, truncations)

    def take_episodes(self) -> list[Episode]:
        """See `Envs.take_episodes`."""
        return self.episodes.take()

    def render(self) -> tuple[np.ndarray, int]:
        """Not here: `make(…, render=True)` gives gymnasium's environments."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """See `Envs.state_dict`."""
        return {
            "state": torch.from_numpy(self.state.copy()),
            "rng": self.rng.bit_generator.state,
            "episodes": self.episodes.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Envs.load_state_dict`."""
        self.state = state["state"].numpy().astype(self.state.dtype)
        if "rng" in state:  # else it was saved on a GPU, and goes on with other draws
            self.rng.bit_generator.state = state["rng"]
        self.episodes.load_state_dict(state["episodes"])
        self.obs = self._tensor(self._observe(self.state))

    def close(self) -> None:
        """Nothing to release."""

    def _observe(self, state: np.ndarray) -> np.ndarray:
        # a fresh array each time: the tensors of a transition must not change under the buffer that keeps them
        return np.ascontiguousarray(self.environment.observe(np, state).astype(np.float32))

    def _tensor(self, obs: np.ndarray) -> Tensor:
        return torch.from_numpy(obs).to(self.device)
