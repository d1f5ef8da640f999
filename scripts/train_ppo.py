#!/usr/bin/env python3
"""Train PPO on CartPole-v1: `nohup python train_ppo.py --epochs 1000 &`; every flag of `rl train ppo` works too.

An epoch is one rollout of all environments and the updates made from it. The run is kept under models/runs
(RL_MODELS_DIR); `rl resume RUN` goes on with one that was interrupted.
"""

import dataclasses
import sys

from rl import ppo
from rl.errors import UsageError
from rl.flags import parse, run_command
from rl.run_config import RunConfig
from rl.train import train


@dataclasses.dataclass(frozen=True)
class Options:
    """This script's own flag."""

    epochs: int | None = None  # rollouts to train for, instead of --total-steps

    def __post_init__(self) -> None:
        if self.epochs is not None and self.epochs < 1:
            raise UsageError(f"--epochs {self.epochs}: must be at least 1")


def main(arguments: list[str]) -> int:
    """Train for the given number of epochs."""
    settings = RunConfig(), ppo.Config(), Options()
    run, config, options = parse(arguments, *settings, prog="train_ppo.py", description=__doc__ or "")
    if options.epochs:
        run = dataclasses.replace(run, total_steps=options.epochs * config.num_steps * run.num_envs)
    result = train(run, config)
    print(f"{result.state} ({result.reason}): {result.path}")
    return result.exit_code


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
