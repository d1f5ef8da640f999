"""One loop for every algorithm: act, step, observe, learn, count; then log, evaluate and checkpoint when due."""

import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl import a2c, checkpoint, dqn, envs, ppo, sac
from rl.agent import Agent
from rl.buffers import ReplayBuffer
from rl.errors import RunError, UsageError
from rl.evaluate import evaluate
from rl.metrics import Console, Metrics
from rl.normalize import Normalized
from rl.run_config import RunConfig, choose_device
from rl.run_folder import RunFolder, default_runs_folder, read_status
from rl.stop_signals import StopSignals

ALGORITHMS: dict[str, tuple[type[Any], type[Any]]] = {
    "dqn": (dqn.Config, dqn.DQN),
    "ppo": (ppo.Config, ppo.PPO),
    "a2c": (a2c.Config, a2c.A2C),
    "sac": (sac.Config, sac.SAC),
}
WINDOW = 100  # training episodes that the average return is taken over


@dataclass
class Counters:
    """How far a run is; part of the checkpoint."""

    step: int = 0  # environment steps, summed over environments
    episodes: int = 0  # training episodes finished
    recent_returns: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    best_return: float = -np.inf  # best evaluation so far

    @property
    def average_return(self) -> float:
        """Mean return of the last 100 training episodes, of all where there are fewer; nan before the first."""
        return sum(self.recent_returns) / len(self.recent_returns) if self.recent_returns else float("nan")

    def state_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {item.name: getattr(self, item.name) for item in fields(self)} | {
            "recent_returns": list(self.recent_returns)
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


def train(
    run: RunConfig,
    config: Any,  # noqa: ANN401 - a Config of ALGORITHMS
    *,
    on_episode: OnEpisode | None = None,
    progress: bool = True,
) -> Result:
    """Train a new agent by `config` (its type chooses the algorithm) until `run` says enough, in a new run folder.

    `on_episode` is called after each finished training episode; `progress=False` silences the terminal. Raises
    UsageError for what can never work and RunError for what fails on this machine.
    """
    algorithm = next(name for name, (config_type, _) in ALGORITHMS.items() if type(config) is config_type)
    device = choose_device(run.device)
    with RunFolder(run.run_dir or default_runs_folder() / run.name(algorithm)) as folder:
        checkpoint.seed_random_state(run.seed)
        agent, train_envs = build(run, algorithm, config, device)
        settings = {key: value for key, value in asdict(run).items() if key != "run_dir"}
        folder.create({"algorithm": algorithm, "run": settings | {"device": device}, "config": asdict(config)})
        return _Loop(run, agent, train_envs, folder, on_episode, progress).run()


def resume(path: Path, *, progress: bool = True) -> Result | None:
    """Go on with the run in `path` from its latest checkpoint, exactly; None where it is finished already."""
    if read_status(path)["state"] == "finished":
        return None
    with RunFolder(path) as folder:
        run, algorithm, config = parse(folder.open())
        device = choose_device(run.device)
        content = folder.load_newest()
        agent, train_envs = build(run, algorithm, config, device)
        loop = _Loop(run, agent, train_envs, folder, None, progress)
        loop.load(content)
        return loop.run()


def parse(saved: dict[str, Any]) -> tuple[RunConfig, str, Any]:
    """The run configuration, algorithm and its Config of a config.json."""
    algorithm = saved["algorithm"]
    config_type, _ = ALGORITHMS[algorithm]
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in saved["config"].items()}
    return RunConfig(**saved["run"]), algorithm, config_type(**values)


def build(run: RunConfig, algorithm: str, config: Any, device: str) -> tuple[Agent, envs.Envs]:  # noqa: ANN401
    """The agent and its training environments."""
    torch.set_num_threads(run.threads)
    train_envs = envs.make(run.env_id, run.num_envs, run.seed, backend=run.backend, device=device)
    _, agent_type = ALGORITHMS[algorithm]
    spaces = train_envs.observation_space, train_envs.action_space
    agent = agent_type(config, *spaces, run.num_envs, device, run.seed)
    if run.normalize_obs or run.normalize_rewards:
        if isinstance(agent.buffer, ReplayBuffer):
            raise UsageError(
                f"--normalize-obs and --normalize-rewards are for ppo and a2c, not for {algorithm}'s replay"
            )
        obs_shape = train_envs.observation_space.shape or ()
        agent = Normalized(agent, obs_shape, config.gamma, obs=run.normalize_obs, rewards=run.normalize_rewards)
    return agent, train_envs


class _Loop:
    """A run in progress: what the loop needs from one step to the next."""

    def __init__(
        self,
        run: RunConfig,
        agent: Agent,
        train_envs: envs.Envs,
        folder: RunFolder,
        on_episode: OnEpisode | None,
        progress: bool,
    ) -> None:
        self.config, self.agent, self.envs, self.folder = run, agent, train_envs, folder
        self.on_episode, self.progress = on_episode, progress
        self.counters = Counters()
        self.reason = ""  # why the run is finished
        self.solved = False

    def load(self, content: dict[str, Any]) -> None:
        """Take over a checkpoint."""
        self.agent.load_state_dict(content["agent"])
        self.envs.load_state_dict(content["envs"])
        self.counters.load_state_dict(content["counters"])
        checkpoint.restore_random_state(content["rng"])

    def run(self) -> Result:
        """Step until enough, and leave the folder with the right status whatever happens."""
        counters = self.counters
        if self.progress:
            run, device = self.config, self.agent.device
            place = f"{device} ({torch.cuda.get_device_name(device)})" if "cuda" in device else "the CPU"
            print(f"training {run.env_id} x {run.num_envs} on {place} in {self.folder.path}", flush=True)
        self.metrics = Metrics(self.folder.path, counters.step)
        self.console = Console(self.config.total_steps, counters.step, self.progress)
        try:
            with StopSignals() as signals:
                if counters.step == 0:
                    self._save()
                self._say_running()
                self._steps(signals)
                return self._end(signals.received)
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            with suppress(RunError):  # a full disk is why it failed; that error must come out
                self.folder.write_status("failed", counters.step, counters.episodes, reason)
            raise
        finally:
            self.console.close()
            self.metrics.close()
            self.envs.close()

    def _steps(self, signals: StopSignals) -> None:
        run, agent, counters = self.config, self.agent, self.counters
        latest: dict[str, Any] = {}
        while not signals.received:
            transition = self.envs.step(agent.act(self.envs.obs))
            agent.observe(transition)
            latest |= agent.learn()
            counters.step += run.num_envs
            for episode in self.envs.take_episodes():
                self._count(episode)
            if counters.step >= run.total_steps:
                self.reason = self.reason or f"{run.total_steps} steps trained"
            if self._due(run.log_interval):
                self._log(latest)
            if self.reason:  # _end evaluates and saves
                break
            if self._due(run.eval_interval):
                self._evaluate()
            if self._due(run.checkpoint_interval):
                self._save()
                self._say_running()

    def _due(self, interval: int) -> bool:
        """Whether the last step of all environments crossed a multiple of `interval`."""
        step, before = self.counters.step, self.counters.step - self.config.num_envs
        return interval > 0 and step // interval > before // interval

    def _count(self, episode: envs.Episode) -> None:
        counters, goal = self.counters, self.config.stop_at_return
        if self.reason:  # solved by an earlier episode of this very step
            return
        counters.episodes += 1
        counters.recent_returns.append(episode.episode_return)
        if goal is not None and len(counters.recent_returns) == WINDOW and counters.average_return >= goal:
            self.solved = True
            self.reason = f"average return {counters.average_return:.2f} of {WINDOW} episodes reached {goal:g}"
        if self.on_episode:
            self.on_episode(counters, self.agent)

    def _log(self, latest: dict[str, Any]) -> None:
        counters = self.counters
        speed = (counters.step - self.console.start_step) / (time.monotonic() - self.console.started)
        figures = {"episodes": counters.episodes, "average_return": counters.average_return, "steps_per_second": speed}
        self.metrics.log(counters.step, figures | latest)
        latest.clear()
        self.console.show(counters.step, counters.episodes, counters.average_return)

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

    def _write(self, path: Path) -> None:
        checkpoint.save(path, self.agent.state_dict(), self.envs.state_dict(), self.counters.state_dict())

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
