"""Stable-Baselines3: `--work` as in measure.py. The goals' settings are those of its own RL Zoo."""

from typing import Any

import ale_py
import gymnasium
from measure import Goal, OffPolicy, OnPolicy, Recorded, Run
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack
from torch import nn

gymnasium.register_envs(ale_py)
run = Run("sb3", "stable-baselines3")
work = run.work
shared = {"seed": run.seed, "device": "cpu"}


def vector(num_envs: int) -> VecEnv:
    """Environments as its users make them, with the recorder around each."""
    return make_vec_env(work.env_id, num_envs, run.seed, wrapper_class=Recorded, wrapper_kwargs={"run": run})


def linear(start: float) -> Any:  # noqa: ANN401
    """A schedule that falls to 0 with the run."""
    return lambda remaining: remaining * start


def ppo(work: OnPolicy) -> PPO:
    """PPO by the shared hyper-parameters."""
    settings = {
        "n_steps": work.num_steps,
        "batch_size": work.batch_size,
        "n_epochs": work.num_epochs,
        "learning_rate": work.learning_rate,
        "gamma": work.gamma,
        "gae_lambda": work.gae_lambda,
        "clip_range": work.clip_coef,
        "vf_coef": work.value_coef,
        "ent_coef": work.entropy_coef,
        "max_grad_norm": work.max_grad_norm,
    }
    if work.env_id.startswith("ALE/"):
        # no repetition of actions at random: the wrappers are of the NoFrameskip-v4 games
        plain = {"frameskip": 1, "repeat_action_probability": 0.0, "full_action_space": False}
        games = make_atari_env(work.env_id, work.num_envs, run.seed, env_kwargs=plain)
        return PPO("CnnPolicy", VecFrameStack(games, 4), **settings, **shared)
    network = {"net_arch": list(work.hidden_sizes), "activation_fn": nn.Tanh}
    return PPO("MlpPolicy", vector(work.num_envs), policy_kwargs=network, **settings, **shared)


def dqn(work: OffPolicy) -> DQN:
    """DQN by the shared hyper-parameters."""
    return DQN(
        "MlpPolicy",
        vector(1),
        learning_rate=work.learning_rate,
        gamma=work.gamma,
        batch_size=work.batch_size,
        buffer_size=work.buffer_size,
        learning_starts=work.learning_starts,
        train_freq=1,
        gradient_steps=1,
        target_update_interval=work.target_interval,
        policy_kwargs={"net_arch": list(work.hidden_sizes)},
        **shared,
    )


def sac(work: OffPolicy) -> SAC:
    """SAC by the shared hyper-parameters."""
    return SAC(
        "MlpPolicy",
        vector(1),
        learning_rate=work.learning_rate,
        gamma=work.gamma,
        batch_size=work.batch_size,
        buffer_size=work.buffer_size,
        learning_starts=work.learning_starts,
        tau=work.tau,
        policy_kwargs={"net_arch": list(work.hidden_sizes)},
        **shared,
    )


def zoo(name: str) -> tuple[PPO | DQN | SAC, int]:
    """The RL Zoo's settings, and the steps over which its schedules run."""
    if name == "ppo-cartpole-475":
        model = PPO(
            "MlpPolicy",
            vector(8),
            n_steps=32,
            batch_size=256,
            n_epochs=20,
            learning_rate=linear(1e-3),
            clip_range=linear(0.2),
            gamma=0.98,
            gae_lambda=0.8,
            ent_coef=0.0,
            **shared,
        )
        return model, 100_000
    if name == "dqn-cartpole-195":
        model = DQN(
            "MlpPolicy",
            vector(1),
            learning_rate=2.3e-3,
            batch_size=64,
            buffer_size=100_000,
            learning_starts=1_000,
            target_update_interval=10,
            train_freq=256,
            gradient_steps=128,
            exploration_fraction=0.16,
            exploration_final_eps=0.04,
            policy_kwargs={"net_arch": [256, 256]},
            **shared,
        )
        return model, 50_000
    return SAC("MlpPolicy", vector(1), learning_rate=1e-3, **shared), work.max_steps


if isinstance(work, Goal):
    model, steps = zoo(run.name)
elif isinstance(work, (OnPolicy, OffPolicy)) and run.name != "ppo-cartpole-4096":
    make = {"ppo": ppo, "dqn": dqn, "sac": sac}[run.algorithm]
    model, steps = make(work), run.asked_steps
else:
    run.unknown()
run.train(lambda: model.learn(steps))
run.steps = model.num_timesteps
run.report()
