"""Proximal policy optimisation (Schulman et al. 2017), in the form of its reference implementation (Huang et al. 2022,
"The 37 Implementation Details of Proximal Policy Optimization").

`num_steps` steps of N environments are collected, their advantages estimated by GAE, and `num_epochs` passes of
minibatch updates made of

    L = −E[min(r A, clip(r, 1 − c, 1 + c) A)] + value_coef · ½ E[(V(s) − R)²] − entropy_coef · E[H(π(·|s))]

with the ratio r = π(a|s) / π_old(a|s) and the returns R = A + V_old(s).
"""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import gymnasium
import torch
import tyro
from torch import Tensor

from rl.accelerate import Acceleration, Descent
from rl.buffers import RolloutBuffer
from rl.errors import UsageError
from rl.frames import is_image
from rl.networks import ActorCritic
from rl.optimizers import Adam
from rl.random_state import restore
from rl.returns import annealed, explained_variance, gae
from rl.transition import Transition
from rl.validate import check_fields


@dataclass(frozen=True)
class Config:
    """How PPO learns; the defaults solve CartPole-v1. Counts are environment steps, summed over environments."""

    learning_rate: Annotated[float, tyro.conf.arg(aliases=["--lr"])] = 1e-3  # step size of Adam
    anneal_steps: int = 0  # environment steps over which the learning rate falls to 0; 0 keeps it constant
    gamma: float = 0.99  # discount per step
    gae_lambda: float = 0.95  # GAE's λ: 0 trusts the value network, 1 the returns
    num_steps: int = 128  # steps of each environment per rollout
    num_epochs: int = 10  # passes over a rollout
    num_minibatches: int = 4  # updates per pass
    clip_coef: float = 0.2  # how far the ratio may leave 1
    target_kl: float = 0.0  # no further epoch once approx_kl passed 1.5 times this; 0 always makes all epochs
    value_coef: float = 0.5  # weight of the value loss
    entropy_coef: float = 0.0  # weight of the entropy bonus
    max_grad_norm: float = 0.5  # gradients are scaled down to this norm
    hidden_sizes: tuple[int, ...] = (64, 64)  # units of each hidden layer; pictures go through a CNN instead
    network: str = ""  # module:function that makes the network instead: (observation space, outputs) -> nn.Module
    shared_trunk: bool = False  # whether policy and value network share their hidden layers

    def __post_init__(self) -> None:
        check_fields(
            self,
            at_least_1=("num_steps", "num_epochs", "num_minibatches"),
            not_negative=("anneal_steps", "target_kl"),
            above_0=("learning_rate", "clip_coef", "max_grad_norm"),
            between_0_and_1=("gamma", "gae_lambda"),
        )


class Batch(NamedTuple):
    """What one update learns from."""

    obs: Tensor  # [B, …]
    actions: Tensor  # [B, …]
    log_probs: Tensor  # [B] log π_old(a|s)
    advantages: Tensor  # [B]
    returns: Tensor  # [B] targets of the value network


def normalized(batch: Batch) -> Batch:
    """A minibatch with its advantages brought to mean 0 and standard deviation 1; a single one is left as it is."""
    advantages = batch.advantages
    if advantages.shape[0] == 1:
        return batch
    return batch._replace(advantages=(advantages - advantages.mean()) / (advantages.std() + 1e-8))


def loss(network: ActorCritic, batch: Batch, config: Config) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped objective over a minibatch [B], and what to log.

    `approx_kl` is E[(r − 1) − log r], which is never negative (Schulman 2020, "Approximating KL divergence", k3).
    """
    head = network.head
    parameters, values = network(batch.obs)
    log_ratio = head.log_prob(parameters, batch.actions) - batch.log_probs
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - config.clip_coef, 1 + config.clip_coef)
    policy_loss = -torch.min(ratio * batch.advantages, clipped * batch.advantages).mean()
    value_loss = 0.5 * (values - batch.returns).square().mean()
    entropy = head.entropy(parameters).mean()
    total = policy_loss + config.value_coef * value_loss
    if config.entropy_coef:
        total = total - config.entropy_coef * entropy
    with torch.no_grad():
        approx_kl = (ratio - 1 - log_ratio).mean()
        clip_fraction = ((ratio - 1).abs() > config.clip_coef).float().mean()
    metrics = {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy.detach(),
        "approx_kl": approx_kl,
        "clip_fraction": clip_fraction,
    }
    return total, metrics


class PPO:
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
        self.batch_size = config.num_steps * num_envs
        if self.batch_size % config.num_minibatches:
            raise UsageError(
                f"--num-minibatches {config.num_minibatches}: must divide the rollout of {config.num_steps} steps x "
                f"{num_envs} environments = {self.batch_size}"
            )
        acceleration.check_splits(self.batch_size // config.num_minibatches, "the minibatch")
        self.config = config
        self.acceleration = acceleration
        self.num_envs = num_envs
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.step = 0  # environment steps observed
        self.updates = 0  # optimiser steps taken
        self.network = ActorCritic(
            observation_space, action_space, config.hidden_sizes, config.shared_trunk, config.network
        ).to(device)
        self.descent = Descent(
            lambda batch: loss(self.network, batch, config),
            Batch,
            self.network.named_parameters(),
            lambda parameters: Adam(parameters, config.learning_rate, eps=1e-5),
            device,
            acceleration,
            max_grad_norm=config.max_grad_norm,
        )
        self.descents = {"policy and value": self.descent}
        self.buffer = RolloutBuffer(config.num_steps, num_envs, observation_space, action_space, device)
        self.chunk = max((256 if is_image(observation_space) else 8192) // num_envs, 1)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = True) -> Tensor:
        """Actions [n, …] for observations [n, …]: drawn from the policy, the most likely ones without `explore`."""
        with self.acceleration.autocast(self.device):
            head, parameters = self.network.head, self.network.policy(obs)
        return head.sample(parameters, self.generator) if explore else head.mode(parameters)

    def observe(self, transition: Transition) -> None:
        """Store one step of all environments."""
        self.buffer.add(transition)
        self.step += self.num_envs

    def learn(self) -> dict[str, Tensor | float]:
        """Update when the rollout is full; returns the means of its metrics, {} before.

        `explained_variance` is that of the value network before the updates.
        """
        if not self.buffer.full:
            return {}
        config = self.config
        rate = annealed(config.learning_rate, self.step, config.anneal_steps)
        self.descent.set_learning_rate(rate)
        batch = self._batch()
        self.buffer.clear()
        history = []
        for _ in range(config.num_epochs):
            order = torch.randperm(self.batch_size, generator=self.generator, device=self.device)
            shuffled = Batch(*(value[order] for value in batch))
            for minibatch in zip(*(value.chunk(config.num_minibatches) for value in shuffled), strict=True):
                history.append(self.descent(normalized(Batch(*minibatch))))
                self.updates += 1
            if config.target_kl and history[-1]["approx_kl"] > 1.5 * config.target_kl:  # one host read per epoch
                break
        metrics: dict[str, Tensor | float] = {
            name: torch.stack([m[name] for m in history]).mean() for name in history[0]
        }
        metrics["explained_variance"] = explained_variance(batch.returns - batch.advantages, batch.returns)
        return {**metrics, "learning_rate": rate}

    @torch.no_grad()
    def _batch(self) -> Batch:
        """The rollout [T, N] flattened to [T·N], with the old policy's log-probabilities and the advantages."""
        rollout = self.buffer.storage
        with self.acceleration.autocast(self.device):
            parts = [self.network(part) for part in rollout.obs.split(self.chunk)]
            parameters, values = (torch.cat(part) for part in zip(*parts, strict=True))
            next_values = torch.cat([values[1:], self.network.value(rollout.next_obs[-1:])])
            cut = rollout.truncations
            next_values[cut] = self.network.value(rollout.next_obs[cut])  # an episode that ended goes on elsewhere
        log_probs = self.network.head.log_prob(parameters, rollout.actions)
        advantages = gae(
            rollout.rewards,
            values,
            next_values,
            rollout.terminations,
            rollout.truncations,
            self.config.gamma,
            self.config.gae_lambda,
        )
        batch = Batch(rollout.obs, rollout.actions, log_probs, advantages, advantages + values)
        return Batch(*(value.flatten(0, 1) for value in batch))

    def state_dict(self) -> dict[str, Any]:
        """Everything the agent knows. Tensors are live: write them out or clone them before the next step."""
        return {
            "network": self.network.state_dict(),
            "descent": self.descent.state_dict(),
            "buffer": self.buffer.state_dict(),
            "generator": self.generator.get_state(),
            "step": self.step,
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.network.load_state_dict(state["network"])
        self.descent.load_state_dict(state["descent"])
        self.buffer.load_state_dict(state["buffer"])
        restore(self.generator, state["generator"])
        self.step, self.updates = state["step"], state["updates"]
