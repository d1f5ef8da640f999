"""The one contract of all environments, and what every adapter to it needs."""

from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl.errors import NotFiniteError, UsageError
from rl.transition import Transition


class Episode(NamedTuple):
    """A finished training episode."""

    episode_return: float  # undiscounted sum of rewards
    length: int  # steps


class Envs(Protocol):
    """N environments that reset themselves in the step that ends an episode."""

    num_envs: int
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    obs: Tensor  # [N, …] what the agent acts on next: after the end of an episode, the first observation of the next
    unsaved: str  # why the environments cannot be saved exactly, "" where they can

    def step(self, actions: Tensor) -> Transition:
        """Step every environment; `obs` moves on, the transition keeps the true successor.

        Raises NotFiniteError for nan or inf in an observation or reward.
        """

    def take_episodes(self) -> list[Episode]:
        """The episodes finished since the last call, in order."""

    def render(self) -> tuple[np.ndarray, int]:
        """A picture of the first environment, [height, width, 3] bytes, and how many to show a second."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on, random state included."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; environments that cannot be saved start new episodes, seeded anew."""

    def close(self) -> None:
        """Release windows, files and processes."""


class EpisodeCounter:
    """Adds up the rewards and steps of N running episodes."""

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, dtype=np.int64)
        self.finished: list[Episode] = []

    def count(self, rewards: np.ndarray, ended: np.ndarray) -> None:
        """Add one step of every environment, rewards [N]; where `ended` [N] close the episode."""
        self.returns += rewards
        self.lengths += 1
        rows = np.flatnonzero(ended)
        if rows.size:
            figures = zip(self.returns[rows].tolist(), self.lengths[rows].tolist(), strict=True)
            self.finished += map(Episode._make, figures)
            self.returns[rows] = 0.0
            self.lengths[rows] = 0

    def take(self) -> list[Episode]:
        """The finished episodes, once."""
        finished, self.finished = self.finished, []
        return finished

    def state_dict(self) -> dict[str, Any]:
        """Running sums; the finished episodes have been taken."""
        return {"returns": torch.from_numpy(self.returns.copy()), "lengths": torch.from_numpy(self.lengths.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the running sums."""
        self.returns, self.lengths = state["returns"].numpy().copy(), state["lengths"].numpy().copy()


class ActionScale:
    """Turns an agent's actions into the environment's: discrete ones as they are, continuous ones from ±1 to the Box.

    So that every agent works in ±1, whatever the environment's units. A Gaussian policy's draws beyond ±1 are clipped
    here, on the way to the environment; the transition keeps what was drawn.
    """

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self.low = self.high = None
        if isinstance(space, spaces.Box):
            if not space.is_bounded():
                raise UsageError(f"actions {space} have no bounds: give the environment's Box a finite low and high")
            self.low, self.high = space.low.astype(np.float32), space.high.astype(np.float32)

    def __call__(self, actions: Tensor) -> np.ndarray:
        """What the environments' step takes, [N, …]."""
        array = actions.cpu().numpy()
        if self.low is None or self.high is None:
            return array
        return self.low + (np.clip(array, -1, 1) + 1) / 2 * (self.high - self.low)


def observation_dtype(space: gymnasium.Space[Any]) -> type[np.float32] | type[np.uint8]:
    """In which type agents get the observations of `space`: vectors as float32, images as uint8 [channels, height,
    width] of at least 36 x 36, the least that the Nature CNN takes. Raises UsageError for every other space.
    """
    if isinstance(space, spaces.Box):
        if len(space.shape) == 1:
            return np.float32
        if len(space.shape) == 3 and space.dtype == np.uint8:
            if min(space.shape[1:]) >= 36:
                return np.uint8
            if min(space.shape[:2]) >= 36:
                raise UsageError(
                    f"observations {space} have their channels last: put them first, [channels, height, width], "
                    "by gymnasium.wrappers.TransformObservation with numpy.moveaxis(obs, -1, 0)"
                )
    raise UsageError(
        f"observations {space} are not supported: wrap the environment so that it gives one Box of one dimension "
        "(gymnasium.wrappers.FlattenObservation), or uint8 images [channels, height, width] of 36 x 36 or more"
    )


def check_actions(space: gymnasium.Space[Any]) -> None:
    """Raise UsageError for actions that no agent here gives."""
    if not isinstance(space, (spaces.Discrete, spaces.Box)):
        raise UsageError(
            f"actions {space} are not supported: wrap the environment so that it takes one Discrete or Box action"
        )


def episode_seeds(seed: int, restarts: int, num_envs: int) -> list[int]:
    """A seed below 2³¹ for each environment, by the run's seed and by how often a resumed run had to start anew."""
    return (np.random.SeedSequence([seed, restarts]).generate_state(num_envs) >> 1).tolist()


def check_finite(obs: np.ndarray, rewards: np.ndarray, actions: Tensor, first: int = 0) -> None:
    """Raise NotFiniteError for the first nan or inf of observations [N, …] or rewards [N] of the environments from
    number `first` on; microseconds where all is well.
    """
    if np.isfinite(rewards).all() and (obs.dtype == np.uint8 or np.isfinite(obs).all()):
        return
    name, values = ("observation", obs) if not np.isfinite(obs).all() else ("reward", rewards)
    i, *element = np.argwhere(~np.isfinite(values))[0].tolist()
    place = f"{name}{element}" if element else name
    value, action = values[(i, *element)], actions[i].tolist()
    raise NotFiniteError(
        f"environment {first + i} gave {place} = {value} after action {action}: mend it, or bound its numbers"
    )


def transition(
    obs: Tensor,
    actions: Tensor,
    rewards: np.ndarray,
    next_obs: Tensor,
    terminations: np.ndarray,
    truncations: np.ndarray,
) -> Transition:
    """Arrays [N] of a step as a Transition on the device of `obs`; a step that ends both ways is a termination."""
    device = obs.device
    return Transition(
        obs,
        actions,
        torch.from_numpy(rewards.astype(np.float32)).to(device),
        next_obs,
        torch.from_numpy(terminations).to(device),
        torch.from_numpy(truncations & ~terminations).to(device),
    )
