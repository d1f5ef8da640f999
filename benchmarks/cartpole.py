"""How fast DQN and PPO solve CartPole-v1, seed by seed: `python benchmarks/cartpole.py` prints both tables.

DQN by the mission's recipe (4-128-128-2 network, replay of 5,000, Adam 1e-3, MSE, γ 0.99, batch 64): solved when the
last 100 training episodes average 195. PPO: when they average 475, the threshold that gymnasium registers. The greedy
return is the mean of 20 evaluation episodes of the agent as training left it.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rl import dqn, ppo
from rl.evaluate import evaluate
from rl.run_config import RunConfig
from rl.train import train


class Row(NamedTuple):
    """One seed's run."""

    seed: int
    solved: bool
    episodes: int  # training episodes until solved, or until given up
    steps: int  # environment steps
    seconds: float  # from the first step to the last, start-up and imports not counted
    greedy_return: float


def run(seed: int, config: Any, goal: float, total_steps: int) -> Row:  # noqa: ANN401
    """Train one seed until `goal` or `total_steps`."""
    with tempfile.TemporaryDirectory() as folder:
        settings = RunConfig(
            total_steps=total_steps, seed=seed, stop_at_return=goal, run_dir=Path(folder) / "run", eval_episodes=0
        )
        start = time.perf_counter()
        result = train(settings, config, progress=False)
        seconds = time.perf_counter() - start
    played = evaluate(result.agent, settings.env_id, episodes=20, seed=10_000 + seed, device=result.agent.device)
    greedy = statistics.mean(episode.episode_return for episode in played)
    return Row(seed, result.solved, result.counters.episodes, result.counters.step, seconds, greedy)


def rows(config: Any, goal: float, total_steps: int, seeds: range) -> list[Row]:  # noqa: ANN401
    """One row a seed, as many at a time as there are cores."""
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(partial(run, config=config, goal=goal, total_steps=total_steps), seeds))


dqn_rows = partial(rows, dqn.Config(), 195.0, 100_000, range(10))
ppo_rows = partial(rows, ppo.Config(), 475.0, 300_000, range(5))


def print_table(title: str, table: list[Row]) -> None:
    """One line a seed, and the medians."""
    print(f"\n{title}\n{'seed':>6} {'solved':>7} {'episodes':>9} {'steps':>9} {'seconds':>8} {'greedy return':>14}")
    for row in table:
        solved = "yes" if row.solved else "no"
        figures = f"{row.episodes:>9} {row.steps:>9,} {row.seconds:>8.1f} {row.greedy_return:>14.1f}"
        print(f"{row.seed:>6} {solved:>7} {figures}")
    medians = [statistics.median(values) for values in zip(*(row[2:] for row in table), strict=True)]
    count = f"{sum(row.solved for row in table)}/{len(table)}"
    print(f"{'median':>6} {count:>7} {medians[0]:>9.0f} {medians[1]:>9,.0f} {medians[2]:>8.1f} {medians[3]:>14.1f}")


if __name__ == "__main__":
    print_table("DQN, CartPole-v1: average of 100 episodes >= 195", dqn_rows())
    print_table("PPO, CartPole-v1: average of 100 episodes >= 475", ppo_rows())
