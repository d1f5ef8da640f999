"""Where transitions wait to be learned from: the last T steps in order (on-policy), or the last M at random."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor

from rl.errors import UsageError
from rl.frames import FrameStack, FrameStore, is_image
from rl.memory import available_bytes, check_fits
from rl.staging import StagingRing, fetch
from rl.transition import Transition


def _allocate(
    shape: tuple[int, ...], observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], device: str
) -> Transition:
    """Storage for transitions of one `shape`, [T, N] or [M]; pictures stay bytes."""
    obs_shape = observation_space.shape or ()
    obs_dtype = torch.uint8 if is_image(observation_space) else torch.float32
    action_shape = action_space.shape or ()
    action_dtype = torch.int64 if isinstance(action_space, spaces.Discrete) else torch.float32
    return Transition(
        obs=torch.zeros(*shape, *obs_shape, dtype=obs_dtype, device=device),
        actions=torch.zeros(*shape, *action_shape, dtype=action_dtype, device=device),
        rewards=torch.zeros(*shape, device=device),
        next_obs=torch.zeros(*shape, *obs_shape, dtype=obs_dtype, device=device),
        terminations=torch.zeros(*shape, dtype=torch.bool, device=device),
        truncations=torch.zeros(*shape, dtype=torch.bool, device=device),
    )


def choose_replay_device(asked: str, device: str, size: int) -> str:
    """Where a replay of `size` bytes lies that was asked to be on the GPU ("cuda"), in CPU memory, or ("auto") with its
    agent on `device` unless it would take more than half of what is free there.
    """
    if asked == "cuda" and not device.startswith("cuda"):
        raise UsageError("--replay-device cuda: the agent is on the CPU. Give --device cuda, or --replay-device auto")
    if asked == "auto":
        return "cpu" if device.startswith("cuda") and 2 * size > available_bytes(device) else device
    return device if asked == "cuda" else "cpu"


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

    def cut_off(self) -> None:
        """Truncate the episodes in progress: the environments begin anew."""
        if self.cursor:
            self.storage.truncations[self.cursor - 1] |= ~self.storage.terminations[self.cursor - 1]

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
    """The last `capacity` transitions, overwritten from the oldest on and sampled uniformly (Lin 1992).

    Stacks of frames are kept as frames, each once; other observations as they are, with their successors.

    It lies with the agent on `device`, or in CPU memory apart from an agent on a GPU (`choose_replay_device`). Apart,
    each step comes in by one copy, and a batch is gathered on the CPU and sent by one copy; rows are drawn by a
    generator of its own, seeded by `seed`, since the agent's is on the GPU.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: str,
        replay_device: str = "auto",
        seed: int = 0,
    ) -> None:
        stacked = isinstance(observation_space, FrameStack)
        row_space = spaces.Box(0, 255, (0,)) if stacked else observation_space
        size = capacity * sum(value.nbytes for value in _allocate((1,), row_space, action_space, "meta"))
        size += FrameStore(capacity, num_envs, observation_space, "meta").nbytes if stacked else 0
        agent_device, device = device, choose_replay_device(replay_device, device, size)
        what = f"--buffer-size {capacity}: the replay"
        remedy = "--replay-device cpu" if device.startswith("cuda") else "the container more memory"
        check_fits(size, device, what, f"give a smaller --buffer-size, or {remedy}")
        self.storage = _allocate((capacity,), row_space, action_space, device)
        self.frames = FrameStore(capacity, num_envs, observation_space, device) if stacked else None
        self.capacity = capacity
        self.num_envs = num_envs  # rows between a transition and its environment's next
        self.cursor = 0  # row that is written next
        self.size = 0  # rows that hold a transition
        self.resumed = False  # since the last transition was added
        self.device = device
        # tests have no GPU: cpu:0, another name of the CPU, stands in for one
        self.staging = StagingRing(agent_device) if device != agent_device else None
        self.generator = torch.Generator().manual_seed(seed)

    @property
    def nbytes(self) -> int:
        """Bytes of its storage."""
        return sum(value.nbytes for value in self.storage) + (self.frames.nbytes if self.frames else 0)

    def add(self, transition: Transition) -> None:
        """Append the N transitions of one step, from the agent's device."""
        if self.staging:
            transition = Transition(*fetch(transition))
        if self.resumed and self.size:
            self._cut_off(transition.obs)
        self.resumed = False
        if self.frames:
            rows = self._rows(self.cursor)
            self.frames.add(rows, transition)
            transition = transition._replace(obs=self.storage.obs[rows], next_obs=self.storage.next_obs[rows])
        head = min(self.num_envs, self.capacity - self.cursor)  # rows until the end of the storage; the rest wrap round
        for stored, value in zip(self.storage, transition, strict=True):
            stored[self.cursor : self.cursor + head] = value[:head]
            if head < self.num_envs:
                stored[: self.num_envs - head] = value[head:]
        self.cursor = (self.cursor + self.num_envs) % self.capacity
        self.size = min(self.size + self.num_envs, self.capacity)
        while self.frames and (lost := self.frames.lost(self._oldest(self.num_envs))):
            self.size -= lost

    def _cut_off(self, obs: Tensor) -> None:
        """Truncate the episodes that do not go on with `obs` [N, …]: environments that cannot be saved begin anew when
        a run is resumed, and n-step returns must not reach from one episode into the other.
        """
        rows = self._rows(self.cursor - self.num_envs)
        differs = (self._next_obs(rows) != obs).flatten(1).any(dim=1)
        self.storage.truncations[rows] |= differs & ~self.storage.terminations[rows]

    def sample(self, batch_size: int, generator: torch.Generator) -> Transition:
        """Draw `batch_size` transitions with replacement, [B, …], on the agent's device."""
        rows = self._draw(batch_size, generator)
        storage = self.storage
        ends = self._next_obs(rows), storage.terminations[rows], storage.truncations[rows]
        return Transition(*self._sent(self._obs(rows), storage.actions[rows], storage.rewards[rows], *ends))

    def sample_n_step(
        self, batch_size: int, n_steps: int, gamma: float, generator: torch.Generator
    ) -> tuple[Transition, Tensor]:
        """Draw `batch_size` transitions of up to `n_steps` steps each, and their discounts γ^k, [B].

        `rewards` holds Σ_{i<k} γ^i r_t+i and `next_obs` the observation after k steps (Sutton & Barto 2018, eq. 7.1),
        where k is cut short by the end of the episode and by the newest transition stored; the bootstrap
        γ^k V(next_obs) is right for every k.
        """
        rows = last = self._draw(batch_size, generator)
        storage = self.storage
        rewards, discounts = storage.rewards[rows], torch.full((batch_size,), gamma, device=self.device)
        for _ in range(n_steps - 1):
            newer_rows = (self.cursor - 1 - last) % self.capacity  # stored after row `last`
            ended = storage.terminations[last] | storage.truncations[last]
            goes_on = ~ended & (newer_rows >= self.num_envs)
            following = (last + self.num_envs) % self.capacity
            rewards = torch.where(goes_on, rewards + discounts * storage.rewards[following], rewards)
            discounts = torch.where(goes_on, discounts * gamma, discounts)
            last = torch.where(goes_on, following, last)
        ends = self._next_obs(last), storage.terminations[last], storage.truncations[last]
        *fields, discounts = self._sent(self._obs(rows), storage.actions[rows], rewards, *ends, discounts)
        return Transition(*fields), discounts

    def _draw(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """Rows [B] that hold a transition."""
        generator = self.generator if self.staging else generator
        rows = torch.randint(self.size, (batch_size,), generator=generator, device=self.device)
        if not self.frames:
            return rows
        return (self.cursor - self.size + rows) % self.capacity  # some of the oldest may have lost their frames

    def _sent(self, *tensors: Tensor) -> Sequence[Tensor]:
        """What was gathered, on the agent's device."""
        return self.staging.send(tensors) if self.staging else tensors

    def _rows(self, first: int) -> Tensor:
        """The N rows of one step, `first` that of environment 0."""
        return (first + torch.arange(self.num_envs, device=self.device)) % self.capacity

    def _oldest(self, count: int) -> Tensor:
        """The oldest rows that hold a transition, up to `count` of them."""
        return (self.cursor - self.size + torch.arange(min(count, self.size), device=self.device)) % self.capacity

    def _obs(self, rows: Tensor) -> Tensor:
        return self.frames.obs(rows) if self.frames else self.storage.obs[rows]

    def _next_obs(self, rows: Tensor) -> Tensor:
        return self.frames.next_obs(rows) if self.frames else self.storage.next_obs[rows]

    def state_dict(self) -> dict[str, Any]:
        """Contents, cursor, size and generator: the same wherever it lies."""
        frames = self.frames.state_dict() if self.frames else {}
        counts = {"cursor": self.cursor, "size": self.size, "generator": self.generator.get_state()}
        return {"storage": self.storage._asdict(), "frames": frames, **counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore in place what `state_dict` returned; {} empties the replay."""
        if state:
            _restore(self.storage, state["storage"])
        if self.frames:
            self.frames.load_state_dict(state.get("frames", {}))
        self.cursor, self.size = state.get("cursor", 0), state.get("size", 0)
        if "generator" in state:
            self.generator.set_state(state["generator"])
        self.resumed = True


def _restore(storage: Transition, saved: dict[str, Tensor]) -> None:
    for name, stored in storage._asdict().items():
        stored.copy_(saved[name])
