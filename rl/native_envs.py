"""Gymnasium's classic control environments, batched: the same equations on arrays of N states.

Each environment is a few pure functions written against the array API (`xp` is `numpy` or `torch`), so that one
implementation serves both. In NumPy float64 they equal gymnasium's scalar environments bit for bit, by test: the
order of every addition and multiplication below is gymnasium's own. (Pendulum and Acrobot to the last place or two:
there gymnasium squares numbers by C's pow(), which rounds one in a thousand of them the wrong way.)
"""

from types import ModuleType
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces

Array = Any  # numpy.ndarray or torch.Tensor
Random = Any  # what draws first states, by uniform(low, high, size): numpy.random.Generator or envs.device.DeviceRandom


class NativeEnvironment(Protocol):
    """What a batched environment is made of. State arrays are [state size, N]: one contiguous row per quantity."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    max_episode_steps: int

    def initial(self, xp: ModuleType, num_envs: int, rng: Random) -> Array:
        """Draw `num_envs` states from the initial distribution, [state size, N], float64 in NumPy."""

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

    def initial(self, xp: ModuleType, num_envs: int, rng: Random) -> Array:
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
        x, x_dot = x + self.tau * x_dot, x_dot + self.tau * x_acc
        theta, theta_dot = theta + self.tau * theta_dot, theta_dot + self.tau * theta_acc
        state = xp.stack([x, x_dot, theta, theta_dot])
        terminations = (xp.abs(state[0]) > self.position_limit) | (xp.abs(state[2]) > self.angle_limit)
        return state, xp.ones_like(x), terminations

    def observe(self, xp: ModuleType, state: Array) -> Array:
        """The state itself, [N, 4]."""
        return state.T


class Pendulum:
    """Pendulum-v1: swing a rod of 1 m and 1 kg up and hold it there, Euler steps of 0.05 s.

    State: angle from upright (rad), angular velocity (rad/s, at most 8). Action: torque in ±2 N·m. The reward is
    −(angle² + 0.1 velocity² + 0.001 torque²) with the angle in ±π. Never terminates; time limit 200 steps.
    """

    max_episode_steps = 200
    max_speed = 8.0  # rad/s
    max_torque = 2.0  # N·m
    tau = 0.05  # s per step
    gravity, mass, length = 10.0, 1.0, 1.0  # m/s², kg, m
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def __init__(self) -> None:
        high = np.array([1.0, 1.0, self.max_speed], dtype=np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Box(-self.max_torque, self.max_torque, (1,), dtype=np.float32)

    def initial(self, xp: ModuleType, num_envs: int, rng: Random) -> Array:
        """Angle uniform in ±π, angular velocity in ±1."""
        return xp.stack([rng.uniform(-np.pi, np.pi, size=num_envs), rng.uniform(-1.0, 1.0, size=num_envs)])

    def step(self, xp: ModuleType, state: Array, actions: Array) -> tuple[Array, Array, Array]:
        """One Euler step."""
        theta, theta_dot = state
        torque = xp.clip(actions[:, 0], -self.max_torque, self.max_torque)
        angle = (theta + np.pi) % (2 * np.pi) - np.pi
        costs = angle**2 + 0.1 * theta_dot**2 + 0.001 * torque**2
        swing = 3 * self.gravity / (2 * self.length) * xp.sin(theta)
        theta_dot = theta_dot + (swing + 3.0 / (self.mass * self.length**2) * torque) * self.tau
        theta_dot = xp.clip(theta_dot, -self.max_speed, self.max_speed)
        theta = theta + theta_dot * self.tau
        return xp.stack([theta, theta_dot]), -costs, xp.zeros_like(theta) > 0

    def observe(self, xp: ModuleType, state: Array) -> Array:
        """Cosine and sine of the angle, and the angular velocity, [N, 3]."""
        theta, theta_dot = state
        return xp.stack([xp.cos(theta), xp.sin(theta), theta_dot]).T


class MountainCar:
    """MountainCar-v0 (Moore 1990; Sutton & Barto 2018, example 10.1): an engine too weak for the hill must build up
    speed in the valley.

    State: position, velocity (at most 0.07 per step). Actions: 0 pushes left, 1 not at all, 2 right. Reward −1 each
    step. Ends on the right hill, at position 0.5; time limit 200 steps.
    """

    max_episode_steps = 200
    positions = (-1.2, 0.6)
    max_speed = 0.07
    goal = 0.5
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def __init__(self) -> None:
        low, high = np.array([[self.positions[0], -self.max_speed], [self.positions[1], self.max_speed]], np.float32)
        self.observation_space = spaces.Box(low, high, dtype=np.float32)
        self.action_space = spaces.Discrete(3)

    def initial(self, xp: ModuleType, num_envs: int, rng: Random) -> Array:
        """Position uniform in −0.6 … −0.4, at rest."""
        position = rng.uniform(-0.6, -0.4, size=num_envs)
        return xp.stack([position, xp.zeros_like(position)])

    def step(self, xp: ModuleType, state: Array, actions: Array) -> tuple[Array, Array, Array]:
        """Velocity from engine and slope, then position; the left wall stops the car."""
        position = state[0]
        engine = (xp.asarray(actions, dtype=state.dtype) - 1) * 0.001
        position, velocity = _drive(xp, state, engine + xp.cos(3 * position) * -0.0025, self.positions, self.max_speed)
        return xp.stack([position, velocity]), -xp.ones_like(position), (position >= self.goal) & (velocity >= 0)

    def observe(self, xp: ModuleType, state: Array) -> Array:
        """The state itself, [N, 2]."""
        return state.T


class MountainCarContinuous:
    """MountainCarContinuous-v0: the same valley, with the engine's force as the action, in ±1.

    Reward 100 on the hill (position 0.45), minus 0.1 force² each step; time limit 999 steps. Gymnasium keeps this one's
    state in float32, and so does this class.
    """

    max_episode_steps = 999
    positions = (-1.2, 0.6)
    max_speed = 0.07
    goal = 0.45
    power = 0.0015
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def __init__(self) -> None:
        low, high = np.array([[self.positions[0], -self.max_speed], [self.positions[1], self.max_speed]], np.float32)
        self.observation_space = spaces.Box(low, high, dtype=np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), dtype=np.float32)

    def initial(self, xp: ModuleType, num_envs: int, rng: Random) -> Array:
        """Position uniform in −0.6 … −0.4, at rest; float32."""
        position = xp.asarray(rng.uniform(-0.6, -0.4, size=num_envs), dtype=xp.float32)
        return xp.stack([position, xp.zeros_like(position)])

    def step(self, xp: ModuleType, state: Array, actions: Array) -> tuple[Array, Array, Array]:
        """As MountainCar's, but for the engine and the reward."""
        force = xp.clip(actions[:, 0], -1.0, 1.0)
        slope = xp.cos(xp.asarray(3 * state[0], dtype=xp.float64)) * 0.0025  # gymnasium's math.cos works in float64
        acceleration = force * self.power - xp.asarray(slope, dtype=state.dtype)
        position, velocity = _drive(xp, state, acceleration, self.positions, self.max_speed)
        terminations = (position >= self.goal) & (velocity >= 0)
        costs = xp.square(xp.asarray(actions[:, 0], dtype=xp.float64)) * 0.1
        rewards = 100.0 * xp.asarray(terminations, dtype=xp.float64) - costs
        return xp.stack([position, velocity]), xp.asarray(rewards, dtype=state.dtype), terminations

    def observe(self, xp: ModuleType, state: Array) -> Array:
        """The state itself, [N, 2]."""
        return state.T


def _drive(
    xp: ModuleType, state: Array, acceleration: Array, positions: tuple[float, float], max_speed: float
) -> tuple[Array, Array]:
    """Velocity, then position; both bounded, and the left wall stops the car."""
    velocity = xp.clip(state[1] + acceleration, -max_speed, max_speed)
    position = xp.clip(state[0] + velocity, *positions)
    stopped = (position <= positions[0]) & (velocity < 0)
    return position, xp.where(stopped, xp.zeros_like(velocity), velocity)


class Acrobot:
    """Acrobot-v1 (Sutton 1996; equations of Sutton & Barto's book): two links of 1 m and 1 kg hang from a pivot; a
    torque at the joint between them must swing the tip above the height of 1 m over the pivot.

    State: angle of the first link (0 hangs down), angle of the second relative to it (rad), and their angular
    velocities. Actions: torque −1, 0, 1 N·m. Reward −1 each step, 0 at the goal. One Runge-Kutta step of 0.2 s; time
    limit 500 steps.
    """

    max_episode_steps = 500
    mass, length, center, inertia = 1.0, 1.0, 0.5, 1.0  # of each link: kg, m, m from its pivot, kg·m²
    gravity = 9.8  # m/s²
    tau = 0.2  # s per step
    max_speeds = (4 * np.pi, 9 * np.pi)  # rad/s
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def __init__(self) -> None:
        high = np.array([1.0, 1.0, 1.0, 1.0, *self.max_speeds], dtype=np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Discrete(3)

    def initial(self, xp: ModuleType, num_envs: int, rng: Random) -> Array:
        """All four quantities uniform in ±0.1, rounded to float32 as gymnasium does."""
        state = rng.uniform(-0.1, 0.1, size=(4, num_envs))
        return xp.asarray(xp.asarray(state, dtype=xp.float32), dtype=state.dtype)

    def step(self, xp: ModuleType, state: Array, actions: Array) -> tuple[Array, Array, Array]:
        """One step of the classic fourth-order Runge-Kutta method, angles wrapped to ±π, speeds bounded."""
        torque = xp.asarray(actions, dtype=state.dtype) - 1
        k1 = self._derivative(xp, state, torque)
        k2 = self._derivative(xp, state + self.tau / 2.0 * k1, torque)
        k3 = self._derivative(xp, state + self.tau / 2.0 * k2, torque)
        k4 = self._derivative(xp, state + self.tau * k3, torque)
        theta1, theta2, speed1, speed2 = state + self.tau / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        limit1, limit2 = self.max_speeds
        theta1, theta2 = _wrap(xp, theta1), _wrap(xp, theta2)
        state = xp.stack([theta1, theta2, xp.clip(speed1, -limit1, limit1), xp.clip(speed2, -limit2, limit2)])
        terminations = -xp.cos(theta1) - xp.cos(theta2 + theta1) > 1.0
        return state, xp.asarray(terminations, dtype=state.dtype) - 1, terminations

    def _derivative(self, xp: ModuleType, state: Array, torque: Array) -> Array:
        """Angular velocities and accelerations, [4, N]."""
        theta1, theta2, speed1, speed2 = state
        m, l1, lc, inertia, g = self.mass, self.length, self.center, self.inertia, self.gravity
        cos2, sin2 = xp.cos(theta2), xp.sin(theta2)
        d1 = m * lc**2 + m * (l1**2 + lc**2 + 2 * l1 * lc * cos2) + inertia + inertia
        d2 = m * (lc**2 + l1 * lc * cos2) + inertia
        phi2 = m * lc * g * xp.cos(theta1 + theta2 - np.pi / 2.0)
        phi1 = -m * l1 * lc * speed2**2 * sin2 - 2 * m * l1 * lc * speed2 * speed1 * sin2
        phi1 = phi1 + (m * lc + m * l1) * g * xp.cos(theta1 - np.pi / 2) + phi2
        push = torque + d2 / d1 * phi1 - m * l1 * lc * speed1**2 * sin2 - phi2
        acceleration2 = push / (m * lc**2 + inertia - d2**2 / d1)
        acceleration1 = -(d2 * acceleration2 + phi1) / d1
        return xp.stack([speed1, speed2, acceleration1, acceleration2])

    def observe(self, xp: ModuleType, state: Array) -> Array:
        """Cosine and sine of both angles, and both angular velocities, [N, 6]."""
        theta1, theta2, speed1, speed2 = state
        return xp.stack([xp.cos(theta1), xp.sin(theta1), xp.cos(theta2), xp.sin(theta2), speed1, speed2]).T


def _wrap(xp: ModuleType, angle: Array) -> Array:
    """The angle in ±π by whole turns; one step turns a link twice at the most."""
    for _ in range(2):
        angle = xp.where(angle > np.pi, angle - 2 * np.pi, angle)
    for _ in range(2):
        angle = xp.where(angle < -np.pi, angle + 2 * np.pi, angle)
    return angle


NATIVE: dict[str, type[NativeEnvironment]] = {
    "CartPole-v1": CartPole,
    "Pendulum-v1": Pendulum,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "Acrobot-v1": Acrobot,
}
