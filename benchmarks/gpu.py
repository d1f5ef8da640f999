"""What only a GPU can show: eager, graph and compile train the same agent, a run resumes, and how fast all of it is.

`scripts/gpu_check.sh` runs it with the rest that needs a GPU. Prints each check and the table of speeds, and writes
them with the card's name to benchmarks/results/. Speeds are those of `rl train` itself: the difference of two runs, of
which one is longer, so that start and warm-up cancel. Exits with 1 where a check failed.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rl import a2c, dqn, ppo, sac
from rl.run_config import RunConfig
from rl.train import resume, train

RESULTS = Path(__file__).parent / "results"
QUIET: dict[str, Any] = {"eval_episodes": 0, "eval_interval": 0, "checkpoint_interval": 10**12, "log_interval": 10**6}


class Work(NamedTuple):
    """What is trained, and for how long."""

    run: RunConfig
    config: Any
    check_steps: int  # environment steps after which modes are compared: some dozen updates
    steps: int  # … that are timed


CARTPOLE, PENDULUM = RunConfig("CartPole-v1", num_envs=64, **QUIET), RunConfig("Pendulum-v1", num_envs=8, **QUIET)
WORKS = {
    "dqn": Work(CARTPOLE, dqn.Config(update_interval=16), 1_600, 100_000),
    "sac": Work(PENDULUM, sac.Config(update_interval=1), 540, 3_000),
    "ppo": Work(CARTPOLE, ppo.Config(num_steps=32, num_epochs=4), 64 * 32 * 6, 64 * 32 * 50),
    "a2c": Work(CARTPOLE, a2c.Config(num_steps=8), 64 * 8 * 30, 64 * 8 * 400),
}
LARGE = Work(  # the speed that many environments give
    replace(CARTPOLE, num_envs=16_384), ppo.Config(num_steps=32, num_epochs=1), 0, 16_384 * 32 * 20
)
TOLERANCE = 1e-2  # of weights: what dozens of updates make of sums in another order


def run(work: Work, mode: str, device: str, steps: int, folder: Path) -> Any:  # noqa: ANN401 - a Result
    """Train by `work` for `steps` environment steps."""
    settings = replace(work.run, total_steps=steps, device=device, accelerate=mode, run_dir=folder)
    return train(settings, work.config, progress=False)


def weights(agent: Any) -> torch.Tensor:  # noqa: ANN401 - an Agent
    """All that the agent's optimisers move, as one vector on the CPU."""
    parts = [parameter.detach().flatten() for one in agent.descents.values() for parameter in one.parameters.values()]
    return torch.cat(parts).cpu()


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest one between two vectors of weights; inf where one is not finite."""
    gap = (one - other).abs().max().item()
    return gap if gap == gap else float("inf")


def check_modes(name: str, modes: list[str], device: str) -> dict[str, float]:
    """By how much the weights of each mode differ from eager ones."""
    work, found = WORKS[name], {}
    with tempfile.TemporaryDirectory() as folder:
        expected = weights(run(work, "eager", device, work.check_steps, Path(folder) / "eager").agent)
        for mode in modes:
            got = weights(run(work, mode, device, work.check_steps, Path(folder) / mode).agent)
            found[f"{name}: {mode} = eager"] = difference(got, expected)
    return found


def check_resume(name: str, mode: str, device: str) -> dict[str, float]:
    """By how much a run in two parts differs from one in a single part."""
    work = WORKS[name]
    with tempfile.TemporaryDirectory() as folder:
        whole = run(work, mode, device, 2 * work.check_steps, Path(folder) / "whole")
        run(work, mode, device, work.check_steps, Path(folder) / "parts")
        resumed = resume(Path(folder) / "parts", {"total_steps": 2 * work.check_steps}, progress=False)
        assert resumed is not None
        return {f"{name}: resumed = whole ({mode})": difference(weights(resumed.agent), weights(whole.agent))}


def speed(work: Work, mode: str, device: str) -> tuple[float, float]:
    """Environment steps and updates per second."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for steps in (work.steps // 4, work.steps):
            start = time.perf_counter()
            result = run(work, mode, device, steps, Path(folder) / str(steps))
            if device.startswith("cuda"):
                torch.cuda.synchronize(device)
            figures.append((time.perf_counter() - start, result.counters.step, result.agent.updates))
    (short, *few), (long, *many) = figures
    return tuple((more - less) / (long - short) for less, more in zip(few, many, strict=True))  # type: ignore[return-value]


def main() -> None:
    """Check, time, print and write."""
    parser = argparse.ArgumentParser(description="Check and time what only a GPU can do.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--modes", nargs="*", default=["graph", "compile"], help="beside eager")
    parser.add_argument("--algorithms", nargs="+", default=list(WORKS), choices=list(WORKS))
    parser.add_argument("--small", action="store_true", help="a fiftieth of the timed steps, to try the script itself")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    share = 50 if asked.small else 1
    name = torch.cuda.get_device_name(asked.device) if asked.device.startswith("cuda") else "CPU"
    print(f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}", flush=True)
    differences: dict[str, float] = {}
    for algorithm in asked.algorithms:
        # SAC has three losses to compile, of which none is like no other's: the time is better spent elsewhere
        modes = [mode for mode in asked.modes if (mode, algorithm) not in (("compile", "sac"), ("compile", "a2c"))]
        found = check_modes(algorithm, modes, asked.device)
        found |= check_resume(algorithm, modes[0] if modes else "eager", asked.device)
        for what, gap in found.items():
            print(f"{'ok' if gap < TOLERANCE else 'FAILED':6} {what:32} weights differ by {gap:.1e}", flush=True)
        differences |= found
    rows = []
    works = {f"{name} {WORKS[name].run.num_envs} environments": WORKS[name] for name in asked.algorithms}
    if "ppo" in asked.algorithms:
        works[f"ppo {LARGE.run.num_envs:,} environments, one epoch"] = LARGE
    print(f"\n{'work':40} {'mode':8} {'steps/s':>12} {'updates/s':>10} {'x eager':>8}")
    for title, work in works.items():
        timed = work._replace(steps=max(work.steps // share, 4 * work.run.num_envs * 32))
        eager = 0.0
        for mode in ["eager", *asked.modes[:1]]:
            steps, updates = speed(timed, mode, asked.device)
            eager = eager or steps
            print(f"{title:40} {mode:8} {steps:>12,.0f} {updates:>10,.0f} {steps / eager:>8.2f}", flush=True)
            rows.append({"work": title, "mode": mode, "steps_per_second": steps, "updates_per_second": updates})
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / f"{time.strftime('%Y-%m-%d')}-gpu-{name.replace(' ', '-')}.json"
    report = {"card": name, "torch": torch.__version__, "cuda": torch.version.cuda, "differences": differences}
    file.write_text(json.dumps(report | {"speed": rows}, indent=1) + "\n")
    failed = [what for what, gap in differences.items() if gap >= TOLERANCE]
    print(f"\nwritten to {file}" + (f"; FAILED: {', '.join(failed)}" if failed else ""))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
