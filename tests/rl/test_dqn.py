"""Targets by hand, schedules by environment steps (pitfalls 4.1: 1; 4.3: 19 to 25)."""

import pytest
import torch
from gymnasium import spaces
from torch import nn

from rl.dqn import DQN, Batch, Config, loss
from rl.errors import UsageError
from rl.transition import Transition

OBSERVATIONS, ACTIONS = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)


class Table(nn.Module):
    """Q-values looked up by an observation of one number."""

    def __init__(self, *rows: tuple[float, float]) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.tensor(rows))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.rows[obs.long().squeeze(-1)]


def batch(terminated: bool, truncated: bool) -> Batch:
    """From state 0 by action 1 to state 1 for reward 1, at a discount of 0.5."""
    return Batch(
        torch.tensor([[0.0]]), torch.tensor([1]), torch.tensor([1.0]), torch.tensor([[1.0]]),
        torch.tensor([terminated]), torch.tensor([truncated]), torch.tensor([0.5]),
    )  # fmt: skip


ONLINE, TARGET = Table((0.0, 2.0), (5.0, 4.0)), Table((0.0, 0.0), (3.0, 8.0))


@pytest.mark.parametrize(
    ("terminated", "truncated", "double", "target"),
    [
        (False, False, False, 1 + 0.5 * 8),  # the target network's own best
        (False, False, True, 1 + 0.5 * 3),  # the online network's best (action 0), valued by the target network
        (False, True, False, 1 + 0.5 * 8),  # a time limit is no end
        (True, False, False, 1.0),
        (True, False, True, 1.0),
    ],
)
def test_the_loss_is_the_squared_distance_to_the_target_worked_out_by_hand(terminated, truncated, double, target):
    td_loss, metrics = loss(ONLINE, TARGET, batch(terminated, truncated), double)
    assert td_loss.item() == pytest.approx((2.0 - target) ** 2)
    assert metrics["q_value"].item() == 2.0


def test_each_row_of_a_batch_has_its_own_target():
    one, other = batch(False, False), batch(True, False)
    both = Batch(*(torch.cat(pair) for pair in zip(one, other, strict=True)))
    td_loss, _ = loss(ONLINE, TARGET, both, double=False)
    assert td_loss.item() == pytest.approx(((2.0 - 5.0) ** 2 + (2.0 - 1.0) ** 2) / 2)


def test_only_the_online_network_gets_a_gradient_and_only_for_the_action_taken():
    online, target = Table((0.0, 2.0), (5.0, 4.0)), Table((0.0, 0.0), (3.0, 8.0))
    loss(online, target, batch(False, False), double=True)[0].backward()
    assert online.rows.grad.tolist() == [[0.0, 2 * (2.0 - 2.5)], [0.0, 0.0]]
    assert target.rows.grad is None


def agent(num_envs: int = 1, **changes) -> DQN:
    settings = {"buffer_size": 64, "learning_starts": 8, "batch_size": 4, "hidden_sizes": (8,)}
    return DQN(Config(**(settings | changes)), OBSERVATIONS, ACTIONS, num_envs)


def step(dqn: DQN) -> dict:
    n = dqn.num_envs
    actions, nothing = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.bool)
    dqn.observe(Transition(torch.rand(n, 2), actions, torch.rand(n), torch.rand(n, 2), nothing, nothing))
    return dqn.learn()


def test_epsilon_falls_linearly_over_environment_steps_and_then_stays():
    dqn = agent(epsilon_start=1.0, epsilon_end=0.2, epsilon_steps=1000)
    table = []
    for dqn.step in (0, 250, 500, 1000, 5000):
        table.append(dqn.epsilon)
    assert table == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2])


@pytest.mark.parametrize("num_envs", [1, 8])
def test_updates_and_target_copies_depend_on_environment_steps_alone(num_envs):
    dqn = agent(num_envs, update_interval=4, target_interval=80, learning_starts=16)
    copies = 0
    while dqn.step < 400:
        before = dqn.target_network[0].weight.clone()
        step(dqn)
        copies += not torch.equal(before, dqn.target_network[0].weight)
    assert dqn.updates == (400 - 16) // 4
    assert copies == 400 // 80


def test_the_target_network_moves_by_copies_only():
    dqn = agent(target_interval=10_000)
    target = dqn.target_network[0].weight.clone()
    online = dqn.network[0].weight.clone()
    for _ in range(50):
        step(dqn)
    assert torch.equal(dqn.target_network[0].weight, target)
    assert not torch.equal(dqn.network[0].weight, online)
    held = {id(parameter) for group in dqn.descent.optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in dqn.network.parameters()}


def test_each_environment_throws_its_own_coin():
    dqn = agent(num_envs=1000, buffer_size=1000, epsilon_start=0.5, epsilon_end=0.5)
    obs = torch.rand(1, 2).expand(1000, 2)
    greedy = dqn.act(obs, explore=False)
    differing = (dqn.act(obs) != greedy).float().mean().item()
    assert differing == pytest.approx(0.25, abs=0.06)  # half explore, and half of those draw the other action


def test_nothing_is_learned_before_learning_starts():
    dqn = agent(learning_starts=20, update_interval=1)
    assert [bool(step(dqn)) for _ in range(22)] == [False] * 20 + [True] * 2


def test_a_replay_smaller_than_one_step_of_all_environments_is_refused():
    with pytest.raises(UsageError, match=r"--buffer-size 7: must hold one step of all 8 environments"):
        agent(num_envs=8, buffer_size=7)
