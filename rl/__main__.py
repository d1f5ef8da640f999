"""The `rl` command: `rl` alone lists what it can do."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from rl.errors import UsageError
from rl.flags import parse, run_command

if TYPE_CHECKING:
    from rl.loop import Result

USAGE = """usage: rl COMMAND …

  rl train dqn --env-id CartPole-v1 --seed 1    train an agent; `rl train dqn --help` lists every flag
  rl resume RUN                                 go on with an interrupted run, exactly where it was saved
  rl resume --all models/runs                   … with every run that is not finished and not live
  rl eval RUN --episodes 20                     play greedy episodes with a run's best agent
  rl plot RUN RUN --out curves.png              learning curves in one picture, with a band over seeds
  rl compare models/runs                        one row for each setting of the runs there, the best first
  rl bench ppo --num-envs 64                    what training costs, phase by phase; takes the flags of rl train
  rl bench amp                                  what mixed precision gains on this machine
  rl diagnose RUN/not-finite-step-N.pt          repeat an update that met nan or infinity, tensor by tensor
  rl doctor                                     say whether the GPU can be used, and if not why and what mends it

RUN is a run folder, such as models/runs/NAME."""


def main() -> None:
    """Run one command and exit with its code: 0 done, 1 failed, 2 wrong usage, 130 or 143 stopped by a signal."""
    commands = {
        "train": train,
        "resume": resume,
        "eval": evaluate,
        "plot": plot_runs,
        "compare": compare,
        "bench": bench,
        "diagnose": diagnose,
        "doctor": doctor,
    }
    command, *arguments = sys.argv[1:] or ["--help"]
    if command in ("-h", "--help"):
        print(USAGE)
        sys.exit(0)
    if command not in commands:
        print(f"rl: no command {command!r}: choose one of {', '.join(commands)}, or see `rl --help`", file=sys.stderr)
        sys.exit(2)
    sys.path.insert(0, "")  # --env-id my_module:Name-v0 finds my_module.py in the current folder
    sys.exit(run_command(commands[command], arguments))


def train(arguments: list[str]) -> int:
    """`rl train ALGORITHM [flags]`."""
    from rl.run_config import RunConfig
    from rl.train import ALGORITHMS
    from rl.train import train as train_run

    algorithm, *flags = arguments or [""]
    names = "|".join(ALGORITHMS)
    if algorithm in ("-h", "--help"):
        print(f"usage: rl train {{{names}}} [flags]\n`rl train dqn --help` lists the flags of dqn")
        return 0
    if algorithm not in ALGORITHMS:
        raise UsageError(f"usage: rl train {{{names}}} [flags], not {algorithm or 'nothing'!r}")
    config_type, _ = ALGORITHMS[algorithm]
    description = f"Train {algorithm}. {config_type.__doc__}"
    run, config = parse(flags, RunConfig(), config_type(), prog=f"rl train {algorithm}", description=description)
    return _report(train_run(run, config))


def _report(result: "Result") -> int:
    print(f"{result.state} ({result.reason}): {result.path}")
    return result.exit_code


def resume(arguments: list[str]) -> int:
    """`rl resume RUN` or `rl resume --all DIR`."""

    @dataclasses.dataclass
    class Resume:
        """Go on with an interrupted run from its latest checkpoint, exactly; a flag changes the run from here on."""

        run: tyro.conf.Positional[Path | None] = None  # run folder
        all: Path | None = None  # instead: every run in this folder that is not finished and not live, one by one
        total_steps: int | None = None  # environment steps to train to, also past the end of a finished run
        stop_at_return: float | None = None  # end when the last 100 training episodes average this
        device: str | None = None  # auto, cpu, cuda or cuda:i
        accelerate: str | None = None  # auto, eager, graph or compile
        precision: str | None = None  # fp32, bf16 or fp16
        gradient_accumulation: int | None = None  # parts that each batch is split into
        replay_device: str | None = None  # auto, cpu or cuda

    asked = tyro.cli(Resume, prog="rl resume", args=arguments)
    if (asked.run is None) == (asked.all is None):
        raise UsageError("usage: rl resume RUN, or rl resume --all DIR")
    paths = [asked.run] if asked.run else _unfinished(asked.all or Path())
    changes = {name: value for name, value in vars(asked).items() if name not in ("run", "all") and value is not None}
    code = 0
    for path in paths:
        code = run_command(lambda _, path=path: _resume_one(path, changes), []) or code  # type: ignore[misc]
        if code in (130, 143):
            break
    if not paths:
        print("nothing to resume: every run there is finished or live")
    return code


def _resume_one(path: Path, changes: dict[str, Any]) -> int:
    from rl.train import resume as resume_run

    result = resume_run(path, changes)
    if result is None:
        print(f"{path} is finished already; --total-steps trains it further")
        return 0
    return _report(result)


def _unfinished(folder: Path) -> list[Path]:
    from rl.run_folder import is_live, read_status

    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: give the one that holds the run folders")
    runs = sorted(path.parent for path in folder.glob("*/status.json"))
    return [path for path in runs if read_status(path)["state"] != "finished" and not is_live(path)]


def evaluate(arguments: list[str]) -> int:
    """`rl eval RUN`."""
    import numpy as np

    from rl.evaluate import evaluate as play
    from rl.run_config import choose_device
    from rl.train import load_agent
    from rl.video import film

    @dataclasses.dataclass
    class Eval:
        """Play greedy episodes with a run's best agent, or its latest where none was evaluated."""

        run: tyro.conf.Positional[Path]  # run folder
        episodes: int = 20  # episodes to play
        seed: int = 0  # of the environments
        device: str = "auto"  # auto, cpu, cuda or cuda:i
        video: Path | None = None  # write a film of each episode to this folder
        json: bool = False  # print one JSON object

    asked = tyro.cli(Eval, prog="rl eval", args=arguments)
    if asked.episodes < 1:
        raise UsageError(f"--episodes {asked.episodes}: must be at least 1")
    device = choose_device(asked.device)
    run, agent, content = load_agent(asked.run, device)
    if asked.video:
        played = film(agent, run.env_id, asked.episodes, asked.seed, asked.video, device)
    else:
        played = play(agent, run.env_id, asked.episodes, asked.seed, run.backend, device)
    returns = [episode.episode_return for episode in played]
    mean, std = float(np.mean(returns)), float(np.std(returns))
    if asked.json:
        report = {"run": str(asked.run), "checkpoint": content["file"], "step": content["counters"]["step"]}
        print(json.dumps(report | {"mean_return": mean, "std_return": std, "returns": returns}))
    else:
        print(
            f"{asked.run} ({content['file']}, step {content['counters']['step']:,}): return {mean:.2f} ± {std:.2f} "
            f"over {len(returns)} episodes"
        )
    return 0


def plot_runs(arguments: list[str]) -> int:
    """`rl plot RUN…`."""
    from rl import plot

    @dataclasses.dataclass
    class Plot:
        """Learning curves of runs in one picture: runs that differ in their seed only are one curve, with a band."""

        runs: tyro.conf.Positional[list[Path]]  # run folders
        out: Path = Path("curves.png")  # .png, .svg or .pdf
        metric: str = "average_return"  # a column of metrics.csv, such as eval_return

    asked = tyro.cli(Plot, prog="rl plot", args=arguments)
    if not asked.runs:
        raise UsageError("usage: rl plot RUN…")
    plot.save(plot.draw(asked.runs, asked.metric), asked.out)
    print(asked.out)
    return 0


def compare(arguments: list[str]) -> int:
    """`rl compare DIR`."""
    from rl import plot

    @dataclasses.dataclass
    class Compare:
        """One row for each setting of the runs in a folder, over its seeds; the best first."""

        folder: tyro.conf.Positional[Path]  # holds the run folders
        json: bool = False  # print a list of JSON objects

    asked = tyro.cli(Compare, prog="rl compare", args=arguments)
    rows = plot.compare(asked.folder)
    if asked.json:  # which knows no nan
        objects = [{name: None if value != value else value for name, value in vars(row).items()} for row in rows]
        print(json.dumps(objects))
    else:
        print(plot.table(rows))
    return 0


def bench(arguments: list[str]) -> int:
    """`rl bench ALGORITHM [flags]` or `rl bench amp`."""
    from rl import bench_amp
    from rl.bench import DEFAULTS, table
    from rl.bench import bench as measure
    from rl.run_config import choose_device
    from rl.train import ALGORITHMS

    @dataclasses.dataclass
    class Output:
        """How to print it."""

        json: bool = False  # print one JSON object

    @dataclasses.dataclass
    class Amp:
        """Time PPO's update of a Nature CNN and of a large MLP on made-up batches, in each precision."""

        device: str = "auto"  # auto, cpu, cuda or cuda:i
        threads: int = 1  # CPU threads of torch
        updates: int | None = None  # in each of 5 rounds; by default 50 on a GPU, 1 on a CPU
        json: bool = False  # print one JSON object

    what, *flags = arguments or [""]
    names = "|".join([*ALGORITHMS, "amp"])
    if what in ("-h", "--help"):
        print(f"usage: rl bench {{{names}}} [flags]\n`rl bench dqn --help` lists the flags of dqn")
        return 0
    if what == "amp":
        asked = tyro.cli(Amp, prog="rl bench amp", args=flags)
        report = bench_amp.bench(choose_device(asked.device), asked.threads, asked.updates)
        print(json.dumps(report) if asked.json else bench_amp.table(report))
        return 0
    if what not in ALGORITHMS:
        raise UsageError(f"usage: rl bench {{{names}}} [flags], not {what or 'nothing'!r}")
    config_type, _ = ALGORITHMS[what]
    description = f"Train {what} without evaluations or a run folder, and print what each part of it costs."
    output, run, config = parse(
        flags, Output(), DEFAULTS, config_type(), prog=f"rl bench {what}", description=description
    )
    report = measure(run, what, config)
    print(json.dumps(report) if output.json else table(report))
    return 0


def diagnose(arguments: list[str]) -> int:
    """`rl diagnose BUNDLE`."""
    from rl.diagnose import diagnose as repeat
    from rl.run_config import choose_device

    def parse(bundle: tyro.conf.Positional[Path], /, device: str = "cpu") -> str:
        """Repeat an update that met nan or infinity, and list every tensor of it.

        Args:
            bundle: not-finite-step-N.pt of the run's folder
            device: auto, cpu, cuda or cuda:i
        """
        return repeat(bundle, choose_device(device))

    print(tyro.cli(parse, prog="rl diagnose", args=arguments))
    return 0


def doctor(arguments: list[str]) -> int:
    """`rl doctor`."""
    from rl import doctor as gpu_doctor

    return gpu_doctor.main(arguments)


if __name__ == "__main__":
    main()
