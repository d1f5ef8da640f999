"""Soft actor-critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications"), with a tuned temperature.

The policy maximises reward plus α times its own entropy. Two critics are fitted to

    y = r + γ (1 − terminated) (min_k Q_k(s′, a′; θ⁻) − α log π(a′|s′)),   a′ ~ π(·|s′)

where θ⁻ follows θ by a share τ each update; the actor minimises E[α log π(a|s) − min_k Q_k(s, a)] and the temperature
E[−log α · (log π(a|s) + H)] (the objective in log α of the authors' code), with the target entropy H = −dim(A).
"""

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import gymnasium
import torch
import tyro
from gymnasium import spaces
from torch import Tensor

from rl.accelerate import Acceleration, Descent, Loss, Metrics
from rl.buffers import ReplayBuffer
from rl.errors import UsageError
from rl.networks import TwinCritic, q_network, squashed
from rl.optimizers import Adam
from rl.random_state import restore
from rl.returns import polyak, td_target
from rl.transition import Transition
from rl.validate import check_fields


@dataclass(frozen=True)
class Config:
    """How SAC learns; the defaults solve Pendulum-v1. Counts are environment steps, summed over environments."""

    learning_rate: Annotated[float, tyro.conf.arg(aliases=["--lr"])] = 1e-3  # step size of Adam, for all networks
    gamma: float = 0.99  # discount per step
    batch_size: int = 256  # transitions per update
    buffer_size: int = 200_000  # transitions kept in the replay
    learning_starts: int = 500  # environment steps of random actions before the first update
    update_interval: int = 1  # environment steps per update
    tau: float = 0.005  # share by which the target critics follow in each update
    initial_alpha: float = 1.0  # temperature at the start
    hidden_sizes: tuple[int, ...] = (256, 256)  # units of each hidden layer, actor and critics alike
    network: str = ""  # module:function that makes the actor instead: (observation space, outputs) -> nn.Module

    def __post_init__(self) -> None:
        check_fields(
            self,
            at_least_1=("batch_size", "buffer_size", "learning_starts", "update_interval"),
            above_0=("learning_rate", "initial_alpha"),
            between_0_and_1=("gamma", "tau"),
        )


class Batch(NamedTuple):
    """What one update of critics and actor learns from."""

    obs: Tensor  # [B, S]
    actions: Tensor  # [B, A]
    rewards: Tensor  # [B]
    next_obs: Tensor  # [B, S]
    terminations: Tensor  # [B]
    truncations: Tensor  # [B]
    next_noise: Tensor  # [B, A] from N(0, 1): draws today's actions in `next_obs`
    noise: Tensor  # [B, A] from N(0, 1): draws today's actions in `obs`


class PolicyEntropy(NamedTuple):
    """What one update of the temperature learns from."""

    entropy: Tensor  # [1] estimate of −E[log π(a|s)]


def critic_loss(
    critic: TwinCritic,
    target_critic: TwinCritic,
    batch: Batch,
    next_actions: Tensor,
    next_log_probs: Tensor,
    alpha: Tensor,
    gamma: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean squared error of both critics to the soft target; `next_actions` [B, A] were drawn by today's policy."""
    with torch.no_grad():
        next_values = target_critic(batch.next_obs, next_actions).amin(dim=0) - alpha * next_log_probs
        targets = td_target(batch.rewards, next_values, batch.terminations, gamma)
    q_values = critic(batch.obs, batch.actions)
    total = (q_values - targets).square().mean(dim=1).sum()
    return total, {"critic_loss": total.detach(), "q_value": q_values.detach().mean()}


def actor_loss(critic: TwinCritic, obs: Tensor, actions: Tensor, log_probs: Tensor, alpha: Tensor) -> Tensor:
    """E[α log π(a|s) − min_k Q_k(s, a)]; differentiable in the policy through `actions` and `log_probs`."""
    return (alpha * log_probs - critic(obs, actions).amin(dim=0)).mean()


def alpha_loss(log_alpha: Tensor, entropy: Tensor, target_entropy: float) -> Tensor:
    """log α · (entropy − H): raises α while the policy's entropy lies below H."""
    return (log_alpha * (entropy - target_entropy)).mean()


class SAC:
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
        if not isinstance(action_space, spaces.Box):
            raise UsageError(f"SAC needs continuous actions, and this environment takes {action_space}: train ppo")
        if len(observation_space.shape or ()) != 1:
            raise UsageError(f"SAC learns from vectors, and this environment shows {observation_space}: train ppo")
        if config.buffer_size < num_envs:
            raise UsageError(f"--buffer-size {config.buffer_size}: must hold one step of all {num_envs} environments")
        acceleration.check_splits(config.batch_size, "--batch-size")
        self.config = config
        self.acceleration = acceleration
        self.num_envs = num_envs
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.step = 0  # environment steps observed
        self.updates = 0  # updates made, each one of critics, actor and temperature
        inputs, self.action_size = math.prod(observation_space.shape or ()), math.prod(action_space.shape)
        self.target_entropy = -float(self.action_size)
        self.actor = q_network(observation_space, config.hidden_sizes, 2 * self.action_size, config.network).to(device)
        self.critic = TwinCritic(inputs + self.action_size, config.hidden_sizes).to(device)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = torch.tensor(math.log(config.initial_alpha), device=device, requires_grad=True)
        log_alpha = [("log_alpha", self.log_alpha)]
        self.descents = {
            "critics": self._descent(self._critic_loss, Batch, self.critic.named_parameters()),
            "actor": self._descent(self._actor_loss, Batch, self.actor.named_parameters()),
            "temperature": self._descent(self._alpha_loss, PolicyEntropy, log_alpha),
        }
        self.buffer = ReplayBuffer(
            config.buffer_size, num_envs, observation_space, action_space, device, acceleration.replay_device, seed
        )

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = True) -> Tensor:
        """Actions [n, A] in ±1: drawn from the policy (at first uniformly), tanh of its mean without `explore`."""
        if explore and self.step < self.config.learning_starts:
            uniform = torch.rand(len(obs), self.action_size, generator=self.generator, device=self.device)
            return 2 * uniform - 1
        with self.acceleration.autocast(self.device):
            parameters = self.actor(obs).float()
        return squashed(parameters, self._noise(obs))[0] if explore else parameters.chunk(2, dim=-1)[0].tanh()

    def _noise(self, obs: Tensor) -> Tensor:
        shape = (obs.shape[0], self.action_size)
        return torch.randn(shape, generator=self.generator, device=self.device)

    def observe(self, transition: Transition) -> None:
        """Store one step of all environments."""
        self.buffer.add(transition)
        self.step += self.num_envs

    def learn(self) -> dict[str, Tensor | float]:
        """Make the updates that are due; returns the last one's metrics, {} where none was due."""
        config, metrics = self.config, {}
        due = max(self.step - config.learning_starts, 0) // config.update_interval
        if self.buffer.size < min(config.learning_starts, config.buffer_size):
            self.updates = due  # a replay that was lost is filled first
        while self.updates < due:
            metrics = self._update(self.buffer.sample(config.batch_size, self.generator))
            self.updates += 1
        return {**metrics}

    def _update(self, transitions: Transition) -> Metrics:
        batch = Batch(*transitions, self._noise(transitions.obs), self._noise(transitions.obs))
        metrics = self.descents["critics"](batch) | self.descents["actor"](batch)
        metrics |= self.descents["temperature"](PolicyEntropy(metrics["entropy"].unsqueeze(0)))
        polyak(self.target_critic.parameters(), self.critic.parameters(), self.config.tau)
        return metrics

    def _descent(self, loss: Loss, batch_type: type, parameters: Iterable[tuple[str, Tensor]]) -> Descent:
        def adam(parameters: list[Tensor]) -> Adam:
            return Adam(parameters, self.config.learning_rate)

        return Descent(loss, batch_type, parameters, adam, self.device, self.acceleration)

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        with torch.no_grad():
            next_actions, next_log_probs = squashed(self.actor(batch.next_obs).float(), batch.next_noise)
        alpha = self.log_alpha.detach().exp()
        return critic_loss(
            self.critic, self.target_critic, batch, next_actions, next_log_probs, alpha, self.config.gamma
        )

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        actions, log_probs = squashed(self.actor(batch.obs).float(), batch.noise)
        total = actor_loss(self.critic, batch.obs, actions, log_probs, self.log_alpha.detach().exp())
        return total, {"actor_loss": total.detach(), "entropy": -log_probs.detach().mean()}

    def _alpha_loss(self, batch: PolicyEntropy) -> tuple[Tensor, Metrics]:
        return alpha_loss(self.log_alpha, batch.entropy, self.target_entropy), {"alpha": self.log_alpha.detach().exp()}

    def state_dict(self) -> dict[str, Any]:
        """Everything the agent knows. Tensors are live: write them out or clone them before the next step."""
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "target_critic": self.target_critic.state_dict(),
            "log_alpha": self.log_alpha.detach(),
            "descents": {name: descent.state_dict() for name, descent in self.descents.items()},
            "buffer": self.buffer.state_dict(),
            "generator": self.generator.get_state(),
            "step": self.step,
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name in ("actor", "critic", "target_critic"):
            getattr(self, name).load_state_dict(state[name])
        with torch.no_grad():
            self.log_alpha.copy_(state["log_alpha"])
        for name, descent in self.descents.items():
            descent.load_state_dict(state["descents"][name])
        self.buffer.load_state_dict(state["buffer"])
        restore(self.generator, state["generator"])
        self.step, self.updates = state["step"], state["updates"]
