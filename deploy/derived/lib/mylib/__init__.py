"""A library of your own; registers an environment when it is imported: rl train ppo --env-id mylib:Corridor-v0."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env[np.ndarray, np.int64]):
    """Walk to the right end of a corridor: 1 is right, 0 is left, every step costs 0.1, the end gives 1."""

    length = 10

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.place = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Begin at the left end."""
        super().reset(seed=seed)
        self.place = 0
        return self._obs(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        """One step to the left or right."""
        self.place = max(self.place + (1 if action == 1 else -1), 0)
        done = self.place == self.length
        return self._obs(), 1.0 if done else -0.1, done, False, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.place / self.length], dtype=np.float32)


gymnasium.register("Corridor-v0", Corridor, max_episode_steps=100)
