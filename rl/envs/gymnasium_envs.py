"""Gymnasium environments in a vector environment: stepped in turn, or each in a process of its own."""

import functools
import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from torch import Tensor

from rl.envs.contract import (
    ActionScale,
    Episode,
    EpisodeCounter,
    check_actions,
    check_finite,
    episode_seeds,
    observation_dtype,
    transition,
)
from rl.envs.workers import StepResult, Workers
from rl.errors import UsageError
from rl.snapshot import restore, snapshot
from rl.transition import Transition

AnyVectorEnv = SyncVectorEnv | AsyncVectorEnv


class Saveable(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives an environment's exact state as an attribute, so that it can be read and set in a worker process too."""

    @property
    def saved(self) -> bytes:
        """What `snapshot` returns, as bytes: tensors sent through a pipe would cross in shared memory instead."""
        return _dump(snapshot(self.env))

    @saved.setter
    def saved(self, content: bytes) -> None:
        restore(self.env, _load(content)[0])

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Copies the last observation: an environment may hand out its own buffer, which the reset that follows fills
        anew (gymnasium #1132).
        """
        obs, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            obs = np.array(obs)
        return obs, reward, terminated, truncated, info


def vectorize(makers: Sequence[Callable[[], gymnasium.Env[Any, Any]]], *, processes: bool) -> AnyVectorEnv:
    """The environments that `makers` make, in this process or each in one of its own, ready for GymnasiumEnvs."""
    saveable = [functools.partial(_make_saveable, make) for make in makers]
    if processes:
        return Workers(saveable)
    return SyncVectorEnv(saveable, autoreset_mode=AutoresetMode.SAME_STEP, copy=False)


def _make_saveable(make: Callable[[], gymnasium.Env[Any, Any]]) -> Saveable:
    return Saveable(make())


def _dump(saved: tuple[list[dict[str, Any]], str]) -> bytes:
    torch.save(saved, file := io.BytesIO())
    return file.getvalue()


def _load(content: bytes) -> tuple[list[dict[str, Any]], str]:
    return torch.load(io.BytesIO(content), weights_only=True)


def _are_saveable(envs: AnyVectorEnv) -> bool:
    if isinstance(envs, SyncVectorEnv):
        return all(isinstance(env, Saveable) for env in envs.envs)
    return isinstance(envs, Workers)


class Outcome(NamedTuple):
    """What one step of n environments gave."""

    obs: np.ndarray  # [n, …] to act on next
    next_obs: np.ndarray  # [n, …] true successors
    rewards: np.ndarray  # [n]
    terminations: np.ndarray  # [n]
    truncations: np.ndarray  # [n]

    def check_finite(self, actions: Tensor, first: int = 0) -> None:
        """Raise NotFiniteError for nan and inf; `first` is the number of the first environment."""
        check_finite(self.obs, self.rewards, actions, first)
        if self.next_obs is not self.obs:
            check_finite(self.next_obs, self.rewards, actions, first)


class GymnasiumEnvs:
    """A gymnasium vector environment in SAME_STEP mode.

    Made by `vectorize`, it can be saved, as far as its environments hold plain data; a ready-made one cannot.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def __init__(self, envs: AnyVectorEnv, seed: int, device: str) -> None:
        mode = envs.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            raise UsageError(f"vector environment in {mode}: make it with autoreset_mode=AutoresetMode.SAME_STEP")
        self.dtype = observation_dtype(envs.single_observation_space)
        check_actions(envs.single_action_space)
        self.scale = ActionScale(envs.single_action_space)
        self.envs = envs
        self.workers = envs if isinstance(envs, Workers) else None
        self.num_envs = envs.num_envs
        self.observation_space = envs.single_observation_space
        self.action_space = envs.single_action_space
        self.device = device
        self.seed, self.restarts = seed, 0  # restarts: how often a resumed run could not go on where it was
        self.episodes = EpisodeCounter(self.num_envs)
        self.obs = self._first_obs()
        self.unsaved = ""
        self.state_dict()  # finds out whether it can

    def step(self, actions: Tensor) -> Transition:
        """See `Envs.step`."""
        outcome = self.outcome(self.envs.step(self.scale(actions)))
        outcome.check_finite(actions)
        return self.deliver(actions, outcome)

    def outcome(self, result: StepResult) -> Outcome:
        """What a vector environment's `step` returned, copied: it writes the next step into the same memory."""
        array, rewards, terminations, truncations, infos = result
        obs = next_obs = array.astype(self.dtype)
        if (terminations | truncations).any():  # SAME_STEP: these rows already hold the next episode's first obs
            next_obs = obs.copy()
            for i in np.flatnonzero(terminations | truncations):
                next_obs[i] = infos["final_obs"][i]
        return Outcome(obs, next_obs, rewards, terminations, truncations)

    def deliver(self, actions: Tensor, outcome: Outcome) -> Transition:
        """The transition of all environments that `actions` and their outcome make; `obs` moves on."""
        _, next_array, rewards, terminations, truncations = outcome
        ended = terminations | truncations
        obs, self.obs = self.obs, self.tensor(outcome.obs)
        next_obs = self.tensor(next_array) if ended.any() else self.obs
        self.episodes.count(rewards, ended)
        return transition(obs, actions, rewards, next_obs, terminations, truncations)

    def take_episodes(self) -> list[Episode]:
        """See `Envs.take_episodes`."""
        return self.episodes.take()

    def render(self) -> tuple[np.ndarray, int]:
        """See `Envs.render`."""
        frames: Any = self.envs.render()
        return frames[0], int(self.envs.metadata.get("render_fps", 30))

    def state_dict(self) -> dict[str, Any]:
        """See `Envs.state_dict`; `envs` is None where `unsaved` says why."""
        states = None
        if _are_saveable(self.envs):
            layers, reasons = zip(*map(_load, self.envs.get_attr("saved")), strict=True)
            self.unsaved = next(filter(None, reasons), "")
            states = None if self.unsaved else list(layers)
        else:
            self.unsaved = "a ready-made vector environment cannot be saved: make it by rl.envs.vectorize"
        episodes = self.episodes.state_dict()
        return {"envs": states, "obs": self.obs, "episodes": episodes, "restarts": self.restarts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Envs.load_state_dict`."""
        self.restarts = state["restarts"]
        if state["envs"] is None:
            self.restarts += 1
            self.obs = self._first_obs()
            return
        self.envs.set_attr("saved", [_dump((layers, "")) for layers in state["envs"]])
        self.obs = state["obs"].to(self.device)
        self.episodes.load_state_dict(state["episodes"])

    def close(self) -> None:
        """See `Envs.close`."""
        self.envs.close()

    def _first_obs(self) -> Tensor:
        seeds: list[int | None] = [*episode_seeds(self.seed, self.restarts, self.num_envs)]
        array, infos = self.envs.reset(seed=seeds)
        if "action_mask" in infos:
            raise UsageError(
                "action masks are not supported, and this environment gives them: wrap it so that a forbidden action "
                "does nothing (gymnasium.ActionWrapper), or so that its reward is low"
            )
        return self.tensor(array.astype(self.dtype))

    def tensor(self, obs: np.ndarray) -> Tensor:
        """Observations as the agent takes them."""
        return torch.from_numpy(obs).to(self.device)
