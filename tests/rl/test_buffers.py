"""Replay and rollouts against lists of what was added (pitfalls 4.3: 26, 27, 29)."""

import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.buffers import ReplayBuffer, RolloutBuffer
from rl.errors import RunError
from rl.transition import Transition

OBSERVATIONS, ACTIONS = spaces.Box(-1, 1, (3,)), spaces.Discrete(4)


def numbered(first: int, num_envs: int) -> Transition:
    """Transitions number first, first + 1, …, each recognisable by every one of its fields."""
    number = torch.arange(first, first + num_envs)
    obs = number.float().unsqueeze(1).repeat(1, 3)
    return Transition(obs, number, number.float() * 10, obs + 0.5, number % 2 == 0, number % 3 == 0)


def assert_whole(batch: Transition) -> None:
    """Every row's fields belong to one and the same transition."""
    number = batch.actions
    expected = numbered(0, int(number.max()) + 1)
    for value, reference in zip(batch, expected, strict=True):
        assert torch.equal(value, reference[number])


@pytest.mark.parametrize(("capacity", "num_envs"), [(8, 4), (10, 3), (5, 5), (7, 1)])
def test_the_replay_holds_exactly_the_last_transitions_however_it_wraps(capacity, num_envs):
    buffer = ReplayBuffer(capacity, num_envs, OBSERVATIONS, ACTIONS, "cpu")
    added: list[int] = []
    for step in range(25):
        buffer.add(numbered(step * num_envs, num_envs))
        added += range(step * num_envs, (step + 1) * num_envs)
        assert buffer.size == min(len(added), capacity)
        held = Transition(*(stored[: buffer.size] for stored in buffer.storage))
        assert sorted(held.actions.tolist()) == added[-capacity:]
        assert_whole(held)


def test_samples_are_whole_transitions_spread_evenly_over_what_is_held():
    buffer = ReplayBuffer(50, 4, OBSERVATIONS, ACTIONS, "cpu")
    for step in range(7):
        buffer.add(numbered(step * 4, 4))
    batch = buffer.sample(28_000, torch.Generator().manual_seed(0))
    assert_whole(batch)
    counts = torch.bincount(batch.actions, minlength=28).double()
    assert len(counts) == 28  # nothing of the unwritten rows
    chi_square = ((counts - 1000) ** 2 / 1000).sum().item()
    assert chi_square < 55.5  # 27 degrees of freedom, p = 0.001


def n_steps_ahead(history: list[Transition], t: int, n: int, n_steps: int, gamma: float):
    """Brute force over the steps as they happened: sum of rewards, discount, index of the last step."""
    total, discount, last = 0.0, 1.0, t
    for k in range(t, min(t + n_steps, len(history))):
        total, discount, last = total + discount * history[k].rewards[n].item(), discount * gamma, k
        if history[k].terminations[n] or history[k].truncations[n]:
            break
    return total, discount, last


@settings(max_examples=30, deadline=None)
@given(
    capacity=st.integers(3, 60),
    num_envs=st.integers(1, 3),
    layout=st.lists(st.lists(st.sampled_from(".....LT"), min_size=3, max_size=3), min_size=1, max_size=90),
)
def test_n_step_samples_stop_at_ends_of_episodes_and_at_the_newest_step(capacity, num_envs, layout):
    """`layout`: how each step of each environment ends: not (.), by a limit (L), by a termination (T)."""
    generator = torch.Generator().manual_seed(len(layout))
    buffer = ReplayBuffer(capacity, num_envs, OBSERVATIONS, ACTIONS, "cpu")
    history: list[Transition] = []
    for step, row in enumerate(layout):
        ends = [torch.tensor([end == kind for end in row[:num_envs]]) for kind in "TL"]
        obs = torch.tensor([[step, n, 0.0] for n in range(num_envs)])  # tells step and environment
        rewards = torch.rand(num_envs, generator=generator)
        history.append(Transition(obs, torch.zeros(num_envs).long(), rewards, obs + 0.5, *ends))
        buffer.add(history[-1])
    batch, discounts = buffer.sample_n_step(100, n_steps=4, gamma=0.9, generator=generator)
    for i in range(100):
        t, n = int(batch.obs[i, 0]), int(batch.obs[i, 1])
        total, discount, last = n_steps_ahead(history, t, n, n_steps=4, gamma=0.9)
        assert batch.rewards[i].item() == pytest.approx(total, rel=1e-5)
        assert discounts[i].item() == pytest.approx(discount, rel=1e-5)
        assert batch.next_obs[i].tolist() == history[last].next_obs[n].tolist()
        assert batch.terminations[i] == history[last].terminations[n]
        assert batch.truncations[i] == history[last].truncations[n]


def test_one_step_samples_are_the_stored_transitions():
    buffer = ReplayBuffer(50, 4, OBSERVATIONS, ACTIONS, "cpu")
    for step in range(7):
        buffer.add(numbered(step * 4, 4))
    batch, discounts = buffer.sample_n_step(200, 1, 0.9, torch.Generator().manual_seed(0))
    assert_whole(batch)
    assert (discounts == 0.9).all()


def test_stored_types_are_as_small_as_documented():
    storage = ReplayBuffer(2, 1, OBSERVATIONS, ACTIONS, "cpu").storage
    types = [value.dtype for value in storage]
    assert types == [torch.float32, torch.int64, torch.float32, torch.float32, torch.bool, torch.bool]
    continuous = ReplayBuffer(2, 1, OBSERVATIONS, spaces.Box(-1, 1, (2,)), "cpu").storage
    assert (continuous.actions.dtype, continuous.actions.shape) == (torch.float32, (2, 2))


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (spaces.Box(0, 255, (2, 36, 36), "uint8"), torch.uint8),  # pictures go into the network as bytes
        (spaces.Box(0, 255, (128,), "uint8"), torch.float32),  # vectors of bytes, as Atari's RAM, as numbers
    ],
)
def test_only_pictures_are_stored_as_bytes(space, dtype):
    for buffer in (ReplayBuffer(4, 2, space, ACTIONS, "cpu"), RolloutBuffer(2, 2, space, ACTIONS, "cpu")):
        assert buffer.storage.obs.dtype == buffer.storage.next_obs.dtype == dtype


def test_n_step_returns_do_not_go_on_into_an_episode_begun_anew_by_a_resume():
    """Steps 0, 1, 2 of one episode, then, after a resume that lost it, 50 and 51 of another; rewards tell the step."""

    def step(number: float) -> Transition:
        obs, no = torch.full((1, 3), number), torch.zeros(1, dtype=torch.bool)
        return Transition(obs, torch.zeros(1).long(), obs[:, 0], obs + 1, no, no)

    saved, resumed = (ReplayBuffer(8, 1, OBSERVATIONS, ACTIONS, "cpu") for _ in range(2))
    for number in (0.0, 1.0, 2.0):
        saved.add(step(number))
    resumed.load_state_dict(saved.state_dict())
    for number in (50.0, 51.0):
        resumed.add(step(number))
    batch, discounts = resumed.sample_n_step(200, 3, 0.5, torch.Generator().manual_seed(0))
    rows = zip(
        batch.obs[:, 0].tolist(), batch.rewards.tolist(), batch.next_obs[:, 0].tolist(), discounts.tolist(), strict=True
    )
    assert set(rows) == {
        (0.0, 0 + 1 / 2 + 2 / 4, 3.0, 1 / 8),
        (1.0, 1 + 2 / 2, 3.0, 1 / 4),
        (2.0, 2.0, 3.0, 1 / 2),
        (50.0, 50 + 51 / 2, 52.0, 1 / 4),
        (51.0, 51.0, 52.0, 1 / 2),
    }


def test_a_stored_transition_does_not_change_with_the_tensors_that_it_came_from():
    buffer = ReplayBuffer(4, 2, OBSERVATIONS, ACTIONS, "cpu")
    transition = numbered(0, 2)
    buffer.add(transition)
    transition.obs.fill_(99)
    assert buffer.storage.obs.max() < 99


def test_a_rollout_keeps_its_order_and_is_full_after_num_steps():
    buffer = RolloutBuffer(3, 2, OBSERVATIONS, ACTIONS, "cpu")
    for step in range(3):
        assert not buffer.full
        buffer.add(numbered(step * 2, 2))
    assert buffer.full
    assert buffer.storage.actions.tolist() == [[0, 1], [2, 3], [4, 5]]
    buffer.clear()
    assert not buffer.full


def test_a_rollout_whose_environments_begin_anew_is_truncated_where_it_was_saved():
    rollout = RolloutBuffer(4, 2, OBSERVATIONS, ACTIONS, "cpu")
    rollout.cut_off()  # nothing is in it
    assert not rollout.storage.truncations.any()
    rollout.add(numbered(1, 2)._replace(truncations=torch.zeros(2, dtype=torch.bool)))  # number 2 is a termination
    rollout.add(numbered(3, 2)._replace(truncations=torch.zeros(2, dtype=torch.bool)))  # number 4 is one, too
    rollout.cut_off()
    assert rollout.storage.truncations.tolist() == [[False, False], [True, False], [False, False], [False, False]]


def test_buffers_go_on_exactly_where_they_were_saved():
    for make in (
        lambda: ReplayBuffer(5, 2, OBSERVATIONS, ACTIONS, "cpu"),
        lambda: RolloutBuffer(4, 2, OBSERVATIONS, ACTIONS, "cpu"),
    ):
        one, other = make(), make()
        for step in range(3):
            one.add(numbered(step * 2, 2))
        other.load_state_dict(one.state_dict())
        for buffer in (one, other):
            buffer.add(numbered(6, 2)._replace(obs=numbered(4, 2).next_obs))  # the episodes go on
        assert all(torch.equal(a, b) for a, b in zip(one.storage, other.storage, strict=True))
        assert one.cursor == other.cursor


def test_a_replay_that_cannot_fit_is_refused_before_it_is_allocated():
    with pytest.raises(RunError, match=r"--buffer-size 10000000000000: the replay needs .* GiB are free here: give a"):
        ReplayBuffer(10**13, 1, OBSERVATIONS, ACTIONS, "cpu")
