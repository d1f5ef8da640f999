"""The peers and rl side by side, on this machine, in one run: `make bench`, or `python benchmarks/side_by_side.py`.

Every figure is measured here and now: each run in a process of its own, one at a time, the sides in turn, seed by seed.
`benchmarks/peers/measure.py` says what is measured and holds the hyper-parameters. On the first seed a side runs with 1
and with 2 threads, and keeps the faster (a peer's goal takes over the threads of the same algorithm's work, ours has
one). A peer that is not installed, or fails, has a line that says so.

The table gives, for every row, each side's median and spread, and how many times better rl is than the peers: in
speed, in 1 / seconds, in 1 / memory. Where a peer missed the goal its seconds are a lower bound (≥).
`--rows` and `--quick` measure less; the figures of a complete run lie in benchmarks/results/, with the machine.
"""

import argparse
import importlib.metadata
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).parents[1]
RUNNERS = ROOT / "benchmarks" / "peers"
RL, RAW, IMPORT = "rl", "rl, functions alone", "import torch, gymnasium"
ENVIRONMENTS = dict.fromkeys(("sb3", "skrl", "tianshou", "torchrl", "gymnasium"), ".venv-peers") | {
    "pufferlib": ".venv-pufferlib"
}
THREADS = (1, 2)
STARTS = 5  # times that a start is measured


class Row(NamedTuple):
    """One line of the issue's targets: what rl is held to against the fastest of `peers`."""

    work: str  # of measure.py; `start`; or `memory WORK`, of the runs of that row
    unit: str
    peers: tuple[str, ...]
    target: float  # how many times better rl shall be
    beside: tuple[str, ...] = ()  # measured too, without a target
    threads_from: str = ""  # the row whose threads the peers take over
    limit: float = 100.0  # seconds for a goal

    @property
    def less_is_better(self) -> bool:
        """Whether the unit is a cost."""
        return self.unit in ("s", "MB")


ROWS = (
    Row("ppo-cartpole", "steps/s", ("sb3", "skrl", "tianshou", "torchrl"), 1.5),
    Row("dqn-cartpole", "updates/s", ("sb3", "skrl", "tianshou"), 1.5),
    Row("sac-pendulum", "updates/s", ("sb3", "skrl", "tianshou"), 1.4),
    Row("ppo-cartpole-475", "s", ("sb3", "skrl"), 8.0, threads_from="ppo-cartpole"),
    Row("dqn-cartpole-195", "s", ("sb3", "tianshou"), 8.0, threads_from="dqn-cartpole"),
    Row("sac-pendulum-200", "s", ("sb3", "skrl"), 8.0, threads_from="sac-pendulum"),
    Row("ppo-cartpole-4096", "steps/s", ("pufferlib",), 1.0),
    Row("ppo-pong", "steps/s", ("sb3",), 2.0),
    Row("step-cartpole-4096", "steps/s", ("gymnasium",), 1.0, beside=("pufferlib",)),
    Row("step-pendulum-1024", "steps/s", ("gymnasium",), 50.0),
    Row("step-mountaincar-1024", "steps/s", ("gymnasium",), 50.0),
    Row("step-acrobot-1024", "steps/s", ("gymnasium",), 50.0),
    Row("start", "s", (IMPORT,), round(1 / 1.3, 3)),
    Row("memory ppo-cartpole-475", "MB", ("sb3", "skrl"), 1.0),
    Row("memory dqn-cartpole-195", "MB", ("sb3", "tianshou"), 1.0),
    Row("memory sac-pendulum-200", "MB", ("sb3", "skrl"), 1.0),
)
NOTES = """PufferLib's CartPole, in C, ends after 200 steps: an easier task than CartPole-v1, and more steps a second.
skrl's DQN has no goal: its exploration repeats one action; tianshou's PPO none: it would take longest by far. Not
measured: CleanRL and LeanRL, which cannot be installed from a package index in a usable form, and Sample Factory, whose
asynchronous PPO cannot be held to the same work."""


class Side(NamedTuple):
    """What one side did in a row."""

    median: float
    low: float
    high: float
    runs: int
    reached: int  # of `runs`; all where there is no goal
    at_least: bool  # whether the median is of goals missed, and so a lower bound
    threads: int
    memory_mb: float  # median
    error: str = ""  # why there is no figure


def figure(row: Row, result: dict[str, Any]) -> float:
    """The number of a run's line that the row compares."""
    return result[{"s": "seconds", "MB": "peak_memory_mb"}.get(row.unit, "rate")]


def side(row: Row, results: list[dict[str, Any]]) -> Side:
    """Medians and spread of one side's runs; its first error where it has one."""
    for result in results:
        if result.get("error"):
            return Side(math.nan, math.nan, math.nan, 0, 0, False, result["threads"], math.nan, result["error"])
    values = [figure(row, result) for result in results]
    missed = [result.get("reached") is False for result in results]
    median, at_least = statistics.median(values), False
    if row.unit == "s" and any(missed):  # one that missed would have taken longer: who knows how much
        true = [math.inf if late else value for value, late in zip(values, missed, strict=True)]
        at_least = math.isinf(statistics.median(true))
        median = median if at_least else statistics.median(true)
    memory = statistics.median(result.get("peak_memory_mb") or math.nan for result in results)
    reached, threads = missed.count(False), results[0]["threads"]
    return Side(median, min(values), max(values), len(values), reached, at_least, threads, memory)


def sides(row: Row, results: Iterable[dict[str, Any]]) -> dict[str, Side]:
    """Every side that has results for the row, ours first; tries of other thread counts are left out."""
    of_row = [r for r in results if r["work"] == row.work.removeprefix("memory ") and not r.get("try")]
    table = {}
    for name in (RL, *row.peers, *row.beside):
        if mine := [result for result in of_row if result["peer"] == name]:
            table[name] = side(row, mine)
    if (raw := [r | {"rate": r["raw_rate"]} for r in of_row if r.get("raw_rate")]) and RL in table:
        table[RAW] = side(row, raw)
    return table


def times_better(row: Row, ours: Side, theirs: Side) -> float:
    """By how much ours is ahead, above 1, or behind; nan where one of them has no figure."""
    if not ours.median or not theirs.median:
        return math.nan
    return theirs.median / ours.median if row.less_is_better else ours.median / theirs.median


def best_peer(row: Row, table: dict[str, Side]) -> str | None:
    """The peer to beat."""
    names = [name for name in row.peers if name in table and not table[name].error]
    choose = min if row.less_is_better else max
    return choose(names, key=lambda name: table[name].median, default=None)


def met(row: Row, table: dict[str, Side]) -> bool | None:
    """Whether the target is; None where no peer or no run of ours gave a figure."""
    peer = best_peer(row, table)
    if peer is None or RL not in table or table[RL].error:
        return None
    ours = table[RL]
    return ours.reached == ours.runs and times_better(row, ours, table[peer]) >= row.target


def number(value: float) -> str:
    """Three digits or four."""
    if math.isnan(value):
        return "-"
    return f"{value / 1e6:.3g}M" if value >= 1e6 else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def lines(row: Row, table: dict[str, Side]) -> list[str]:
    """The row's part of the printed table."""
    text = []
    for name, one in table.items():
        start = f"{row.work if name == RL else '':24} {name:24}"
        if one.error:
            text.append(f"{start} {one.error}")
            continue
        median = ("≥ " if one.at_least else "") + number(one.median)
        spread, reached = f"{number(one.low)} to {number(one.high)}", f"{one.reached}/{one.runs}"
        ratio = "" if name in (RL, RAW) else f"{times_better(row, table[RL], one):8.2f}"
        text.append(
            f"{start} {median:>8} {row.unit:9} {spread:>18} {reached:>4} {one.threads:>3} "
            f"{number(one.memory_mb):>6} {ratio}".rstrip()
        )
    verdict = {True: "met", False: "missed", None: "open"}[met(row, table)]
    peer = best_peer(row, table) or "no peer"
    text.append(f"{'':24} target: {row.target:g} x {peer}: {verdict}")
    return text


HEADING = (
    f"{'row':24} {'side':24} {'median':>8} {'':9} {'least to most':>18} {'ok':>4} {'thr':>3} {'MB':>6} {'rl is x':>8}"
)


def as_json(row: Row, table: dict[str, Side]) -> dict[str, Any]:
    """The row's medians, for the results' file; null stands where there is no figure."""
    peer = best_peer(row, table)
    ratio = times_better(row, table[RL], table[peer]) if peer and RL in table else math.nan
    return {
        "work": row.work,
        "unit": row.unit,
        "target": row.target,
        "best_peer": peer,
        "times_better": None if math.isnan(ratio) else round(ratio, 3),
        "met": met(row, table),
        "sides": {
            name: {key: None if value != value else value for key, value in one._asdict().items()}
            for name, one in table.items()
        },
    }


def measure(name: str, work: str, seed: int, threads: int, limit: float, share: float) -> dict[str, Any]:
    """One run in a process of its own: the line that it printed, or one with `error`."""
    line = {"peer": name, "work": work, "seed": seed, "threads": threads}
    python = Path(sys.executable) if name == RL else ROOT / ENVIRONMENTS[name] / "bin" / "python"
    if not python.exists():
        return line | {"error": f"not installed: no {ENVIRONMENTS[name]} here (`make bench` makes it)"}
    command = [python, RUNNERS / f"run_{name}.py", "--work", work, "--seed", seed, "--threads", threads]
    command += ["--limit", limit, "--share", share]
    try:
        done = run(command, timeout=limit + 120)
    except subprocess.TimeoutExpired:
        return line | {"error": f"ended after {limit + 120:.0f} s"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return line | {"error": f"exit {done.returncode}: {last}"}
    return json.loads(done.stdout)


def run(command: list[Any], timeout: float) -> subprocess.CompletedProcess[str]:
    """A process in an empty folder, that finds this very rl."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [str(part) for part in command],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": paths},
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
        )


def measure_start(name: str, seed: int) -> dict[str, Any]:
    """Seconds from process start to the first training step, or to the end of the imports."""
    imports = ["-c", "import os, torch, gymnasium; os._exit(0)"]
    start = time.perf_counter()
    done = run([sys.executable, *(imports if name == IMPORT else [RUNNERS / "start_rl.py"])], timeout=120)
    seconds = time.perf_counter() - start
    line = {"peer": name, "work": "start", "seed": seed, "threads": 1, "seconds": round(seconds, 3)}
    return line | ({"error": (done.stderr.strip().splitlines() or ["failed"])[-1]} if done.returncode else {})


def better(row: Row, tries: list[dict[str, Any]]) -> dict[str, Any]:
    """The best of one seed's tries: one without error, that reached its goal, with the best figure."""
    choose = min if row.less_is_better else max
    fit = [result for result in tries if not result.get("error")] or tries[:1]
    fit = [result for result in fit if result.get("reached") is not False] or fit
    return fit[0] if fit[0].get("error") else choose(fit, key=lambda result: figure(row, result))


def results_of(row: Row, seeds: list[int], threads: dict[tuple[str, str], int], quick: bool) -> list[dict[str, Any]]:
    """All runs of a row, the sides in turn; `threads` holds what each side was fastest with, by row and side."""
    if row.work == "start":
        names = (RL, IMPORT)
        for name in names:
            measure_start(name, 0)  # from now on the files lie in memory
        return [measure_start(name, i) for i in range(1 if quick else STARTS) for name in names]
    results, limit, share = [], 30.0 if quick else row.limit, 0.1 if quick else 1.0
    for seed in seeds:
        for name in (RL, *row.peers, *row.beside):
            # our goals run as `rl train` would by itself: on one thread, their networks are small
            inherited = threads.get((row.threads_from, name)) if name != RL else (1 if row.threads_from else None)
            known = threads.get((row.work, name)) or inherited or (1 if quick or row.work.startswith("step") else None)
            tries = [measure(name, row.work, seed, n, limit, share) for n in ([known] if known else THREADS)]
            best = better(row, tries)
            threads[row.work, name] = best["threads"]
            results += [result | ({} if result is best else {"try": True}) for result in tries]
    return results


def machine() -> dict[str, Any]:
    """What the figures were measured on, and with."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    git = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "date": date.today().isoformat(),
        "cpu": cpu[1] if cpu else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory[1]) / 2**20, 1) if memory else None,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "os": f"{platform.freedesktop_os_release().get('PRETTY_NAME')}, Linux {platform.release()}",
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("torch", "gymnasium", "numpy")},
        "commit": git(["git", "rev-parse", "HEAD"]).stdout.strip() or "unknown",
        "dirty": bool(git(["git", "status", "--porcelain"]).stdout.strip()),
        "load_before": round(os.getloadavg()[0], 2),  # other processes: above 0.5 the figures are worth little
    }


def results_file(described: dict[str, Any], kind: str) -> Path:
    """Where the figures of a machine go, by date and processor; the folder is made."""
    slug = re.sub(r"[^a-z0-9]+", "-", described["cpu"].lower()).strip("-")
    folder = ROOT / "benchmarks" / "results"
    folder.mkdir(exist_ok=True)
    return folder / f"{described['date']}-{slug}{kind}"


def main() -> None:
    """Measure, print and write."""
    names = [row.work for row in ROWS if not row.work.startswith("memory")]
    parser = argparse.ArgumentParser(description="Measure the peers and rl side by side and print the ratio table.")
    parser.add_argument("--rows", nargs="+", metavar="ROW", default=names, help=f"some of {', '.join(names)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--quick", action="store_true", help="one seed, a tenth of the work, 30 s a goal")
    asked = parser.parse_args()
    if unknown := set(asked.rows) - set(names):
        parser.error(f"no row {', '.join(sorted(unknown))}: choose some of {', '.join(names)}")
    seeds = asked.seeds[:1] if asked.quick else asked.seeds
    described, raw, threads = machine(), [], {}
    print("\n".join(f"{key}: {value}" for key, value in described.items()) + f"\n\n{HEADING}", flush=True)
    rows = [row for row in ROWS if row.work.removeprefix("memory ") in asked.rows]
    for row in rows:
        if not row.work.startswith("memory"):
            raw += results_of(row, seeds, threads, asked.quick)
        print("\n".join(lines(row, sides(row, raw))), flush=True)
    print(f"\n{NOTES}")
    described["peers"] = {result["peer"]: result["version"] for result in raw if result.get("version")}
    part = asked.quick or asked.rows != names
    file = results_file(described, "-part.json" if part else ".json")
    tables = [as_json(row, sides(row, raw)) for row in rows]
    file.write_text(json.dumps({"machine": described, "rows": tables, "raw": raw}, indent=1) + "\n")
    print(f"written: {file.relative_to(ROOT)}")
    sys.exit(any(result.get("error") for result in raw if result["peer"] == RL))


if __name__ == "__main__":
    main()
