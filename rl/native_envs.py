"""Gymnasium's classic control environments, batched: the same equations on arrays of N states.

Each environment is a few pure functions written against the array API (`xp` is `numpy` or `torch`), so that one
implementation serves both. In NumPy float64 they equal gymnasium's scalar environments bit for bit, by test: the
order of every addition and multiplication below is gymnasium's own.
"""

from types import ModuleType
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces

Array = Any  # numpy.ndarray or torch.Tensor


class NativeEnvironment(Protocol):
    """What a batched environment is made of. State arrays are [state size, N]: one contiguous row per quantity."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    max_episode_steps: int

    def initial(self, num_envs: int, rng: np.random.Generator) -> np.ndarray:
        """Draw `num_envs` states from the initial distribution, [state size, N] float64."""

    def step(self, xp: ModuleType, state: Array, actions: Array) -> tuple[Array, Array, Array]:
        """Advance every state by one step: returns state [state size, N], rewards [N], terminations [N] bool."""

    def observe(self, xp: ModuleType, state: Array) -> Array:
        """What the agent sees of a state, [N, observation size] in the state's dtype."""


class CartPole:
    """CartPole-v1 (Barto, Sutton & Anderson 1983; equations after Florian 2007, "Correct equations for the dynamics of
    the cart-pole system", without friction, Euler steps of 0.02 s).

    State: cart position (m), its velocity (m/s), pole angle (rad), its angular velocity (rad/s). Actions: 0 pushes left
    with 10 N, 1 right. Reward 1 each step. Ends when the pole is 12° off or the cart 2.4 m; time limit 500 steps.
    """

    max_episode_steps = 500
    gravity = 9.8  # m/s²
    total_mass = 0.1 + 1.0  # kg: pole, cart
    pole_mass = 0.1  # kg
    half_length = 0.5  # m
    force = 10.0  # N
    tau = 0.02  # s per step
    angle_limit = 12 * 2 * np.pi / 360  # rad
    position_limit = 2.4  # m

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def __init__(self) -> None:
        high = np.array([2 * self.position_limit, np.inf, 2 * self.angle_limit, np.inf], dtype=np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Discrete(2)

    def initial(self, num_envs: int, rng: np.random.Generator) -> np.ndarray:
        """All four quantities uniform in ±0.05."""
        return rng.uniform(-0.05, 0.05, size=(4, num_envs))

    def step(self, xp: ModuleType, state: Array, actions: Array) -> tuple[Array, Array, Array]:
        """One Euler step."""
        x, x_dot, theta, theta_dot = state
        force = self.force * (2 * xp.asarray(actions, dtype=state.dtype) - 1)
        cos, sin = xp.cos(theta), xp.sin(theta)
        pole_moment = self.pole_mass * self.half_length
        temp = (force + pole_moment * xp.square(theta_dot) * sin) / self.total_mass
        theta_acc = (self.gravity * sin - cos * temp) / (
            self.half_length * (4.0 / 3.0 - self.pole_mass * xp.square(cos) / self.total_mass)
        )
        x_acc = temp - pole_moment * theta_acc * cos / self.total_mass
        state = xp.stack(
            [
                x + self.tau * x_dot,
                x_dot + self.tau * x_acc,
                theta + self.tau * theta_dot,
                theta_dot + self.tau * theta_acc,
            ]
        )
        terminations = (xp.abs(state[0]) > self.position_limit) | (xp.abs(state[2]) > self.angle_limit)
        return state, xp.ones_like(x), terminations

    def observe(self, xp: ModuleType, state: Array) -> Array:
        """The state itself, [N, 4]."""
        return state.T


NATIVE: dict[str, type[NativeEnvironment]] = {"CartPole-v1": CartPole}
