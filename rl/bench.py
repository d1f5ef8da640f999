"""What a run costs, phase by phase: `rl train` itself, with a stopwatch at the calls of agent, environments and loop.

They are timed from outside: no algorithm, environment or loop knows of it, and what is trained is the same.
"""

import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gymnasium.vector import AsyncVectorEnv

from rl import envs
from rl.a3c import A3C
from rl.errors import NotFiniteError, RunError, UsageError
from rl.loop import Loop
from rl.run_config import RunConfig
from rl.sampling import WholeRollouts
from rl.train import train

PHASES = ("environment", "acting", "copying", "updating", "logging and saving", "waiting", "rest")
WARM_UP = 0.2  # share of the steps that is left out: allocations, and updates that wait for a first batch
NEVER = 10**12  # steps
DEFAULTS = RunConfig(eval_interval=0, eval_episodes=0, checkpoint_interval=NEVER)
UNUSED = ("run_dir", "track", "stop_at_return", "eval_interval", "eval_episodes")  # fields that have no meaning here
MIB = 2**20


class Stopwatch:
    """Seconds by phase. A phase within another one interrupts it, so they add up to the time that passed.

    On a GPU the end of each phase waits until the GPU is done, and this wait is a phase of its own, `waiting`: without
    it the work of one phase would be counted where a later one needs its result.
    """

    def __init__(self, device: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.device, self.clock = device, clock
        self.start()

    def start(self) -> None:
        """Begin at 0, outside of every phase."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.phase = "rest"
        self.began = self.since = self.clock()

    def read(self) -> tuple[float, dict[str, float]]:
        """Seconds since `start`, and those of each phase."""
        self._switch(self.phase)
        return self.since - self.began, dict(self.seconds)

    def time(self, owner: object, **phases: str) -> None:
        """Count calls of `owner`'s methods from now on, each in the phase given for its name."""
        for name, phase in phases.items():
            setattr(owner, name, self._timed(getattr(owner, name), phase))

    def _timed(self, call: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            before = self._switch(phase)
            try:
                return call(*arguments, **options)
            finally:
                if self.device.startswith("cuda"):  # GPU only
                    self._switch("waiting")
                    torch.cuda.synchronize(self.device)
                self._switch(before)

        return timed

    def _switch(self, phase: str) -> str:
        """Enter `phase`; returns the one before."""
        now, before = self.clock(), self.phase
        self.seconds[before] += now - self.since
        self.phase, self.since = phase, now
        return before


class Measurement:
    """A stopwatch at a run's calls, started after the warm-up and read after the last step, with the counts between."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.figures: dict[str, Any] = {}  # {} until the run ended
        self.startup_seconds = 0.0
        self.counts_before: tuple[int, int] | None = None  # steps and updates of the warm-up

    def attach(self, loop: Loop) -> None:
        """Time the calls of `loop`, and of its agent and environments."""
        self.loop, agent, train_envs = loop, loop.agent, loop.envs
        self.stopwatch = Stopwatch(agent.device, self.clock)
        self.stopwatch.time(agent, act="acting", observe="copying", learn="updating")
        if isinstance(train_envs, envs.Halves):
            self.stopwatch.time(train_envs, send="environment", receive="waiting", join="environment")
        else:
            self.stopwatch.time(train_envs, step="environment")
        self.stopwatch.time(train_envs, take_episodes="environment")
        if isinstance(loop.sampler, WholeRollouts):
            self.stopwatch.time(loop.sampler, graph="environment")  # acts, too
        self.stopwatch.time(
            loop, _log="logging and saving", _save="logging and saving", _say_running="logging and saving"
        )
        if isinstance(agent, A3C):
            self.stopwatch.time(agent.optimizer, wait="waiting")
        own = _own(train_envs)
        if isinstance(own, envs.GymnasiumEnvs) and isinstance(own.envs, AsyncVectorEnv):
            self.stopwatch.time(own.envs, step_wait="waiting")
        act, end = agent.act, loop._end

        def act_after_warm_up(obs: torch.Tensor, explore: bool = True) -> torch.Tensor:
            self._before_step()
            return act(obs, explore)

        def read_and_end(received: int) -> Any:  # noqa: ANN401
            self._after_last_step()
            return end(received)

        for owner, name, call in ((agent, "act", act_after_warm_up), (loop, "_end", read_and_end)):
            setattr(owner, name, call)

    def _before_step(self) -> None:
        agent = self.loop.agent
        if not self.startup_seconds:
            self.startup_seconds = _process_age()
        if self.counts_before is None and agent.step >= WARM_UP * self.loop.config.total_steps:
            self.counts_before = agent.step, agent.updates
            self.stopwatch.start()

    def _after_last_step(self) -> None:
        if self.counts_before is None:
            return
        seconds, phases = self.stopwatch.read()
        run, agent, (step, updates) = self.loop.config, self.loop.agent, self.counts_before
        steps, updates = agent.step - step, agent.updates - updates
        self.figures = {
            "env_id": run.env_id,
            "num_envs": run.num_envs,
            "device": agent.device,
            "backend": _backend(self.loop.envs),
            "threads": torch.get_num_threads(),
            "accelerate": run.accelerate,
            "precision": run.precision,
            "warm_up_steps": step,
            "steps": steps,
            "updates": updates,
            "seconds": seconds,
            "phases": {
                name: {"seconds": spent, "share": spent / seconds, "microseconds_per_step": 1e6 * spent / steps}
                for name, spent in phases.items()
            },
            "steps_per_second": steps / seconds,
            "updates_per_second": updates / seconds,
            "startup_seconds": self.startup_seconds,
            "peak_memory_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            "peak_gpu_memory_bytes": None,
        }
        if agent.device.startswith("cuda"):  # GPU only
            self.figures["peak_gpu_memory_bytes"] = torch.cuda.max_memory_allocated(agent.device)


def bench(run: RunConfig, algorithm: str, config: Any) -> dict[str, Any]:  # noqa: ANN401 - a Config of ALGORITHMS
    """Train by `run` (DEFAULTS, changed) and `config` in a folder that is removed; returns what it cost.

    `phases` holds for each of PHASES its seconds, its share of all `seconds`, and microseconds per environment step:
    `copying` is the agent's `observe`, `waiting` is for worker processes and, at the end of each phase, for the GPU.
    `startup_seconds` reach from the start of the process to its first step. Raises UsageError for what is not measured.
    """
    for name in UNUSED:
        if getattr(run, name) != getattr(DEFAULTS, name):
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag}: rl bench makes all --total-steps, evaluates nothing and keeps nothing: leave it")
    measurement = Measurement()
    with tempfile.TemporaryDirectory(prefix="rl-bench-") as folder:
        run = replace(run, run_dir=Path(folder) / "run")
        try:
            result = train(run, config, on_start=measurement.attach, progress=False)
        except RunError as error:
            if not isinstance(error.__cause__, (NotFiniteError, torch.OutOfMemoryError)):
                raise
            # the message speaks of a run folder that is gone by now
            raise RunError(f"the measured run failed: {error.__cause__}") from error
    if result.signal:
        raise SystemExit(result.exit_code)
    if not measurement.figures:
        raise UsageError(
            f"--total-steps {run.total_steps}: no step is left to measure after the first fifth, the warm-up: give more"
        )
    return {"algorithm": algorithm, **measurement.figures}


def table(report: dict[str, Any]) -> str:
    """What `bench` returned, for people."""
    settings = ", ".join(
        f"{name} {report[name]}" for name in ("device", "backend", "threads", "accelerate", "precision")
    )
    lines = [
        f"{report['algorithm']} on {report['env_id']} x {report['num_envs']}: {settings}",
        f"{report['steps']:,} steps and {report['updates']:,} updates in {report['seconds']:.2f} s, after a warm-up of "
        f"{report['warm_up_steps']:,} steps",
        "",
        f"{'phase':<20} {'seconds':>9} {'share':>7} {'µs/step':>9}",
    ]
    whole = {"seconds": report["seconds"], "share": 1.0, "microseconds_per_step": 1e6 / report["steps_per_second"]}
    for name, row in {**report["phases"], "all": whole}.items():
        lines.append(f"{name:<20} {row['seconds']:>9.3f} {row['share']:>7.1%} {row['microseconds_per_step']:>9.2f}")
    memory = f"{report['peak_memory_bytes'] / MIB:,.0f} MiB (resident, this process)"
    if report["peak_gpu_memory_bytes"] is not None:  # GPU only
        memory += f", {report['peak_gpu_memory_bytes'] / MIB:,.0f} MiB on the GPU (allocated by torch)"
    lines += [
        "",
        f"speed        {report['steps_per_second']:,.0f} steps/s, {report['updates_per_second']:,.1f} updates/s",
        f"peak memory  {memory}",
        f"start-up     {report['startup_seconds']:.2f} s, from the start of the process to its first step",
    ]
    if not report["updates"]:
        lines.append("no update fell into the measured steps: give more --total-steps")
    if report["algorithm"] == "a3c":
        lines.append("steps and updates are those of all workers, phases and memory those of the first process")
    if report["device"].startswith("cuda"):  # GPU only
        lines.append(
            "the GPU was waited for at the end of each phase, which costs something: rl train is faster than this. The "
            "work that it still had to do then is under waiting"
        )
    return "\n".join(lines)


def _own(train_envs: envs.Envs | envs.Halves) -> envs.Envs:
    """The environments that this process steps: of a3c's, which stand for those of all workers, the first one's."""
    return train_envs.envs if isinstance(train_envs, envs.Halves) else getattr(train_envs, "own", train_envs)


def _backend(train_envs: envs.Envs | envs.Halves) -> str:
    own = _own(train_envs)
    if isinstance(own, envs.GymnasiumEnvs):
        return "async" if isinstance(own.envs, AsyncVectorEnv) else "sync"
    return "native" if isinstance(own, (envs.NativeEnvs, envs.DeviceEnvs)) else "ale"


def _process_age() -> float:
    """Seconds since this process was started; the kernel counts them in ticks of 10 ms."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()  # the name before it may hold spaces
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5), since boot
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
