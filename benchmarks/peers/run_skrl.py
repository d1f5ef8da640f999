"""skrl: `--work` as in measure.py. PPO's goal has the shared hyper-parameters, which are Stable-Baselines3's but
for the schedules; SAC's those of the RL Zoo. DQN is measured at work only: its exploration draws one and the same
action over and over with gymnasium 1.4 (each sample is the first of a space made for it).
"""

from typing import Any

import gymnasium
import torch
from measure import WORKS, OffPolicy, OnPolicy, Recorded, Run
from skrl.agents.torch import Agent
from skrl.agents.torch.dqn import DQN, DQN_CFG
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.agents.torch.sac import SAC, SAC_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from torch import Tensor, nn

QUIET = {"write_interval": 0, "checkpoint_interval": 0}

run = Run("skrl", "skrl")
work = run.work
set_seed(run.seed)


def mlp(inputs: int, hidden_sizes: tuple[int, ...], outputs: int, activation: type[nn.Module]) -> nn.Sequential:
    """A multi-layer perceptron."""
    layers: list[nn.Module] = []
    for size in hidden_sizes:
        layers += [nn.Linear(inputs, size), activation()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


class Policy(CategoricalMixin, Model):
    """π(a|s) of discrete actions."""

    def __init__(self, spaces: dict[str, Any], hidden_sizes: tuple[int, ...]) -> None:
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self)
        self.net = mlp(self.num_observations, hidden_sizes, self.num_actions, nn.Tanh)

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[Tensor, dict[str, Any]]:
        """Logits."""
        return self.net(inputs["observations"]), {}


class Values(DeterministicMixin, Model):
    """V(s), or Q(s, ·) with `outputs` actions."""

    def __init__(
        self, spaces: dict[str, Any], hidden_sizes: tuple[int, ...], outputs: int, activation: type[nn.Module]
    ) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = mlp(self.num_observations, hidden_sizes, outputs, activation)

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[Tensor, dict[str, Any]]:
        """Values."""
        return self.net(inputs["observations"]), {}


class Actor(GaussianMixin, Model):
    """SAC's policy, as in skrl's examples: the mean through tanh, scaled to Pendulum's torque, actions clipped."""

    def __init__(self, spaces: dict[str, Any], hidden_sizes: tuple[int, ...]) -> None:
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self, clip_actions=True, min_log_std=-5, max_log_std=2)
        self.net = mlp(self.num_observations, hidden_sizes, self.num_actions, nn.ReLU)
        self.log_std = nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[Tensor, dict[str, Any]]:
        """Mean and log σ."""
        return 2 * torch.tanh(self.net(inputs["observations"])), {"log_std": self.log_std}


class Critic(DeterministicMixin, Model):
    """Q(s, a)."""

    def __init__(self, spaces: dict[str, Any], hidden_sizes: tuple[int, ...]) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = mlp(self.num_observations + self.num_actions, hidden_sizes, 1, nn.ReLU)

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[Tensor, dict[str, Any]]:
        """The value."""
        return self.net(torch.cat([inputs["observations"], inputs["taken_actions"]], dim=1)), {}


def ppo(work: OnPolicy, env: Any, spaces: dict[str, Any]) -> Agent:  # noqa: ANN401
    """PPO by the shared hyper-parameters."""
    config = PPO_CFG(
        rollouts=work.num_steps,
        learning_epochs=work.num_epochs,
        mini_batches=work.num_minibatches,
        discount_factor=work.gamma,
        gae_lambda=work.gae_lambda,
        learning_rate=work.learning_rate,
        grad_norm_clip=work.max_grad_norm,
        ratio_clip=work.clip_coef,
        value_clip=0.0,
        value_loss_scale=work.value_coef,
        experiment=QUIET,
    )
    models = {
        "policy": Policy(spaces, work.hidden_sizes),
        "value": Values(spaces, work.hidden_sizes, 1, nn.Tanh),
    }
    memory = RandomMemory(memory_size=work.num_steps, num_envs=work.num_envs, device="cpu")
    return PPO(models=models, memory=memory, cfg=config, **spaces)


def dqn(work: OffPolicy, env: Any, spaces: dict[str, Any]) -> Agent:  # noqa: ANN401
    """DQN by the shared hyper-parameters."""
    config = DQN_CFG(
        batch_size=work.batch_size,
        discount_factor=work.gamma,
        learning_rate=work.learning_rate,
        polyak=1.0,
        target_update_interval=work.target_interval,
        random_timesteps=work.learning_starts,
        learning_starts=work.learning_starts,
        exploration_scheduler=lambda timestep, timesteps: max(0.05, 1 - 10 * timestep / timesteps),
        experiment=QUIET,
    )
    actions = env.action_space.n
    models = {name: Values(spaces, work.hidden_sizes, actions, nn.ReLU) for name in ("q_network", "target_q_network")}
    memory = RandomMemory(memory_size=work.buffer_size, num_envs=1, device="cpu")
    return DQN(models=models, memory=memory, cfg=config, **spaces)


def sac(work: OffPolicy, env: Any, spaces: dict[str, Any]) -> Agent:  # noqa: ANN401
    """SAC by the shared hyper-parameters."""
    config = SAC_CFG(
        batch_size=work.batch_size,
        discount_factor=work.gamma,
        learning_rate=work.learning_rate,
        polyak=work.tau,
        random_timesteps=work.learning_starts,
        learning_starts=work.learning_starts,
        initial_entropy_value=1.0,
        experiment=QUIET,
    )
    critics = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
    models: dict[str, Model] = {"policy": Actor(spaces, work.hidden_sizes)}
    models |= {name: Critic(spaces, work.hidden_sizes) for name in critics}
    memory = RandomMemory(memory_size=work.buffer_size, num_envs=1, device="cpu")
    return SAC(models=models, memory=memory, cfg=config, **spaces)


if run.name in ("dqn-cartpole-195", "ppo-pong", "ppo-cartpole-4096") or run.algorithm not in ("ppo", "dqn", "sac"):
    run.unknown()
settings: Any = WORKS[run.name.removesuffix("-475").removesuffix("-200")]
num_envs = getattr(settings, "num_envs", 1)
if num_envs == 1:
    envs = wrap_env(Recorded(gymnasium.make(work.env_id), run))
else:
    envs = wrap_env(
        gymnasium.make_vec(work.env_id, num_envs, vectorization_mode="sync", wrappers=(lambda env: Recorded(env, run),))
    )
spaces = {"observation_space": envs.observation_space, "action_space": envs.action_space, "device": "cpu"}
agent = {"ppo": ppo, "dqn": dqn, "sac": sac}[run.algorithm](settings, envs, spaces)
timesteps = run.asked_steps // num_envs
trainer = SequentialTrainer(
    env=envs, agents=agent, cfg={"timesteps": timesteps, "headless": True, "disable_progressbar": True}
)
run.train(trainer.train)
run.report()
