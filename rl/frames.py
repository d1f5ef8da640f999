"""Pictures, stacks of frames as Atari observations are, and a store that keeps each frame once."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl.transition import Transition


def is_image(observation_space: gymnasium.Space[Any]) -> bool:
    """Whether observations are pictures, bytes [channels, height, width]: stored as such, and seen by a `NatureCNN`."""
    return observation_space.dtype == np.uint8 and len(observation_space.shape or ()) == 3


class FrameStack(spaces.Box):
    """A Box of the k newest frames, oldest first: uint8 [k, height, width].

    So of two observations in a row the later one holds the k − 1 newest frames of the earlier one.
    """


class FrameStore:
    """The observations of a replay of `capacity` transitions, each frame once: 1/2k of what whole stacks would take.

    A ring of frames for each environment. An episode begins with the k frames of its first observation and adds one
    frame a step; the stacks of an observation and its successor end at frames p and p + 1 of the ring, and a transition
    keeps its p. The k extra frames of an episode have 1/8 of the ring to themselves; where episodes are so short that
    this is not enough, the oldest transitions lose their frames early (see `lost`).
    """

    def __init__(self, capacity: int, num_envs: int, space: gymnasium.Space[FrameStack], device: str) -> None:
        self.depth, *size = space.shape or ()
        steps = -(-capacity // num_envs)
        self.ring = steps + steps // 8 + 2 * self.depth  # frames of each environment
        self.frames = torch.zeros(num_envs * self.ring, *size, dtype=torch.uint8, device=device)
        self.ends = torch.zeros(capacity, dtype=torch.int64, device=device)  # p of each transition, counted from 0
        self.env_of = torch.zeros(capacity, dtype=torch.int64, device=device)
        self.newest = torch.full((num_envs,), -1, device=device)  # position of each environment's newest frame
        self.ended = torch.ones(num_envs, dtype=torch.bool, device=device)  # in the transition added last
        self.back = torch.arange(1 - self.depth, 1, device=device)
        self.numbers = torch.arange(num_envs, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes of what it stores."""
        return self.frames.nbytes + self.ends.nbytes + self.env_of.nbytes

    def add(self, rows: Tensor, transition: Transition) -> None:
        """Store the observations of one step of all environments as those of the transitions `rows` [N]."""
        if self.ended.any():
            # an episode may go on all the same: the loss of a life ends it for the learner only, a resume perhaps not
            differs = (self._stacks(self.numbers, self.newest) != transition.obs).flatten(1).any(dim=1)
            for n in (self.ended & differs).nonzero().flatten().tolist():
                self.newest[n] += self.depth
                self.frames[n * self.ring + (self.newest[n] + self.back) % self.ring] = transition.obs[n]
        self.ends[rows], self.env_of[rows] = self.newest, self.numbers
        self.newest += 1
        self.frames[self.numbers * self.ring + self.newest % self.ring] = transition.next_obs[:, -1]
        self.ended = transition.terminations | transition.truncations

    def obs(self, rows: Tensor) -> Tensor:
        """Observations [B, k, height, width] of the transitions `rows` [B]."""
        return self._stacks(self.env_of[rows], self.ends[rows])

    def next_obs(self, rows: Tensor) -> Tensor:
        """Successors [B, k, height, width] of the observations of the transitions `rows` [B]."""
        return self._stacks(self.env_of[rows], self.ends[rows] + 1)

    def lost(self, rows: Tensor) -> int:
        """How many of the transitions `rows`, oldest first, go up to the last one of which a frame was overwritten."""
        lost = self.ends[rows] - self.depth < self.newest[self.env_of[rows]] - self.ring
        return int(lost.nonzero().max()) + 1 if lost.any() else 0

    def _stacks(self, envs: Tensor, ends: Tensor) -> Tensor:
        positions = (ends.unsqueeze(1) + self.back) % self.ring
        return self.frames[envs.unsqueeze(1) * self.ring + positions]

    def state_dict(self) -> dict[str, Tensor]:
        """Frames and positions."""
        return {name: getattr(self, name) for name in ("frames", "ends", "env_of", "newest")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore in place what `state_dict` returned; {} restores nothing. Episodes may go on, or begin anew."""
        self.ended.fill_(True)  # so the next observation shows which
        for name, value in state.items():
            getattr(self, name).copy_(value)
