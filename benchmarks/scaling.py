"""How the cost of PPO on CartPole-v1 grows with its size: `python -m benchmarks.scaling`, some three minutes.

Steps per second and peak memory against the number of environments (1 to 16,384, width 64) and against the width of
both hidden layers (64 to 1,024, with 64 environments), each in a process of its own, one at a time. Rollouts hold 16
steps of every environment and are learned from in 4 epochs of 4 minibatches, so that the work of a step is the same
everywhere. The table, its JSON and its picture lie in benchmarks/results/ afterwards.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import matplotlib

from benchmarks.side_by_side import machine, number, results_file, run
from rl import ppo
from rl.loop import Loop
from rl.run_config import RunConfig
from rl.train import train

NUM_ENVS = [4**i for i in range(8)]
WIDTHS = [64, 128, 256, 512, 1024]
MIDDLE = 64  # environments where the width varies
SECONDS = 8.0  # of training in a measurement, of which the first fifth is left out; longer where it holds no 5 rollouts


class Point(NamedTuple):
    """One size, and what it costs."""

    num_envs: int
    width: int
    steps_per_second: float
    peak_memory_mb: float


class Enough(Exception):
    """Raised out of the training loop when the time is over."""


def point(num_envs: int, width: int, seconds: float) -> Point:
    """Train for `seconds` in this process; whole rollouts are timed, from the end of one update to that of another."""
    config = ppo.Config(num_steps=16, num_epochs=4, num_minibatches=4, hidden_sizes=(width, width))
    updates_each, rollout = config.num_epochs * config.num_minibatches, config.num_steps * num_envs
    start = time.perf_counter()
    ends: list[float] = []  # of each optimiser step

    def listen(loop: Loop) -> None:
        (descent,) = loop.agent.descents.values()
        step = descent.optimizer.step

        def timed_step() -> None:
            step()
            ends.append(time.perf_counter())
            if len(ends) % updates_each == 0 and ends[-1] > start + seconds and len(ends) >= 5 * updates_each:
                raise Enough

        cast(Any, descent.optimizer).step = timed_step

    never = 10**12
    with tempfile.TemporaryDirectory() as folder:
        settings = RunConfig(total_steps=never, num_envs=num_envs, device="cpu", run_dir=Path(folder) / "run")
        settings = replace(settings, log_interval=rollout, checkpoint_interval=never, eval_episodes=0)
        with suppress(Enough):
            train(settings, config, on_start=listen, progress=False)
    last_updates = ends[updates_each - 1 :: updates_each]
    warm = max(len(last_updates) // 5, 1)
    rate = (len(last_updates) - 1 - warm) * rollout / (last_updates[-1] - last_updates[warm])
    return Point(num_envs, width, rate, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def measured(num_envs: int, width: int, seconds: float) -> Point:
    """A point of a process of its own. Raises CalledProcessError when it fails."""
    command = [sys.executable, "-m", "benchmarks.scaling", "--point", num_envs, width, "--seconds", seconds]
    done = run(command, timeout=600)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return Point(*json.loads(done.stdout))


def plot(points: list[Point], path: Path) -> None:
    """Speed and memory against each size."""
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, sharex="col", figsize=(8, 5), layout="constrained")
    columns = (
        ("environments", 0, [one for one in points if one.width == WIDTHS[0]]),
        ("width of both hidden layers", 1, [one for one in points if one.num_envs == MIDDLE]),
    )
    for column, (name, field, line) in enumerate(columns):
        line = sorted(line)
        for row, value in enumerate(("steps_per_second", "peak_memory_mb")):
            draw = axes[row, column].loglog if row == 0 else axes[row, column].semilogx
            draw([one[field] for one in line], [getattr(one, value) for one in line], "o-")
            axes[row, column].grid(True, which="major", alpha=0.3)
        axes[1, column].set_xlabel(name)
        axes[1, column].set_ylim(bottom=0)
    axes[0, 0].set_ylabel("steps per second")
    axes[1, 0].set_ylabel("peak memory, MB")
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def main() -> None:
    """Measure every point, print the table, write JSON and picture."""
    parser = argparse.ArgumentParser(description="Measure how the cost of PPO on CartPole grows with its size.")
    parser.add_argument("--point", nargs=2, type=int, metavar=("NUM_ENVS", "WIDTH"), help="measure this one here")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of training in each measurement")
    asked = parser.parse_args()
    if asked.point:
        print(json.dumps(point(*asked.point, asked.seconds)))
        return
    described = machine()
    print("\n".join(f"{key}: {value}" for key, value in described.items()))
    print(f"\n{'environments':>12} {'width':>6} {'steps/s':>9} {'MB':>6}")
    points = []
    for num_envs, width in [(n, WIDTHS[0]) for n in NUM_ENVS] + [(MIDDLE, width) for width in WIDTHS[1:]]:
        points.append(one := measured(num_envs, width, asked.seconds))
        rate, memory = number(one.steps_per_second), number(one.peak_memory_mb)
        print(f"{num_envs:>12,} {width:>6,} {rate:>9} {memory:>6}", flush=True)
    file = results_file(described, "-scaling.json")
    file.write_text(json.dumps({"machine": described, "points": [one._asdict() for one in points]}, indent=1) + "\n")
    plot(points, file.with_suffix(".png"))
    print(f"written: {file.name} and {file.with_suffix('.png').name}")


if __name__ == "__main__":
    main()
