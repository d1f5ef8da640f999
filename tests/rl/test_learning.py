"""A short statistical gate: a healthy algorithm practically never fails it, a broken one does.

The figure is the mean return of the last 100 training episodes, averaged over seeds 0 to 2. Over seeds 10 to 29 it had
mean m and standard deviation s; the bound is m − 4 standard errors, where the error of comparing 3 seeds with those 20
is s √(1/3 + 1/20). A random policy gets 22. What breaking the algorithm left of it, on seeds 0 to 2:

    PPO: sign of the advantages turned 51, no bootstrap 22, ends of episodes ignored 19
    DQN: no bootstrap 20, target network never copied 10, ends of episodes ignored 9
"""

import statistics

import pytest

from rl import dqn, ppo
from rl.run_config import RunConfig
from rl.train import train


@pytest.mark.parametrize(
    ("config", "total_steps", "bound"),
    [
        pytest.param(ppo.Config(), 20_000, 141.5, id="ppo"),  # m 152.4, s 4.4
        pytest.param(dqn.Config(), 10_000, 72.5, id="dqn"),  # m 80.0, s 3.0
    ],
)
def test_the_first_steps_on_cartpole_teach_as_much_as_they_did_on_other_seeds(config, total_steps, bound, tmp_path):
    averages = []
    for seed in range(3):
        run = RunConfig(total_steps=total_steps, seed=seed, device="cpu", run_dir=tmp_path / str(seed), eval_episodes=0)
        averages.append(train(run, config, progress=False).counters.average_return)
    assert statistics.mean(averages) >= bound, averages
