"""Returns and targets by hand and by brute force (pitfalls 4.1: 5, 8; 4.3: 2, 3, 23)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.returns import explained_variance, gae, polyak, td_target


def column(*values, dtype=torch.float32):
    """[T, 1]: one environment's rollout."""
    return torch.tensor(values, dtype=dtype).unsqueeze(1)


def flags(*values):
    return column(*values, dtype=torch.bool)


NO = flags(False, False, False, False)
REWARDS, VALUES, NEXT_VALUES = column(1, 2, 3, 4), column(1, 1, 1, 1), column(1, 1, 1, 5)


def test_a_terminated_step_loses_its_bootstrap_and_a_truncated_one_keeps_it():
    targets = td_target(torch.tensor([1.0, 1.0]), torch.tensor([10.0, 10.0]), torch.tensor([True, False]), 0.5)
    assert targets.tolist() == [1.0, 6.0]


def test_gae_of_an_unbroken_rollout_is_the_discounted_sum_of_td_errors():
    # γ = λ = 0.5, deltas by hand: 1 + 0.5·1 − 1 = 0.5, 1.5, 2.5, 4 + 0.5·5 − 1 = 5.5; each adds 0.25 of the next
    advantages = gae(REWARDS, VALUES, NEXT_VALUES, NO, NO, 0.5, 0.5)
    a3, a2 = 5.5, 2.5 + 0.25 * 5.5
    a1 = 1.5 + 0.25 * a2
    assert advantages.flatten().tolist() == pytest.approx([0.5 + 0.25 * a1, a1, a2, a3])


def test_a_termination_cuts_the_sum_and_the_bootstrap():
    ended = flags(False, True, False, False)
    advantages = gae(REWARDS, VALUES, NEXT_VALUES, ended, NO, 0.5, 0.5)
    # step 1: 2 + 0 − 1 = 1, and nothing of the steps after it
    assert advantages.flatten().tolist() == pytest.approx([0.5 + 0.25 * 1.0, 1.0, 3.875, 5.5])


def test_a_truncation_cuts_the_sum_and_keeps_the_bootstrap():
    ended = flags(False, True, False, False)
    advantages = gae(REWARDS, VALUES, column(1, 9, 1, 5), NO, ended, 0.5, 0.5)
    # step 1: 2 + 0.5·9 − 1 = 5.5 by the value of the state that the episode ended in
    assert advantages.flatten().tolist() == pytest.approx([0.5 + 0.25 * 5.5, 5.5, 3.875, 5.5])


def test_gae_of_one_step_is_the_td_error():
    advantages = gae(column(3), column(2), column(7), flags(False), flags(False), 0.9, 0.95)
    assert advantages.item() == pytest.approx(3 + 0.9 * 7 - 2)


def episode_advantages(rewards, values, bootstrap, gamma, gae_lambda):
    """Brute force, one episode: Σ_k (γλ)^k δ_t+k, with δ of the last step bootstrapped by `bootstrap`."""
    following = [*values[1:], bootstrap]
    deltas = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=True)]
    return [sum((gamma * gae_lambda) ** k * delta for k, delta in enumerate(deltas[t:])) for t in range(len(deltas))]


@settings(max_examples=60, deadline=None)
@given(layout=st.lists(st.lists(st.sampled_from("..LT"), min_size=3, max_size=3), min_size=1, max_size=25))
def test_gae_equals_brute_force_on_any_episode_layout(layout):
    """`layout`: how each step of three environments ends: not (.), by a limit (L), by a termination (T)."""
    generator = torch.Generator().manual_seed(len(layout))
    steps, envs = len(layout), 3
    rewards, values, last = (torch.randn(steps, envs, generator=generator) for _ in range(3))
    terminations, truncations = (torch.tensor([[end == kind for end in row] for row in layout]) for kind in "TL")
    ended = terminations | truncations
    next_values = torch.cat([values[1:], last[:1]])
    next_values = torch.where(ended, last, next_values)  # the value of the state that an episode ended in
    expected = torch.empty(steps, envs)
    for n in range(envs):
        start = 0
        for t in range(steps):
            if ended[t, n] or t == steps - 1:
                bootstrap = 0.0 if terminations[t, n] else next_values[t, n].item()
                part = slice(start, t + 1)
                expected[part, n] = torch.tensor(
                    episode_advantages(rewards[part, n].tolist(), values[part, n].tolist(), bootstrap, 0.9, 0.8)
                )
                start = t + 1
    advantages = gae(rewards, values, next_values, terminations, truncations, 0.9, 0.8)
    torch.testing.assert_close(advantages, expected)


def test_polyak_moves_a_share_of_the_way_and_with_tau_1_copies_exactly():
    target, online = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    before = target.weight.detach().clone()
    polyak(target.parameters(), online.parameters(), tau=0.25)
    torch.testing.assert_close(target.weight, 0.75 * before + 0.25 * online.weight)
    polyak(target.parameters(), online.parameters(), tau=1.0)
    assert torch.equal(target.weight, online.weight)
    assert target.weight is not online.weight


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ([1.0, 2.0, 3.0, 6.0], 1.0),
        ([11.0, 12.0, 13.0, 16.0], 1.0),  # a constant error costs nothing
        ([3.0, 3.0, 3.0, 3.0], 0.0),
        ([2.0, 3.0, 1.0, 6.0], 1 - 6 / 14),  # errors −1, −1, 2, 0; returns −2, −1, 0, 3 around their mean
        ([-1.0, -2.0, -3.0, -6.0], -3.0),
    ],
)
def test_the_explained_variance_is_that_worked_out_by_hand(values, share):
    returns = torch.tensor([1.0, 2.0, 3.0, 6.0])
    assert explained_variance(torch.tensor(values), returns).item() == pytest.approx(share, abs=1e-6)


def test_returns_that_are_all_the_same_leave_nothing_to_explain():
    assert explained_variance(torch.tensor([1.0, 2.0]), torch.ones(2)).isnan()
