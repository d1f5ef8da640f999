"""Where transitions wait to be learned from: the last T steps in order (on-policy), or the last M at random."""

from typing import Any

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor

from rl.memory import check_fits
from rl.transition import Transition


def _allocate(
    shape: tuple[int, ...], observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], device: str
) -> Transition:
    """Storage for transitions of one `shape`, [T, N] or [M]."""
    obs_shape = observation_space.shape or ()
    action_shape = action_space.shape or ()
    action_dtype = torch.int64 if isinstance(action_space, spaces.Discrete) else torch.float32
    return Transition(
        obs=torch.zeros(*shape, *obs_shape, device=device),
        actions=torch.zeros(*shape, *action_shape, dtype=action_dtype, device=device),
        rewards=torch.zeros(*shape, device=device),
        next_obs=torch.zeros(*shape, *obs_shape, device=device),
        terminations=torch.zeros(*shape, dtype=torch.bool, device=device),
        truncations=torch.zeros(*shape, dtype=torch.bool, device=device),
    )


class RolloutBuffer:
    """The last `num_steps` steps of N environments, in order: tensors [T, N, …]."""

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: str,
    ) -> None:
        self.storage = _allocate((num_steps, num_envs), observation_space, action_space, device)
        self.num_steps = num_steps
        self.cursor = 0  # rows written

    @property
    def full(self) -> bool:
        """Whether `num_steps` steps are waiting."""
        return self.cursor == self.num_steps

    def add(self, transition: Transition) -> None:
        """Append one step of all environments. Clear a full buffer first."""
        for stored, value in zip(self.storage, transition, strict=True):
            stored[self.cursor] = value
        self.cursor += 1

    def clear(self) -> None:
        """Forget what is stored: on-policy data serves one update."""
        self.cursor = 0

    def state_dict(self) -> dict[str, Any]:
        """Contents and cursor, so that a run can resume in the middle of a rollout."""
        return {"storage": self.storage._asdict(), "cursor": self.cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore in place what `state_dict` returned; {} empties the buffer."""
        if state:
            _restore(self.storage, state["storage"])
        self.cursor = state.get("cursor", 0)


class ReplayBuffer:
    """The last `capacity` transitions, overwritten from the oldest on and sampled uniformly (Lin 1992)."""

    def __init__(
        self,
        capacity: int,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: str,
    ) -> None:
        row = _allocate((1,), observation_space, action_space, "cpu")
        size = capacity * sum(value.nbytes for value in row)
        what = f"--buffer-size {capacity}: the replay"
        check_fits(size, device, what, "give a smaller --buffer-size, or the container more memory")
        self.storage = _allocate((capacity,), observation_space, action_space, device)
        self.capacity = capacity
        self.cursor = 0  # row that is written next
        self.size = 0  # rows that hold a transition
        self.stride = 1  # rows between a transition and its environment's next: the number of environments
        self.device = device

    @property
    def nbytes(self) -> int:
        """Bytes of its storage."""
        return sum(value.nbytes for value in self.storage)

    def add(self, transition: Transition) -> None:
        """Append the N transitions of one step."""
        num_envs = self.stride = transition.rewards.shape[0]
        head = min(num_envs, self.capacity - self.cursor)  # rows until the end of the storage; the rest wrap round
        for stored, value in zip(self.storage, transition, strict=True):
            stored[self.cursor : self.cursor + head] = value[:head]
            if head < num_envs:
                stored[: num_envs - head] = value[head:]
        self.cursor = (self.cursor + num_envs) % self.capacity
        self.size = min(self.size + num_envs, self.capacity)

    def sample(self, batch_size: int, generator: torch.Generator) -> Transition:
        """Draw `batch_size` transitions with replacement, [B, …]."""
        rows = torch.randint(self.size, (batch_size,), generator=generator, device=self.device)
        return Transition(*(stored[rows] for stored in self.storage))

    def sample_n_step(
        self, batch_size: int, n_steps: int, gamma: float, generator: torch.Generator
    ) -> tuple[Transition, Tensor]:
        """Draw `batch_size` transitions of up to `n_steps` steps each, and their discounts γ^k, [B].

        `rewards` holds Σ_{i<k} γ^i r_t+i and `next_obs` the observation after k steps (Sutton & Barto 2018, eq. 7.1),
        where k is cut short by the end of the episode and by the newest transition stored; the bootstrap
        γ^k V(next_obs) is right for every k.
        """
        rows = last = torch.randint(self.size, (batch_size,), generator=generator, device=self.device)
        storage = self.storage
        rewards, discounts = storage.rewards[rows], torch.full((batch_size,), gamma, device=self.device)
        for _ in range(n_steps - 1):
            newer_rows = (self.cursor - 1 - last) % self.capacity  # stored after row `last`
            ended = storage.terminations[last] | storage.truncations[last]
            goes_on = ~ended & (newer_rows >= self.stride)
            following = (last + self.stride) % self.capacity
            rewards = torch.where(goes_on, rewards + discounts * storage.rewards[following], rewards)
            discounts = torch.where(goes_on, discounts * gamma, discounts)
            last = torch.where(goes_on, following, last)
        ends = storage.next_obs[last], storage.terminations[last], storage.truncations[last]
        return Transition(storage.obs[rows], storage.actions[rows], rewards, *ends), discounts

    def state_dict(self) -> dict[str, Any]:
        """Contents, cursor, size and stride."""
        position = {"cursor": self.cursor, "size": self.size, "stride": self.stride}
        return {"storage": self.storage._asdict(), **position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore in place what `state_dict` returned; {} empties the replay."""
        if state:
            _restore(self.storage, state["storage"])
        self.cursor, self.size, self.stride = state.get("cursor", 0), state.get("size", 0), state.get("stride", 1)


def _restore(storage: Transition, saved: dict[str, Tensor]) -> None:
    for name, stored in storage._asdict().items():
        stored.copy_(saved[name])
