"""Targets that agents learn from, and schedules: pure functions."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def td_target(rewards: Tensor, next_values: Tensor, terminations: Tensor, gamma: float | Tensor) -> Tensor:
    """One-step target r + γ (1 − terminated) V(s′) (Sutton & Barto 2018, eq. 6.2; for Q-learning V(s′) = max Q(s′, ·)).

    All [B]; `terminations` is bool; `gamma` is a number or, for n-step targets, the discount of each row. A truncated
    step keeps its bootstrap.

    >>> td_target(torch.tensor([1.0, 1.0]), torch.tensor([10.0, 10.0]), torch.tensor([False, True]), gamma=0.9)
    tensor([10.,  1.])
    """
    return rewards + gamma * next_values * ~terminations


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminations: Tensor,
    truncations: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 11 and 16), cut at the end of each episode.

        δ_t = r_t + γ (1 − terminated_t) V(s_t+1) − V(s_t)
        A_t = δ_t + γ λ (1 − ended_t) A_t+1,   ended = terminated or truncated

    All [T, N]; `next_values[t]` is the value of the true successor of step t, so the last row needs no special case and
    a truncated episode bootstraps from the state that it ended in. Returns the advantages [T, N].

    Two steps of one environment, the second of which ends the episode; δ = [1 + 0.5 · 4 − 2, 1 − 4]:

    >>> column, never = torch.tensor([[1.0], [1.0]]), torch.tensor([[False], [False]])
    >>> gae(column, column * 2, column * 4, torch.tensor([[False], [True]]), never, gamma=0.5, gae_lambda=0.5)
    tensor([[ 0.7500],
            [-1.0000]])
    """
    deltas = td_target(rewards, next_values, terminations, gamma) - values
    discounts = gamma * gae_lambda * ~(terminations | truncations)
    advantages = torch.empty_like(deltas)
    advantage = torch.zeros_like(deltas[0])
    for t in reversed(range(deltas.shape[0])):
        advantage = deltas[t] + discounts[t] * advantage
        advantages[t] = advantage
    return advantages


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """How much of the returns a value network explains: 1 − Var[R − V] / Var[R]
    (Dhariwal et al. 2017, "OpenAI Baselines").

    Both [B]; returns a scalar: 1 for a perfect prediction, 0 for one no better than a constant, below 0 for a worse
    one; nan where all returns are the same.

    >>> returns = torch.tensor([1.0, 2.0, 3.0])
    >>> explained_variance(returns + 5, returns), explained_variance(-returns, returns)
    (tensor(1.), tensor(-3.))
    """
    variance = returns.var()
    return torch.where(variance > 0, 1 - (returns - values).var() / variance, torch.nan)


@torch.no_grad()
def polyak(target: Iterable[nn.Parameter], online: Iterable[nn.Parameter], tau: float) -> None:
    """Move the target network towards the online one in place: θ⁻ ← (1 − τ) θ⁻ + τ θ (Lillicrap et al. 2016)."""
    torch._foreach_lerp_(list(target), list(online), tau)


def annealed(initial: float, step: int, anneal_steps: int) -> float:
    """`initial` falling linearly to 0 over `anneal_steps` environment steps; constant where that is 0.

    >>> annealed(1e-3, step=25, anneal_steps=100)
    0.00075
    """
    return initial * (max(1 - step / anneal_steps, 0.0) if anneal_steps else 1.0)
