"""Whether the agents learn, on fixed lists of seeds that were not chosen for it."""

import statistics

import pytest

from benchmarks.cartpole import dqn_rows, ppo_rows

pytestmark = pytest.mark.learning


def test_dqn_solves_cartpole_within_312_episodes_on_nine_of_ten_seeds_and_250_in_the_median():
    table = dqn_rows()
    episodes = [row.episodes if row.solved else float("inf") for row in table]
    assert sum(count <= 312 for count in episodes) >= 9, table
    assert statistics.median(episodes) <= 250, table


def test_ppo_reaches_475_on_every_seed():
    table = ppo_rows()
    assert all(row.solved for row in table), table
