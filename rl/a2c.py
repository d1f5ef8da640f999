"""Advantage actor-critic, the synchronous form of A3C (Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement
Learning"; Wu et al. 2017).

Every `num_steps` steps of N environments one gradient step is made on

    L = −E[log π(a|s) A] + value_coef · ½ E[(V(s) − R)²] − entropy_coef · E[H(π(·|s))]

with the n-step advantages A (GAE with λ = 1) and the returns R = A + V(s), by RMSProp.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium
import torch
import tyro
from torch import Tensor

from rl.accelerate import Acceleration, Descent
from rl.buffers import RolloutBuffer
from rl.networks import ActorCritic
from rl.optimizers import RMSprop
from rl.random_state import restore
from rl.returns import annealed, gae
from rl.transition import Transition
from rl.validate import check_fields


@dataclass(frozen=True)
class Config:
    """How A2C learns; the defaults solve CartPole-v1. Counts are environment steps, summed over environments."""

    learning_rate: Annotated[float, tyro.conf.arg(aliases=["--lr"])] = 7e-4  # step size of RMSProp
    anneal_steps: int = 0  # environment steps over which the learning rate falls to 0; 0 keeps it constant
    gamma: float = 0.99  # discount per step
    gae_lambda: float = 1.0  # GAE's λ: 1 gives n-step returns
    num_steps: int = 5  # steps of each environment per update
    value_coef: float = 0.5  # weight of the value loss
    entropy_coef: float = 0.0  # weight of the entropy bonus
    max_grad_norm: float = 0.5  # gradients are scaled down to this norm
    hidden_sizes: tuple[int, ...] = (64, 64)  # units of each hidden layer; pictures go through a CNN instead
    network: str = ""  # module:function that makes the network instead: (observation space, outputs) -> nn.Module

    def __post_init__(self) -> None:
        check_fields(
            self,
            at_least_1=("num_steps",),
            not_negative=("anneal_steps",),
            above_0=("learning_rate", "max_grad_norm"),
            between_0_and_1=("gamma", "gae_lambda"),
        )


def loss(network: ActorCritic, rollout: Transition, config: Config) -> tuple[Tensor, dict[str, Tensor]]:
    """The objective over a rollout [T, N], and what to log; no gradient flows through advantages and returns."""
    parameters, values = network(rollout.obs)
    with torch.no_grad():
        advantages = gae(
            rollout.rewards,
            values,
            network.value(rollout.next_obs),
            rollout.terminations,
            rollout.truncations,
            config.gamma,
            config.gae_lambda,
        )
        returns = advantages + values
    head = network.head
    policy_loss = -(head.log_prob(parameters, rollout.actions) * advantages).mean()
    value_loss = 0.5 * (values - returns).square().mean()
    entropy = head.entropy(parameters).mean()
    total = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
    return total, {name: value.detach() for name, value in metrics.items()}


class A2C:
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
        acceleration.check_splits(num_envs, "--num-envs")
        self.config = config
        self.acceleration = acceleration
        self.num_envs = num_envs
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.step = 0  # environment steps observed
        self.updates = 0  # optimiser steps taken
        self.network = ActorCritic(observation_space, action_space, config.hidden_sizes, network=config.network).to(
            device
        )
        self.descent = Descent(
            lambda rollout: loss(self.network, rollout, config),
            Transition,
            self.network.named_parameters(),
            lambda parameters: RMSprop(parameters, config.learning_rate),
            device,
            acceleration,
            max_grad_norm=config.max_grad_norm,
            split_dim=1,  # a rollout [T, N] is split between environments: returns need every step
        )
        self.descents = {"policy and value": self.descent}
        self.buffer = RolloutBuffer(config.num_steps, num_envs, observation_space, action_space, device)

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
        """Update when the rollout is full; returns its metrics, {} before."""
        if not self.buffer.full:
            return {}
        config = self.config
        rate = annealed(config.learning_rate, self.step, config.anneal_steps)
        self.descent.set_learning_rate(rate)
        metrics = self.descent(self.buffer.storage)
        self.buffer.clear()
        self.updates += 1
        return {**metrics, "learning_rate": rate}

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
