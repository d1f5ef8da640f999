"""Atari games by ale-py's own vector environment: emulators and preprocessing in C++ threads."""

from typing import Any

import gymnasium
import numpy as np
import torch
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode
from torch import Tensor

from rl.envs.contract import Episode, EpisodeCounter, episode_seeds, transition
from rl.frames import FrameStack
from rl.transition import Transition


class AleEnvs:
    """N games of Atari, preprocessed as in Mnih et al. 2015 ("Human-level control through deep reinforcement
    learning"): up to 30 no-ops after a reset, and FIRE where the game needs it; each action for 4 frames; the maximum
    of the last 2; gray, 84 x 84; the last 4 stacked. A game is truncated after 108,000 frames (half an hour).

    Actions are never repeated at random (`repeat_action_probability` 0): so it is in the `NoFrameskip-v4` environments
    that published results of DQN, PPO and A2C refer to; `gymnasium.make("ALE/…-v5")` repeats one in four.

    In training, rewards are cut to their sign and the loss of a life is a termination, although the game goes on with
    the next observation. Episodes count whole games and true rewards all the same. In evaluation neither is done.
    """

    unsaved = "ale-py's vector environment does not give its state"
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    obs: Tensor
    lives: np.ndarray  # [N] of the game in progress
    frames: np.ndarray  # [N] frames that it has lasted

    def __init__(
        self, game: str, num_envs: int, seed: int, device: str, *, training: bool, max_frames: int = 108_000
    ) -> None:
        # episodic_life is no choice: it starts a new game at each loss of a life, so that later lives are never seen
        self.envs = AtariVectorEnv(
            game,
            num_envs,
            autoreset_mode=AutoresetMode.SAME_STEP,
            max_num_frames_per_episode=max_frames,
            repeat_action_probability=0.0,
            life_loss_info=training,
            reward_clipping=False,
            use_fire_reset=True,
            noop_max=30,
        )
        self.training = training
        self.num_envs = num_envs
        self.observation_space = FrameStack(0, 255, self.envs.single_observation_space.shape, np.uint8)
        self.action_space = self.envs.single_action_space
        self.device = device
        self.seed, self.restarts = seed, 0  # restarts: how often the run was resumed
        self.episodes = EpisodeCounter(num_envs)
        self._start()

    def step(self, actions: Tensor) -> Transition:
        """See `Envs.step`."""
        array, rewards, terminations, truncations, infos = self.envs.step(actions.cpu().numpy())
        lives, frames = infos["lives"], infos["episode_frame_number"]
        life_lost = (lives < self.lives) & (frames > self.frames)  # else a new game has begun: numbers are its own
        over = (terminations & ~(self.training & life_lost)) | truncations
        self.lives, self.frames = lives, frames
        self.episodes.count(rewards, over)
        obs, self.obs = self.obs, self._tensor(array)
        next_obs = self.obs
        if over.any():  # SAME_STEP: these rows of array already hold the next game's first observation
            next_obs = self._tensor(np.where(over[:, None, None, None], infos["final_obs"], array))
        if self.training:
            rewards = np.sign(rewards)
        return transition(obs, actions, rewards, next_obs, terminations, truncations)

    def take_episodes(self) -> list[Episode]:
        """See `Envs.take_episodes`."""
        return self.episodes.take()

    def render(self) -> tuple[np.ndarray, int]:
        """What the agent sees: the newest frame, four times as large."""
        frame = self.obs[0, -1].cpu().numpy().repeat(4, axis=0).repeat(4, axis=1)
        return np.stack([frame] * 3, axis=-1), 15

    def state_dict(self) -> dict[str, Any]:
        """How often the run was resumed: `unsaved` says why no more."""
        return {"restarts": self.restarts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start new games, seeded anew."""
        self.restarts = state["restarts"] + 1
        self.episodes = EpisodeCounter(self.num_envs)
        self._start()

    def close(self) -> None:
        """See `Envs.close`."""
        self.envs.close()
        del self.envs.ale  # ends its threads

    def _start(self) -> None:
        seeds = np.array(episode_seeds(self.seed, self.restarts, self.num_envs))
        array, infos = self.envs.reset(seed=seeds)
        self.lives, self.frames = infos["lives"], infos["episode_frame_number"]
        self.obs = self._tensor(array)

    def _tensor(self, obs: np.ndarray) -> Tensor:
        return torch.from_numpy(obs).to(self.device)
