"""One loop for every algorithm: act, step, observe, learn, count; then log, evaluate and checkpoint when due."""

import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl import checkpoint, envs, failures
from rl.agent import Agent
from rl.buffers import ReplayBuffer, RolloutBuffer
from rl.errors import NotFiniteError, RunError
from rl.evaluate import evaluate
from rl.gpu import GpuFigures
from rl.metrics import Console, Metrics
from rl.run_config import RunConfig
from rl.run_folder import RunFolder
from rl.sampling import make_sampler
from rl.stop_signals import StopSignals

LARGE_REPLAY = 64 * 2**20  # bytes from which on a replay is saved with the latest checkpoint only
WINDOW = 100  # training episodes that the average return is taken over


@dataclass
class Counters:
    """How far a run is; part of the checkpoint."""

    step: int = 0  # environment steps, summed over environments
    episodes: int = 0  # training episodes finished
    recent_returns: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    best_return: float = -np.inf  # best evaluation so far
    unlogged: dict[str, Any] = field(default_factory=dict)  # metrics since the last row

    @property
    def average_return(self) -> float:
        """Mean return of the last 100 training episodes, of all where there are fewer; nan before the first."""
        return sum(self.recent_returns) / len(self.recent_returns) if self.recent_returns else float("nan")

    def state_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {item.name: getattr(self, item.name) for item in fields(self)} | {
            "recent_returns": list(self.recent_returns),
            "unlogged": {name: float(value) for name, value in self.unlogged.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, value in state.items():
            setattr(self, name, deque(value, maxlen=WINDOW) if name == "recent_returns" else value)


@dataclass
class Result:
    """How a run ended: what status.json holds, and the agent."""

    state: str  # finished or interrupted
    reason: str
    path: Path
    counters: Counters
    agent: Agent
    solved: bool  # whether stop_at_return was reached
    signal: int = 0  # the signal that interrupted it

    @property
    def exit_code(self) -> int:
        """0, or as a shell counts a process that a signal ended: 130 for SIGINT, 143 for SIGTERM and SIGHUP."""
        return {0: 0, signal.SIGINT: 130}.get(self.signal, 143)


OnEpisode = Callable[[Counters, Any], None]  # called with counters and agent after each training episode


class Loop:
    """A run in progress: what the loop needs from one step to the next."""

    def __init__(
        self,
        run: RunConfig,
        agent: Agent,
        train_envs: envs.Envs | envs.Halves,
        folder: RunFolder,
        on_episode: OnEpisode | None,
        progress: bool,
    ) -> None:
        self.config, self.agent, self.envs, self.folder = run, agent, train_envs, folder
        self.sampler = make_sampler(agent, train_envs)
        self.gpu = GpuFigures(agent.device)
        self.on_episode, self.progress = on_episode, progress
        self.counters = Counters()
        self.saved_step = 0  # step of the latest checkpoint
        self.large_replay = isinstance(agent.buffer, ReplayBuffer) and agent.buffer.nbytes > LARGE_REPLAY
        self.reason = ""  # why the run is finished
        self.solved = False

    def load(self, content: dict[str, Any]) -> None:
        """Take over a checkpoint."""
        self.agent.load_state_dict(content["agent"])
        self.envs.load_state_dict(content["envs"])
        self.counters.load_state_dict(content["counters"])
        checkpoint.restore_random_state(content["rng"])
        self.saved_step = self.counters.step
        if self.envs.unsaved and isinstance(self.agent.buffer, RolloutBuffer):
            self.agent.buffer.cut_off()  # a replay sees by itself where episodes do not go on

    def run(self, signals: StopSignals) -> Result:
        """Step until enough or until a signal comes, and leave the folder with the right status whatever happens."""
        counters = self.counters
        if self.progress:
            run, agent, device = self.config, self.agent, self.agent.device
            place = f"{device} ({torch.cuda.get_device_name(device)})" if "cuda" in device else "the CPU"
            apart = isinstance(agent.buffer, ReplayBuffer) and agent.buffer.staging
            place += ", replay in CPU memory," if apart else ""
            print(f"training {run.env_id} x {run.num_envs} on {place} in {self.folder.path}", flush=True)
        try:
            self.metrics = Metrics(self.folder.path, counters.step, self.config.track)
        except RunError as error:
            self.folder.write_status("failed", counters.step, counters.episodes, str(error))
            raise
        self.console = Console(self.config.total_steps, counters.step, self.progress)
        try:
            if counters.step == 0:
                self._save()
            self._say_running()
            try:
                self._steps(signals)
            except NotFiniteError as error:
                raise failures.not_finite(error, self.folder.path, self.agent, counters.step) from error
            except torch.OutOfMemoryError as error:
                raise failures.out_of_memory(self.folder.path, self.agent, counters.step, self.saved_step) from error
            result = self._end(signals.received)
            self.metrics.close()
            return result
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            with suppress(RunError):  # if the disk is full these fail too, and the first error must come out
                self.folder.write_status("failed", counters.step, counters.episodes, reason)
                self.metrics.tracker.finish("failed")
                self.metrics.close()
            raise
        finally:
            self.console.close()
            self.envs.close()

    def _steps(self, signals: StopSignals) -> None:
        run, agent, counters = self.config, self.agent, self.counters
        self._judge()  # a run killed after its last step, and resumed, is done
        while not self.reason and not signals.received:
            self.sampler.sample()
            counters.unlogged |= agent.learn()
            before, counters.step = counters.step, agent.step
            for episode in self.envs.take_episodes():
                self._count(episode)
            self._judge()
            if self.reason:  # _end evaluates, saves and reports
                self._log()
                break
            if self._due(run.log_interval, before):
                self._log()
                self.console.show(counters.step, counters.episodes, counters.average_return)
            if self._due(run.eval_interval, before):
                self._evaluate()
            if self._due(run.checkpoint_interval, before):
                self._save()
                self._say_running()

    def _due(self, interval: int, before: int) -> bool:
        """Whether the steps since `before` crossed a multiple of `interval`."""
        return interval > 0 and self.counters.step // interval > before // interval

    def _count(self, episode: envs.Episode) -> None:
        if self.reason:  # solved by an earlier episode of this very step
            return
        self.counters.episodes += 1
        self.counters.recent_returns.append(episode.episode_return)
        self._judge()
        if self.on_episode:
            self.on_episode(self.counters, self.agent)

    def _judge(self) -> None:
        """Set `reason` where the run is done."""
        counters, goal = self.counters, self.config.stop_at_return
        if self.reason:
            return
        if goal is not None and len(counters.recent_returns) == WINDOW and counters.average_return >= goal:
            self.solved = True
            self.reason = f"average return {counters.average_return:.2f} of {WINDOW} episodes reached {goal:g}"
        elif counters.step >= self.config.total_steps:
            self.reason = f"{self.config.total_steps} steps trained"

    def _log(self) -> None:
        counters = self.counters
        speed = (counters.step - self.console.start_step) / (time.monotonic() - self.console.started)
        figures = {"episodes": counters.episodes, "average_return": counters.average_return, "steps_per_second": speed}
        self.metrics.log(counters.step, figures | counters.unlogged | self.sampler.take_metrics() | self.gpu.read())
        counters.unlogged.clear()

    def _evaluate(self) -> None:
        run, counters = self.config, self.counters
        if not run.eval_episodes:
            return
        seed = int(np.random.SeedSequence([run.seed, 1]).generate_state(1)[0])  # apart from the training environments'
        played = evaluate(self.agent, run.env_id, run.eval_episodes, seed, run.backend, self.agent.device)
        average = float(np.mean([episode.episode_return for episode in played]))
        self.metrics.log(counters.step, {"eval_return": average})
        if average >= counters.best_return:
            counters.best_return = average
            self._write(self.folder.best)

    def _save(self) -> None:
        self._write(self.folder.latest)
        self.folder.keep(self.counters.step, self.config.keep_checkpoints)
        self.saved_step = self.counters.step

    def _write(self, path: Path) -> None:
        """A checkpoint; a large replay is written beside `latest.pt` and left out of others."""
        agent = self.agent.state_dict()
        if self.large_replay:
            is_latest = path == self.folder.latest
            agent["buffer"] = self.folder.write_replay(self.counters.step, agent["buffer"]) if is_latest else {}
        checkpoint.save(path, agent, self.envs.state_dict(), self.counters.state_dict())
        if self.large_replay and is_latest:
            self.folder.drop_replays_before(self.counters.step)

    def _say_running(self) -> None:
        self.folder.write_status("running", self.counters.step, self.counters.episodes, self.envs.unsaved)

    def _end(self, received: int) -> Result:
        counters, state, reason = self.counters, "finished", self.reason
        if reason:
            self._evaluate()
        else:
            state, reason = "interrupted", signal.Signals(received).name
        self._save()
        self.folder.write_status(state, counters.step, counters.episodes, reason)
        self.console.show(counters.step, counters.episodes, counters.average_return, last=True)
        return Result(state, reason, self.folder.path, counters, self.agent, self.solved, received)
