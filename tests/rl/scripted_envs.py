"""Environments whose every step is known beforehand, in a module of their own so that workers can import them."""

import os
import time

import gymnasium
import numpy as np
import torch
from gymnasium import spaces


class Scripted(gymnasium.Env):
    """Its observation tells environment (by its first seed), episode and step.

    Awkward on purpose. Episodes would last 1 to 7 steps; they end by termination, by truncation, by both at once or by
    the time limit of 6 steps. The observation is one buffer, filled anew each time. Infos come and go.
    """

    observation_space = spaces.Box(0, 100_000, (3,))
    action_space = spaces.Discrete(5)

    def __init__(self) -> None:
        self.number, self.episode, self.count = 0, -1, 0
        self.buffer = np.zeros(3, dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.number, self.episode = seed % 100_000, -1
        self.episode, self.count = self.episode + 1, 0
        return self._obs(), {"started": self.episode} if self.episode % 2 else {}

    def step(self, action):
        self.count += 1
        ended = self.count == 1 + (self.number + 5 * self.episode) % 7
        terminated, truncated = ended and self.episode % 3 != 1, ended and self.episode % 3 != 0
        infos = [{}, {"note": "text"}, {"figure": 1.5}, {"figure": 2, "array": np.zeros(2)}]
        return self._obs(), float(action) - 0.5 * self.count, terminated, truncated, infos[self.count % 4]

    def _obs(self):
        self.buffer[:] = self.number, self.episode, self.count
        return self.buffer


class Troubled(Scripted):
    """Does what the action says: 1 raises, 2 raises what cannot be pickled, 3 and 4 return nan and inf."""

    ppid = property(lambda self: os.getppid())
    pid = property(lambda self: os.getpid())
    threads = property(lambda self: (torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")))

    def step(self, action):
        obs, reward, *rest = super().step(action)
        if action == 1:
            raise ValueError("broken")
        if action == 2:

            class LocalError(Exception):
                pass

            raise LocalError(lambda: "a function")
        if action == 3:
            obs[1] = np.nan
        return obs, float("inf") if action == 4 else reward, *rest


class Slow(Scripted):
    """A step takes 5 ms."""

    def step(self, action):
        time.sleep(0.005)
        return super().step(action)


class Pixels(Scripted):
    """Images [channels, height, width]."""

    observation_space = spaces.Box(0, 255, (2, 36, 40), np.uint8)

    def _obs(self):
        return np.full((2, 36, 40), self.count, dtype=np.uint8)


gymnasium.register("Scripted-v0", Scripted, max_episode_steps=6, disable_env_checker=True)
gymnasium.register("Troubled-v0", Troubled, disable_env_checker=True)
gymnasium.register("Slow-v0", Slow, max_episode_steps=6, disable_env_checker=True)
gymnasium.register("Pixels-v0", Pixels, disable_env_checker=True)


class Corridor(gymnasium.Env):
    """Five cells; action 1 leads right, to the end of the episode, 0 left."""

    observation_space = spaces.Box(0, 4, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = 2
        return np.array([self.cell], dtype=np.float32), {}

    def step(self, action):
        self.cell = min(max(self.cell + 2 * int(action) - 1, 0), 4)
        return np.array([self.cell], dtype=np.float32), -1.0, self.cell == 4, False, {}


def make_short_cartpole():
    """CartPole in gymnasium's wrappers, as a function of the user's own."""
    return gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1").unwrapped, 20)


def make_narrow(observation_space, outputs):
    """A network of the user's own: one hidden layer of 7 units."""
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(observation_space.shape[0], 7), torch.nn.Linear(7, outputs)
    )


def make_wrong(observation_space, outputs):
    return torch.nn.Linear(observation_space.shape[0], outputs + 1)


def make_nothing(observation_space, outputs):
    return None
