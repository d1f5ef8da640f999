"""tianshou: `--work` as in measure.py. PPO's goal has the shared hyper-parameters, those of the RL Zoo without its
schedules; DQN's those of tianshou's own test_dqn.py.
"""

from typing import Any

import gymnasium
import numpy as np
import torch
from measure import WORKS, Goal, OffPolicy, OnPolicy, Recorded, Run
from tianshou.algorithm import DQN, PPO, SAC
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch import nn

run = Run("tianshou", "tianshou")
work = run.work
np.random.seed(run.seed)
torch.manual_seed(run.seed)
quiet: dict[str, Any] = {"max_epochs": 1, "test_collector": None, "verbose": False, "show_progress": False}


def vector(num_envs: int) -> DummyVectorEnv:
    """Environments stepped in turn, with the recorder around each."""
    envs = DummyVectorEnv([lambda: Recorded(gymnasium.make(work.env_id), run) for _ in range(num_envs)])
    envs.seed(run.seed)
    return envs


def optimizer(learning_rate: float) -> AdamOptimizerFactory:
    """Adam."""
    return AdamOptimizerFactory(lr=learning_rate)


def ppo(settings: OnPolicy, steps: int) -> tuple[Any, Any]:
    """PPO by the shared hyper-parameters."""
    envs = vector(settings.num_envs)
    space, actions = envs.observation_space[0].shape, envs.action_space[0]

    def trunk() -> Net:
        return Net(state_shape=space, hidden_sizes=settings.hidden_sizes, activation=nn.Tanh)

    actor = DiscreteActor(preprocess_net=trunk(), action_shape=actions.n, softmax_output=False)
    algorithm = PPO(
        policy=DiscreteActorPolicy(actor=actor, action_space=actions),
        critic=DiscreteCritic(preprocess_net=trunk()),
        optim=optimizer(settings.learning_rate),
        eps_clip=settings.clip_coef,
        vf_coef=settings.value_coef,
        ent_coef=settings.entropy_coef,
        max_grad_norm=settings.max_grad_norm,
        gae_lambda=settings.gae_lambda,
        gamma=settings.gamma,
    )
    rollout = settings.num_envs * settings.num_steps
    return algorithm, OnPolicyTrainerParams(
        training_collector=Collector(algorithm, envs, VectorReplayBuffer(rollout, settings.num_envs)),
        epoch_num_steps=steps,
        collection_step_num_env_steps=rollout,
        batch_size=settings.batch_size,
        update_step_num_repetitions=settings.num_epochs,
        **quiet,
    )


def dqn(settings: OffPolicy, steps: int) -> tuple[Any, Any]:
    """DQN, one update for each step of each environment; the goal by test_dqn.py, one update for ten steps."""
    goal = isinstance(work, Goal)
    num_envs = 10 if goal else 1
    envs = vector(num_envs)
    space, actions = envs.observation_space[0].shape, envs.action_space[0]
    hidden_sizes = (128, 128, 128, 128) if goal else settings.hidden_sizes
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=space, action_shape=actions.n, hidden_sizes=hidden_sizes),
        action_space=actions,
        eps_training=0.1,
    )
    algorithm = DQN(
        policy=policy,
        optim=optimizer(settings.learning_rate),
        gamma=0.9 if goal else settings.gamma,
        n_step_return_horizon=3 if goal else 1,
        target_update_freq=320 if goal else settings.target_interval,
        is_double=goal,
    )
    buffer = VectorReplayBuffer(20_000 if goal else settings.buffer_size, num_envs)

    def explore(epoch: int, env_step: int) -> None:
        policy.set_eps_training(0.1 - 0.09 * min(max(env_step - 10_000, 0) / 40_000, 1.0))

    return algorithm, OffPolicyTrainerParams(
        training_collector=Collector(algorithm, envs, buffer, exploration_noise=True),
        training_fn=explore,
        epoch_num_steps=steps - settings.learning_starts,
        collection_step_num_env_steps=num_envs,
        update_step_num_gradient_steps_per_sample=1 / num_envs,
        batch_size=settings.batch_size,
        **quiet,
    )


def sac(settings: OffPolicy, steps: int) -> tuple[Any, Any]:
    """SAC by the shared hyper-parameters."""
    envs = vector(1)
    space, actions = envs.observation_space[0].shape, envs.action_space[0]

    def critic() -> ContinuousCritic:
        net = Net(state_shape=space, action_shape=actions.shape, hidden_sizes=settings.hidden_sizes, concat=True)
        return ContinuousCritic(preprocess_net=net)

    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=space, hidden_sizes=settings.hidden_sizes),
        action_shape=actions.shape,
        unbounded=True,
        conditioned_sigma=True,
    )
    algorithm = SAC(
        policy=SACPolicy(actor=actor, action_space=actions),
        policy_optim=optimizer(settings.learning_rate),
        critic=critic(),
        critic_optim=optimizer(settings.learning_rate),
        critic2=critic(),
        critic2_optim=optimizer(settings.learning_rate),
        tau=settings.tau,
        gamma=settings.gamma,
        alpha=AutoAlpha(-1.0, 0.0, optimizer(settings.learning_rate)),
    )
    buffer = VectorReplayBuffer(settings.buffer_size, 1)
    return algorithm, OffPolicyTrainerParams(
        training_collector=Collector(algorithm, envs, buffer, exploration_noise=True),
        epoch_num_steps=steps - settings.learning_starts,
        collection_step_num_env_steps=1,
        update_step_num_gradient_steps_per_sample=1.0,
        batch_size=settings.batch_size,
        **quiet,
    )


if run.name in ("ppo-pong", "ppo-cartpole-4096") or run.algorithm not in ("ppo", "dqn", "sac"):
    run.unknown()
settings: Any = WORKS["-".join(run.name.split("-")[:2])]
algorithm, params = {"ppo": ppo, "dqn": dqn, "sac": sac}[run.algorithm](settings, run.asked_steps)


def learn() -> None:
    """Random steps first where there is a replay, then tianshou's trainer."""
    if isinstance(settings, OffPolicy):
        first = 640 if run.name == "dqn-cartpole-195" else settings.learning_starts
        params.training_collector.reset()
        params.training_collector.collect(n_step=first, random=True)
    algorithm.run_training(params)


run.train(learn)
run.report()
