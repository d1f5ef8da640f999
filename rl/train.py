"""Start a run, or go on with one: the algorithm by its name, its parts, its folder, and the loop."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import nn

from rl import a2c, a3c, checkpoint, dqn, entry_point, envs, plot, ppo, sac, tracking
from rl.a3c_workers import Workers
from rl.accelerate import choose_mode, keep_compiled_code
from rl.agent import Agent
from rl.backend import available_cores, choose_backend
from rl.errors import UsageError
from rl.frames import is_image
from rl.loop import Loop, OnEpisode, Result
from rl.normalize import Normalized
from rl.run_config import RunConfig, choose_device
from rl.run_folder import RunFolder, default_runs_folder, read_config, read_status
from rl.stop_signals import StopSignals

__all__ = ["ALGORITHMS", "Result", "RunConfig", "load_agent", "resume", "train"]

WORTH_SHARING = (
    4_000_000  # rows of a batch times weights, from which on more CPU threads were faster (docs/performance.md)
)

ALGORITHMS: dict[str, tuple[type[Any], type[Any]]] = {
    "dqn": (dqn.Config, dqn.DQN),
    "ppo": (ppo.Config, ppo.PPO),
    "a2c": (a2c.Config, a2c.A2C),
    "a3c": (a3c.Config, a3c.A3C),
    "sac": (sac.Config, sac.SAC),
}


def train(
    run: RunConfig,
    config: Any,  # noqa: ANN401 - a Config of ALGORITHMS
    *,
    make_env: Callable[[], gymnasium.Env[Any, Any]] | None = None,
    make_network: Callable[[gymnasium.Space[Any], int], nn.Module] | None = None,
    on_episode: OnEpisode | None = None,
    on_start: Callable[[Loop], None] | None = None,
    progress: bool = True,
) -> Result:
    """Train a new agent by `config` (its type chooses the algorithm) until `run` says enough, in a new run folder.

    `make_env()` makes one environment, in the place of `run.env_id`; `make_network(observation_space, outputs)` makes
    the Q-network, or the policy's and the value network, in the place of an MLP or CNN (see `networks.made_by`). Both
    stand at the top level of a module or notebook: the run keeps their names. `on_episode` is called after each
    finished training episode, `on_start` with the loop before it runs; `progress=False` silences the terminal. Raises
    UsageError for what can never work and RunError for what fails on this machine.
    """
    algorithm = next(name for name, (config_type, _) in ALGORITHMS.items() if type(config) is config_type)
    if make_env:
        run = replace(run, env_id=entry_point.name_of(make_env, "make_env"))
    if make_network:
        config = replace(config, network=entry_point.name_of(make_network, "make_network"))
    tracking.check(run.track)
    device = choose_device("cpu" if algorithm == "a3c" and run.device == "auto" else run.device)
    with RunFolder(run.run_dir or default_runs_folder() / run.name(algorithm)) as folder:
        run, backend = _with_backend(run, algorithm)
        checkpoint.seed_random_state(run.seed)
        settings = {key: value for key, value in asdict(run).items() if key != "run_dir"} | {"device": device}
        run, accelerate = _accelerated(run, device)
        agent, train_envs = build(run, algorithm, config, device)
        settings["threads"] = torch.get_num_threads()
        asked = {"algorithm": algorithm, "run": settings, "config": asdict(config)}
        with StopSignals() as signals:
            folder.create(asked, backend=backend, accelerate=accelerate)
            loop = Loop(run, agent, train_envs, folder, on_episode, progress)
            if on_start:
                on_start(loop)
            result = loop.run(signals)
            plot.save_curve(folder.path)
            loop.metrics.tracker.finish(result.state)
            return result


def _with_backend(run: RunConfig, algorithm: str) -> tuple[RunConfig, str]:
    """`run` with its backend chosen, and why."""
    if algorithm == "a3c" and run.backend == "auto" and not envs.special_backend(run.env_id):
        return replace(run, backend="sync"), "sync: a3c's workers are processes already"
    backend, reason = choose_backend(run.backend, run.env_id, run.num_envs, run.seed)
    return replace(run, backend=backend), f"{backend}: {reason}"


def resume(path: Path, changes: dict[str, Any] | None = None, *, progress: bool = True) -> Result | None:
    """Go on with the run in `path` from its latest checkpoint, exactly; None where it is finished already.

    `changes` replace fields of its RunConfig from here on: more `total_steps`, say, or another `device`.
    """
    saved = read_config(path)
    longer = (changes or {}).get("total_steps", 0) > saved["run"]["total_steps"]
    finished = read_status(path)["state"] == "finished"
    if finished and not longer:
        return None
    with RunFolder(path) as folder:
        folder.acquire()
        if finished:
            saved["run"]["stop_at_return"] = None  # it was reached, maybe, and would end the run at once
        saved["run"].update(changes or {})
        run, algorithm, config = parse(saved)
        device = choose_device(run.device)
        content = folder.load_newest()
        checkpoint.seed_random_state(run.seed)
        run, _ = _accelerated(run, device)
        agent, train_envs = build(run, algorithm, config, device)
        folder.write_json("config.json", saved)  # changes that `build` refuses leave the run as it was
        with StopSignals() as signals:
            loop = Loop(run, agent, train_envs, folder, None, progress)
            if content:
                loop.load(content)
            result = loop.run(signals)
            plot.save_curve(folder.path)
            loop.metrics.tracker.finish(result.state)
            return result


def _accelerated(run: RunConfig, device: str) -> tuple[RunConfig, str]:
    """`run` with its `accelerate` chosen, and why."""
    mode, reason = choose_mode(run.accelerate, device, run.precision)
    if mode == "compile":
        keep_compiled_code(device)
    return replace(run, accelerate=mode), f"{mode}: {reason}"


def load_agent(path: Path, device: str) -> tuple[RunConfig, Agent, dict[str, Any]]:
    """The best agent of the run in `path` (the latest where none was evaluated) to act with: its replay stays empty.

    Also returns the run's configuration, and the checkpoint with `file`, its name.
    """
    run, algorithm, config = parse(read_config(path))
    folder = RunFolder(path)
    file = folder.best if folder.best.exists() else folder.latest
    content = checkpoint.load(file)
    agent = build_to_act(run, algorithm, config, device)
    agent.load_state_dict(checkpoint.without_buffer(content["agent"]))
    return run, agent, content | {"file": file.name}


def build_to_act(run: RunConfig, algorithm: str, config: Any, device: str) -> Agent:  # noqa: ANN401
    """An agent that will not train: its replay is as small as can be."""
    if hasattr(config, "buffer_size"):
        config = replace(config, buffer_size=run.num_envs)
    run = replace(run, replay_device="auto", accelerate="eager")  # a run of a GPU may be looked at on a machine without
    agent, agent_envs = build(run, algorithm, config, device)
    agent_envs.close()
    return agent


def parse(saved: dict[str, Any]) -> tuple[RunConfig, str, Any]:
    """The run configuration, algorithm and its Config of a config.json."""
    algorithm = saved["algorithm"]
    config_type, _ = ALGORITHMS[algorithm]
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in saved["config"].items()}
    return RunConfig(**saved["run"]), algorithm, config_type(**values)


def build(
    run: RunConfig,
    algorithm: str,
    config: Any,  # noqa: ANN401
    device: str,
) -> tuple[Agent, envs.Envs | envs.Halves]:
    """The agent and its training environments: in two halves where they are processes."""
    if run.replay_device != "auto" and not hasattr(config, "buffer_size"):
        raise UsageError(f"--replay-device {run.replay_device}: is for dqn and sac; {algorithm} has no replay")
    if algorithm == "a3c" and run.backend == "async":  # they are daemons, which may have no processes of their own
        raise UsageError("--backend async: a3c's workers are processes already: leave it out")
    torch.set_num_threads(max(run.threads, 1))  # inherited by worker processes
    train_envs = envs.make(run.env_id, run.num_envs, run.seed, backend=run.backend, device=device)
    _, agent_type = ALGORITHMS[algorithm]
    spaces = train_envs.observation_space, train_envs.action_space
    agent = agent_type(config, *spaces, run.num_envs, device, run.seed, run.acceleration)
    torch.set_num_threads(run.threads or _threads(run, config, agent, is_image(train_envs.observation_space)))
    if isinstance(agent, a3c.A3C):
        train_envs = Workers(train_envs, agent, run)
    if run.normalize_obs or run.normalize_rewards:
        if algorithm not in ("ppo", "a2c"):  # replays would mix scales, and a3c's workers would each have their own
            raise UsageError(f"--normalize-obs and --normalize-rewards are for ppo and a2c, not for {algorithm}")
        if run.normalize_obs and is_image(train_envs.observation_space):
            raise UsageError(
                f"--normalize-obs: {run.env_id} shows pictures, scaled by the network itself: leave it out"
            )
        obs_shape = train_envs.observation_space.shape or ()
        agent = Normalized(agent, obs_shape, config.gamma, obs=run.normalize_obs, rewards=run.normalize_rewards)
    # --normalize-obs moves its statistics with each step observed: one acted on before that would be off-policy
    if isinstance(train_envs, envs.GymnasiumEnvs) and run.num_envs > 1 and not run.normalize_obs and train_envs.workers:
        return agent, envs.Halves(train_envs, train_envs.workers)
    return agent, train_envs


def _threads(run: RunConfig, config: Any, agent: Agent, images: bool) -> int:  # noqa: ANN401
    """All cores where an update multiplies enough to share; a small network loses more by sharing than it gains."""
    rows = getattr(config, "batch_size", 0)
    rows = rows or config.num_steps * run.num_envs // getattr(config, "num_minibatches", 1)
    weights = sum(weight.numel() for descent in agent.descents.values() for weight in descent.parameters.values())
    large = images or rows * weights >= WORTH_SHARING
    return available_cores() if large and agent.device == "cpu" else 1
