#!/usr/bin/env python3
"""Solve CartPole-v1 by DQN: `python train_dqn.py --seed 1`; every flag of `rl train dqn` works, `--help` lists them.

Solved means what it always has for CartPole: an average return of 195 over the last 100 episodes. The run is kept
under models/runs (RL_MODELS_DIR).
"""

import sys

from rl import dqn
from rl.flags import parse, run_command
from rl.loop import Counters
from rl.run_config import RunConfig
from rl.train import train


def print_episode(counters: Counters, agent: dqn.DQN) -> None:
    """One line every 50 episodes."""
    if counters.episodes % 50 == 0:
        print(
            f"Episode {counters.episodes}, Average Reward: {counters.average_return:.2f}, Epsilon: {agent.epsilon:.3f}",
            flush=True,
        )


def main(arguments: list[str]) -> int:
    """Train, and say in which episode CartPole was solved."""
    defaults = RunConfig(total_steps=200_000, stop_at_return=195.0)
    run, config = parse(arguments, defaults, dqn.Config(), prog="train_dqn.py", description=__doc__ or "")
    result = train(run, config, on_episode=print_episode, progress=False)
    if result.solved:
        print(f"Solved in episode {result.counters.episodes}!")
    print(f"{result.state} ({result.reason}): {result.path}")
    return result.exit_code


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
