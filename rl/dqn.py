"""Deep Q-learning (Mnih et al. 2015, "Human-level control through deep reinforcement learning").

A network Q(s, a; θ) is fitted to the targets

    y = r + γ (1 − terminated) max_a′ Q(s′, a′; θ⁻)

of transitions drawn at random from a replay of the last ones; θ⁻ is a copy of θ taken every `target_interval` steps.
Double Q-learning (van Hasselt et al. 2016) lets the online network choose a′ and the copy value it, which removes the
bias of the maximum; with `n_steps` > 1 the target adds up n rewards before it bootstraps (Sutton & Barto 2018, ch. 7).
Actions are ε-greedy: ε falls linearly from `epsilon_start` to `epsilon_end`.
"""

import copy
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import gymnasium
import torch
import tyro
from gymnasium import spaces
from torch import Tensor, nn

from rl.accelerate import Acceleration, Descent
from rl.buffers import ReplayBuffer
from rl.errors import UsageError
from rl.networks import q_network
from rl.optimizers import Adam
from rl.random_state import restore
from rl.returns import polyak, td_target
from rl.transition import Transition
from rl.validate import check_fields


@dataclass(frozen=True)
class Config:
    """How DQN learns; the defaults solve CartPole-v1. Counts are environment steps, summed over environments."""

    learning_rate: Annotated[float, tyro.conf.arg(aliases=["--lr"])] = 1e-3  # step size of Adam
    gamma: float = 0.99  # discount per step
    batch_size: int = 64  # transitions per update
    buffer_size: int = 5_000  # transitions kept in the replay
    learning_starts: int = 1_000  # environment steps before the first update
    update_interval: int = 4  # environment steps per update
    target_interval: int = 250  # environment steps between copies to the target network
    epsilon_start: float = 1.0  # probability of a random action at step 0
    epsilon_end: float = 0.02  # probability of a random action from `epsilon_steps` on
    epsilon_steps: int = 5_000  # environment steps over which it falls
    double: bool = False  # double Q-learning
    n_steps: int = 1  # rewards that a target adds up before it bootstraps
    hidden_sizes: tuple[int, ...] = (128, 128)  # units of each hidden layer; pictures go through a CNN instead
    network: str = ""  # module:function that makes the network instead: (observation space, outputs) -> nn.Module

    def __post_init__(self) -> None:
        check_fields(
            self,
            at_least_1=(
                "batch_size",
                "buffer_size",
                "learning_starts",
                "update_interval",
                "target_interval",
                "epsilon_steps",
                "n_steps",
            ),
            above_0=("learning_rate",),
            between_0_and_1=("gamma", "epsilon_start", "epsilon_end"),
        )


class Batch(NamedTuple):
    """What one update learns from: transitions of up to `n_steps` steps."""

    obs: Tensor  # [B, …]
    actions: Tensor  # [B]
    rewards: Tensor  # [B] discounted sum over the steps
    next_obs: Tensor  # [B, …] after the last step
    terminations: Tensor  # [B] of the last step
    truncations: Tensor  # [B] of the last step
    discounts: Tensor  # [B] of the value of `next_obs`


def loss(network: nn.Module, target_network: nn.Module, batch: Batch, double: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean squared TD error over a batch [B], and what to log; differentiable in `network` only."""
    q_values = network(batch.obs).float().gather(1, batch.actions.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        next_q_values = target_network(batch.next_obs).float()
        if double:
            choices = network(batch.next_obs).argmax(dim=1, keepdim=True)
            next_values = next_q_values.gather(1, choices).squeeze(1)
        else:
            next_values = next_q_values.amax(dim=1)
        targets = td_target(batch.rewards, next_values, batch.terminations, batch.discounts)
    td_loss = nn.functional.mse_loss(q_values, targets)
    return td_loss, {"td_loss": td_loss.detach(), "q_value": q_values.detach().mean()}


class DQN:
    """The four verbs of an agent: act, observe, learn, and state_dict / load_state_dict."""

    def __init__(
        self,
        config: Config,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        num_envs: int,
        device: str = "cpu",
        seed: int = 0,
        acceleration: Acceleration = Acceleration(),
    ) -> None:
        if not isinstance(action_space, spaces.Discrete):
            raise UsageError(f"DQN needs discrete actions, and this environment takes {action_space}: train ppo or sac")
        if config.buffer_size < num_envs:
            raise UsageError(f"--buffer-size {config.buffer_size}: must hold one step of all {num_envs} environments")
        acceleration.check_splits(config.batch_size, "--batch-size")
        self.config = config
        self.acceleration = acceleration
        self.num_envs = num_envs
        self.num_actions = int(action_space.n)
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.step = 0  # environment steps observed
        self.updates = 0  # optimiser steps taken
        self.network = q_network(observation_space, config.hidden_sizes, self.num_actions, config.network).to(device)
        self.target_network = copy.deepcopy(self.network).requires_grad_(False)
        self.descent = Descent(
            lambda batch: loss(self.network, self.target_network, batch, config.double),
            Batch,
            self.network.named_parameters(),
            lambda parameters: Adam(parameters, config.learning_rate),
            device,
            acceleration,
        )
        self.descents = {"Q": self.descent}
        self.buffer = ReplayBuffer(
            config.buffer_size, num_envs, observation_space, action_space, device, acceleration.replay_device, seed
        )

    @property
    def epsilon(self) -> float:
        """Probability of a random action at this step."""
        config = self.config
        progress = min(self.step / config.epsilon_steps, 1.0)
        return config.epsilon_start + progress * (config.epsilon_end - config.epsilon_start)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = True) -> Tensor:
        """Actions [n] for observations [n, …]: ε-greedy, each environment by its own coin; greedy without `explore`."""
        with self.acceleration.autocast(self.device):
            greedy = self.network(obs).argmax(dim=1)
        if not explore:
            return greedy
        coins = torch.rand(len(obs), generator=self.generator, device=self.device)
        random = torch.randint(self.num_actions, (len(obs),), generator=self.generator, device=self.device)
        return torch.where(coins < self.epsilon, random, greedy)

    def observe(self, transition: Transition) -> None:
        """Store one step of all environments."""
        self.buffer.add(transition)
        self.step += self.num_envs

    def learn(self) -> dict[str, Tensor | float]:
        """Take the updates that are due; returns the last one's metrics, {} where none was due."""
        config, metrics = self.config, {}
        due = max(self.step - config.learning_starts, 0) // config.update_interval
        if self.buffer.size < min(config.learning_starts, config.buffer_size):
            self.updates = due  # a replay that was lost is filled first
        while self.updates < due:
            transitions, discounts = self.buffer.sample_n_step(
                config.batch_size, config.n_steps, config.gamma, self.generator
            )
            metrics = self.descent(Batch(*transitions, discounts))
            self.updates += 1
        if self.step // config.target_interval > (self.step - self.num_envs) // config.target_interval:
            polyak(self.target_network.parameters(), self.network.parameters(), tau=1.0)
        return {**metrics, "epsilon": self.epsilon} if metrics else {}

    def state_dict(self) -> dict[str, Any]:
        """Everything the agent knows. Tensors are live: write them out or clone them before the next step."""
        return {
            "network": self.network.state_dict(),
            "target_network": self.target_network.state_dict(),
            "descent": self.descent.state_dict(),
            "buffer": self.buffer.state_dict(),
            "generator": self.generator.get_state(),
            "step": self.step,
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.network.load_state_dict(state["network"])
        self.target_network.load_state_dict(state["target_network"])
        self.descent.load_state_dict(state["descent"])
        self.buffer.load_state_dict(state["buffer"])
        restore(self.generator, state["generator"])
        self.step, self.updates = state["step"], state["updates"]
