"""Pictures and tables of runs: learning curves with a band over seeds, one row per setting, a curve that moves."""

import csv
import io
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl import checkpoint
from rl.agent import Agent
from rl.errors import RunError, UsageError
from rl.loop import Counters
from rl.run_folder import read_config, read_status

HOW = {  # fields of RunConfig that make no other setting of a run
    *("seed", "device", "threads", "replay_device", "keep_checkpoints", "track"),
    *("log_interval", "eval_interval", "eval_episodes", "checkpoint_interval"),
}
REDRAW = 0.5  # seconds between two pictures of a LiveCurve


class Curve(NamedTuple):
    """One metric of a run."""

    steps: np.ndarray  # [K] environment steps, rising
    values: np.ndarray  # [K]


def read_curve(run: Path, metric: str = "average_return") -> Curve:
    """A column of the run's metrics.csv, where it has numbers. Raises UsageError where the run has no such metric."""
    read_config(run)  # says what is wrong where this is no run
    try:
        with (run / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError:
        rows = []
    cells = [(row["step"], row.get(metric)) for row in rows]
    points = [(int(step), float(cell)) for step, cell in cells if cell and not math.isnan(float(cell))]
    if not points:
        names = sorted({name for row in rows for name in row} - {"step"})
        raise UsageError(f"{run} has no figures of {metric}: it has {', '.join(names) or 'none at all yet'}")
    steps, values = np.array(points).T
    return Curve(steps, values)


def groups(runs: Sequence[Path]) -> dict[str, list[Path]]:
    """Runs that differ in their seed only, under the algorithm and the settings that tell them from its other runs,
    such as `dqn, learning_rate 0.01`.
    """
    settings = {run: _settings(run) for run in runs}
    several_envs = len({own["env_id"] for own in settings.values()}) > 1
    titled: dict[str, list[Path]] = {}
    for run, own in settings.items():
        title = f"{own['algorithm']} on {own['env_id'].removeprefix('__main__:')}" if several_envs else own["algorithm"]
        titled.setdefault(title, []).append(run)
    found: dict[str, list[Path]] = {}
    for title, members in titled.items():
        names = list(dict.fromkeys(name for run in members for name in settings[run]))
        differing = [name for name in names if len({settings[run].get(name) for run in members}) > 1]
        for run in members:
            key = [f"{name} {settings[run][name]}" for name in differing if name in settings[run]]
            found.setdefault(", ".join([title, *key]), []).append(run)
    return found


def _settings(run: Path) -> dict[str, str]:
    config = read_config(run)
    kept = {name: value for name, value in config["run"].items() if name not in HOW}
    named = {"algorithm": config["algorithm"]} | config["config"] | kept
    return {name: "x".join(map(str, value)) if isinstance(value, list) else str(value) for name, value in named.items()}


def draw(runs: Sequence[Path], metric: str = "average_return") -> Any:  # noqa: ANN401 - matplotlib is imported late
    """A matplotlib Figure of learning curves: for each setting the mean over its seeds and ± one standard deviation.

    The mean ends where the first seed ends; each seed is there as a thin line of its own.
    """
    from matplotlib.figure import Figure

    show_figures_in_notebooks()
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, (label, members) in enumerate(groups(runs).items()):
        curves, color = [read_curve(run, metric) for run in members], f"C{number}"
        seeds = f" ({len(curves)} seeds)" if len(curves) > 1 else ""
        for curve in curves:
            axes.plot(*curve, color=color, linewidth=0.7 if seeds else 1.8, alpha=0.5 if seeds else 1.0)
        if seeds:
            mean, deviation = mean_curve(curves)
            axes.fill_between(mean.steps, mean.values - deviation, mean.values + deviation, color=color, alpha=0.2)
            axes.plot(*mean, color=color, linewidth=2)
        axes.plot([], [], color=color, linewidth=2, label=label + seeds)
    axes.set(xlabel="environment steps", ylabel=metric.replace("_", " "))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", frameon=False)
    return figure


def mean_curve(curves: Sequence[Curve]) -> tuple[Curve, np.ndarray]:
    """Mean and standard deviation [K] of several seeds, from the last one's first step to the first one's last."""
    begin, end = max(curve.steps[0] for curve in curves), min(curve.steps[-1] for curve in curves)
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    steps = steps[(steps >= begin) & (steps <= end)]
    values = np.array([np.interp(steps, *curve) for curve in curves])
    return Curve(steps, values.mean(axis=0)), values.std(axis=0)


def show_figures_in_notebooks() -> None:
    """Let a notebook show a Figure as a picture: by itself it does so once pyplot has drawn one, and text before."""
    if "IPython" not in sys.modules:
        return
    from IPython import get_ipython
    from matplotlib.figure import Figure

    shell: Any = get_ipython()
    if not shell or any(Figure in shell.display_formatter.formatters[kind] for kind in ("image/png", "image/svg+xml")):
        return
    from IPython.core.pylabtools import select_figure_formats

    select_figure_formats(shell, {"png"})  # type: ignore[no-untyped-call]


def save(figure: Any, path: Path) -> None:  # noqa: ANN401
    """Write a picture, whole or not at all, in the format that the file's ending names.

    Raises UsageError for an ending that names none, RunError where it cannot be written.
    """
    content = io.BytesIO()
    try:
        figure.savefig(content, format=path.suffix.removeprefix(".") or "png", dpi=150)
    except ValueError as error:
        raise UsageError(f"--out {path}: no picture has this ending: take .png, .svg or .pdf") from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_atomically(path, lambda file: file.write(content.getvalue()))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error


def save_curve(run: Path) -> None:
    """Draw a run's returns into its folder, as curve.png; nothing where no episode has ended yet."""
    try:
        figure = draw([run])
    except UsageError:
        return
    axes = figure.axes[0]
    axes.set(title=run.name, ylabel="return, mean of the last 100 episodes")
    try:
        evaluations = read_curve(run, "eval_return")
        axes.plot(*evaluations, "o", color="C1", markersize=5, label="greedy evaluation")
        axes.legend(frameon=False)
    except UsageError:
        pass
    figure.legends.clear()
    save(figure, run / "curve.png")


@dataclass(frozen=True)
class Row:
    """What the seeds of one setting came to."""

    setting: str  # as `groups` names it
    runs: int  # seeds
    states: dict[str, int]  # of status.json: how many are finished, running, interrupted, failed
    steps: float  # mean of the environment steps
    episodes: float  # mean of the training episodes
    final_return: float  # mean over seeds of the last average return; nan before the first episode
    final_return_std: float  # its standard deviation over seeds
    best_eval: float  # mean over seeds of the best evaluation; nan where none was made


def compare(folder: Path) -> list[Row]:
    """One row for each setting of the runs in `folder`, the best first. Raises UsageError where there are none."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: give the one that holds the run folders")
    runs = sorted(path.parent for path in folder.glob("*/config.json"))
    if not runs:
        raise UsageError(f"{folder} holds no runs: give the folder that holds the run folders, such as models/runs")
    rows = [_row(setting, members) for setting, members in groups(runs).items()]
    return sorted(rows, key=lambda row: -row.final_return if row.final_return == row.final_return else math.inf)


def _row(setting: str, runs: list[Path]) -> Row:
    statuses = [read_status(run) for run in runs]
    states = [status["state"] for status in statuses]
    finals = [returns[-1] for run in runs if len(returns := _values(run, "average_return"))]
    evaluations = [returns.max() for run in runs if len(returns := _values(run, "eval_return"))]
    return Row(
        setting,
        len(runs),
        {state: states.count(state) for state in sorted(set(states))},
        float(np.mean([status["step"] for status in statuses])),
        float(np.mean([status["episodes"] for status in statuses])),
        float(np.mean(finals)) if finals else math.nan,
        float(np.std(finals)) if finals else math.nan,
        float(np.mean(evaluations)) if evaluations else math.nan,
    )


def _values(run: Path, metric: str) -> np.ndarray:
    try:
        return read_curve(run, metric).values
    except UsageError:
        return np.empty(0)


def table(rows: Sequence[Row]) -> str:
    """The rows as text, in columns."""
    lines = [("setting", "seeds", "steps", "episodes", "final return", "best evaluation", "")]
    for row in rows:
        final = f"{row.final_return:.1f}" + (f" ± {row.final_return_std:.1f}" if row.runs > 1 else "")
        others = ", ".join(f"{count} {state}" for state, count in row.states.items() if state != "finished")
        counts = str(row.runs), f"{row.steps:,.0f}", f"{row.episodes:,.0f}"
        lines.append((row.setting, *counts, final, f"{row.best_eval:.1f}", others))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [
        [line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))]
        for line in lines
    ]
    return "\n".join("  ".join(cells).rstrip() for cells in aligned)


class LiveCurve:
    """A learning curve that moves while an agent trains, for notebooks.

        with LiveCurve(goal=195) as curve:
            result = train.train(run, config, on_episode=curve, progress=False)

    A dot for the return of each training episode, a line for the mean of the last 100, a dotted line at `goal`. It is
    redrawn twice a second at most, and at the end.
    """

    def __init__(self, goal: float | None = None) -> None:
        from IPython.display import display
        from matplotlib.figure import Figure

        self.goal = goal
        self.returns: list[float] = []
        self.averages: list[float] = []
        show_figures_in_notebooks()
        self.figure = Figure(figsize=(8, 3.5), layout="constrained")
        self.axes = self.figure.subplots()
        self.screen: Any = display(self.figure, display_id=True)  # type: ignore[no-untyped-call]
        self.drawn = 0.0

    def __enter__(self) -> "LiveCurve":
        return self

    def __exit__(self, *_: object) -> None:
        self.draw(f"{len(self.returns)} episodes")

    def __call__(self, counters: Counters, agent: Agent) -> None:
        """Take in an episode."""
        self.returns.append(counters.recent_returns[-1])
        self.averages.append(counters.average_return)
        if time.monotonic() - self.drawn >= REDRAW:
            self.draw(f"step {counters.step:,}")

    def draw(self, title: str = "") -> None:
        """Draw all episodes so far."""
        axes = self.axes
        axes.clear()
        episodes = np.arange(1, len(self.returns) + 1)
        axes.plot(episodes, self.returns, ".", alpha=0.4, label="episode")
        axes.plot(episodes, self.averages, label="mean of the last 100")
        if self.goal is not None:
            axes.axhline(self.goal, color="grey", linestyle=":", label="goal")
        axes.set(xlabel="episode", ylabel="return")
        axes.set_title(title, loc="left", fontsize="medium")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)  # above: curves go everywhere
        self.screen.update(self.figure)
        self.drawn = time.monotonic()
