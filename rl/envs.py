"""Vector environments behind one contract: `obs`, `step(actions) -> Transition`, `take_episodes()`, and exact state.

The only file that reads gymnasium's `infos` or knows of autoreset modes.
"""

import importlib
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from rl.errors import UsageError
from rl.native_envs import NATIVE, NativeEnvironment
from rl.snapshot import restore, snapshot
from rl.transition import Transition

BACKENDS = ("auto", "native", "sync")


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
        """Step every environment; `obs` moves on, the transition keeps the true successor."""

    def take_episodes(self) -> list[Episode]:
        """The episodes finished since the last call, in order."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on, random state included."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""

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
        for i in np.flatnonzero(ended):
            self.finished.append(Episode(float(self.returns[i]), int(self.lengths[i])))
        self.returns[ended] = 0.0
        self.lengths[ended] = 0

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
        self.state = environment.initial(num_envs, self.rng)
        self.episodes = EpisodeCounter(num_envs)
        self.obs = self._observe()

    def step(self, actions: Tensor) -> Transition:
        """See `Envs.step`."""
        self.state, rewards, terminations = self.environment.step(np, self.state, self.scale(actions))
        truncations = (self.episodes.lengths + 1 >= self.environment.max_episode_steps) & ~terminations
        ended = terminations | truncations
        self.episodes.count(rewards, ended)
        obs, next_obs = self.obs, self._observe()
        if ended.any():
            self.state[:, ended] = self.environment.initial(int(ended.sum()), self.rng)
            self.obs = self._observe()
        else:
            self.obs = next_obs
        return _transition(obs, actions, rewards, next_obs, terminations, truncations)

    def take_episodes(self) -> list[Episode]:
        """See `Envs.take_episodes`."""
        return self.episodes.take()

    def state_dict(self) -> dict[str, Any]:
        """See `Envs.state_dict`."""
        return {
            "state": torch.from_numpy(self.state.copy()),
            "rng": self.rng.bit_generator.state,
            "episodes": self.episodes.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Envs.load_state_dict`."""
        self.state = state["state"].numpy().copy()
        self.rng.bit_generator.state = state["rng"]
        self.episodes.load_state_dict(state["episodes"])
        self.obs = self._observe()

    def close(self) -> None:
        """Nothing to release."""

    def _observe(self) -> Tensor:
        # a fresh array each time: the tensors of a transition must not change under the buffer that keeps them
        obs = self.environment.observe(np, self.state).astype(np.float32, order="C")
        return torch.from_numpy(obs).to(self.device)


class SyncEnvs:
    """Gymnasium environments stepped one after the other in this process."""

    def __init__(self, envs: SyncVectorEnv, seed: int, device: str) -> None:
        self.envs = _checked(envs)
        self.num_envs = envs.num_envs
        self.observation_space = envs.single_observation_space
        self.action_space = envs.single_action_space
        self.scale = ActionScale(self.action_space)
        self.device = device
        self.seed, self.restarts = seed, 0  # restarts: how often a resumed run could not go on where it was
        self.episodes = EpisodeCounter(self.num_envs)
        self.obs = self._first_obs()
        self.unsaved = ""
        self.state_dict()  # finds out whether it can

    def step(self, actions: Tensor) -> Transition:
        """See `Envs.step`."""
        obs_array, rewards, terminations, truncations, infos = self.envs.step(self.scale(actions))
        ended = terminations | truncations
        self.episodes.count(rewards, ended)
        obs, next_obs = self.obs, self._tensor(obs_array)
        self.obs = next_obs
        if ended.any():  # SAME_STEP: obs_array already holds the next episode's first observation in these rows
            next_obs = next_obs.clone()
            for i in np.flatnonzero(ended):
                next_obs[i] = self._tensor(infos["final_obs"][i])
        return _transition(obs, actions, rewards, next_obs, terminations, truncations & ~terminations)

    def take_episodes(self) -> list[Episode]:
        """See `Envs.take_episodes`."""
        return self.episodes.take()

    def state_dict(self) -> dict[str, Any]:
        """See `Envs.state_dict`; `envs` is None where `unsaved` says why."""
        layers, reasons = zip(*(snapshot(env) for env in self.envs.envs), strict=True)
        self.unsaved = next(filter(None, reasons), "")
        states = None if self.unsaved else list(layers)
        episodes = self.episodes.state_dict()
        return {"envs": states, "obs": self.obs, "episodes": episodes, "restarts": self.restarts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Envs.load_state_dict`; environments that could not be saved start new episodes, seeded anew."""
        self.restarts = state["restarts"]
        if state["envs"] is None:
            self.restarts += 1
            self.obs = self._first_obs()
            return
        for env, saved in zip(self.envs.envs, state["envs"], strict=True):
            restore(env, saved)
        self.obs = state["obs"].to(self.device)
        self.episodes.load_state_dict(state["episodes"])

    def close(self) -> None:
        """See `Envs.close`."""
        self.envs.close()

    def _first_obs(self) -> Tensor:
        """Start every environment anew, seeded by the run's seed and the number of restarts."""
        seeds = np.random.SeedSequence([self.seed, self.restarts]).generate_state(self.num_envs).tolist()
        return self._tensor(self.envs.reset(seed=seeds)[0])

    def _tensor(self, obs: np.ndarray) -> Tensor:
        return torch.tensor(obs, dtype=torch.float32, device=self.device)


def make(env_id: str, num_envs: int, seed: int, *, backend: str = "auto", device: str = "cpu") -> Envs:
    """Make `num_envs` environments, seeded apart from one another by `seed`.

    `env_id` is a registered id, or `module:Name-v0` where importing the module registers it. `backend`: `native` steps
    a batch of NumPy arrays (native_envs.py), `sync` gymnasium environments in turn, `auto` prefers native.

    Raises UsageError for an unknown id or backend and for spaces that no agent here can use.
    """
    if num_envs < 1:
        raise UsageError(f"--num-envs {num_envs}: at least 1 environment is needed")
    if backend not in BACKENDS:
        raise UsageError(f"--backend {backend}: choose one of {', '.join(BACKENDS)}")
    if backend == "native" and env_id not in NATIVE:
        raise UsageError(f"--backend native knows {', '.join(NATIVE)}, not {env_id}: use --backend sync")
    if backend != "sync" and env_id in NATIVE:
        return NativeEnvs(NATIVE[env_id](), num_envs, seed, device)
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        spec = gymnasium.spec(name)
        envs = SyncVectorEnv([lambda: gymnasium.make(spec)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise UsageError(f"--env-id {env_id}: {error}".splitlines()[0]) from error
    return SyncEnvs(envs, seed, device)


def _checked(envs: SyncVectorEnv) -> SyncVectorEnv:
    """Refuse a mode or a space whose transitions would be wrong."""
    mode = envs.metadata.get("autoreset_mode")
    if mode is not AutoresetMode.SAME_STEP:
        raise UsageError(f"vector environment in {mode}: make it with autoreset_mode=AutoresetMode.SAME_STEP")
    observation_space = envs.single_observation_space
    if not isinstance(observation_space, spaces.Box) or len(observation_space.shape) != 1:
        raise UsageError(
            f"observations {observation_space} are not supported: wrap the environment so that it gives one Box of one "
            "dimension (gymnasium.wrappers.FlattenObservation)"
        )
    if not isinstance(envs.single_action_space, (spaces.Discrete, spaces.Box)):
        raise UsageError(
            f"actions {envs.single_action_space} are not supported: wrap the environment so that it takes one Discrete "
            "or Box action"
        )
    return envs


def _transition(
    obs: Tensor,
    actions: Tensor,
    rewards: np.ndarray,
    next_obs: Tensor,
    terminations: np.ndarray,
    truncations: np.ndarray,
) -> Transition:
    device = obs.device
    return Transition(
        obs,
        actions,
        torch.from_numpy(rewards.astype(np.float32)).to(device),
        next_obs,
        torch.from_numpy(terminations).to(device),
        torch.from_numpy(truncations).to(device),
    )
