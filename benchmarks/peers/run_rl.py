"""Our side, through the library: `--work` as in measure.py, run by the project's own environment."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from measure import Goal, OnPolicy, Run, Stepping

from rl import dqn, envs, ppo, sac
from rl.loop import Counters, Loop
from rl.native_envs import NATIVE
from rl.run_config import RunConfig
from rl.train import train

QUIET: dict[str, Any] = {"log_interval": 20_000, "eval_interval": 0, "checkpoint_interval": 100_000}
GOALS: dict[str, tuple[RunConfig, Any]] = {  # our best set-up for each, chosen on seeds 10 to 14
    "ppo-cartpole-475": (
        RunConfig("CartPole-v1", num_envs=128, **QUIET),
        ppo.Config(
            learning_rate=8e-3,
            gamma=0.98,
            gae_lambda=0.9,
            num_steps=16,
            num_minibatches=2,
            hidden_sizes=(32,),
            shared_trunk=True,
        ),
    ),
    "dqn-cartpole-195": (
        RunConfig("CartPole-v1", num_envs=32, **QUIET),
        dqn.Config(
            learning_rate=3e-3,
            batch_size=128,
            buffer_size=20_000,
            learning_starts=500,
            update_interval=32,
            epsilon_steps=4_000,
            double=True,
            n_steps=3,
            hidden_sizes=(64, 64),
        ),
    ),
    "sac-pendulum-200": (
        RunConfig("Pendulum-v1", num_envs=8, **QUIET),
        sac.Config(
            learning_rate=6e-3,
            gamma=0.95,
            learning_starts=400,
            update_interval=16,
            tau=0.05,
            initial_alpha=0.2,
            hidden_sizes=(64, 64),
        ),
    ),
}

run = Run("rl", "pytorch-cuda-rl")
work = run.work


def same_work() -> tuple[RunConfig, Any]:
    """The shared hyper-parameters, on the environments that the peers step."""
    if isinstance(work, OnPolicy):
        rollout = work.num_envs * work.num_steps
        backend = "ale" if work.env_id.startswith("ALE/") else "sync"
        backend = "native" if run.name == "ppo-cartpole-4096" else backend
        config: Any = ppo.Config(
            num_steps=work.num_steps,
            num_epochs=work.num_epochs,
            num_minibatches=work.num_minibatches,
            learning_rate=work.learning_rate,
            gamma=work.gamma,
            gae_lambda=work.gae_lambda,
            clip_coef=work.clip_coef,
            value_coef=work.value_coef,
            entropy_coef=work.entropy_coef,
            max_grad_norm=work.max_grad_norm,
            hidden_sizes=work.hidden_sizes,
            shared_trunk=work.shared_trunk,
        )
        settings = RunConfig(work.env_id, num_envs=work.num_envs, backend=backend, log_interval=rollout)
        if backend == "ale":  # lower precision is a choice of ours; fp32 is measured beside it (`rl bench amp`)
            settings = replace(settings, precision="bf16")
            run.extra = {"note": "bf16"}
        return replace(settings, gradient_accumulation=max(1, work.batch_size // 8_192)), config
    settings = {
        "learning_rate": work.learning_rate,
        "gamma": work.gamma,
        "batch_size": work.batch_size,
        "buffer_size": work.buffer_size,
        "learning_starts": work.learning_starts,
        "update_interval": 1,
        "hidden_sizes": work.hidden_sizes,
    }
    if run.algorithm == "dqn":
        config = dqn.Config(target_interval=work.target_interval, **settings)
    else:
        config = sac.Config(tau=work.tau, **settings)
    return RunConfig(work.env_id, num_envs=1, backend="sync"), config


def count_updates(loop: Loop) -> None:
    """Tell `run` of every optimiser step, as torch's hook tells it of the peers'."""

    def counted(optimizer: Any, step: Callable[[], None]) -> Callable[[], None]:  # noqa: ANN401
        def step_and_count() -> None:
            step()
            run.stepped(optimizer)

        return step_and_count

    for descent in loop.agent.descents.values():
        optimizer: Any = descent.optimizer
        optimizer.step = counted(optimizer, optimizer.step)


def learn() -> None:
    """Train by `rl.train.train`, which makes environments, agent and run folder first; all of it is timed."""
    if isinstance(work, Goal):
        settings, config = GOALS[run.name]
        changes: dict[str, Any] = {}
    else:
        settings, config = same_work()
        changes = {"checkpoint_interval": run.asked_steps}  # the peers write none

    def on_episode(counters: Counters, agent: Any) -> None:  # noqa: ANN401
        run.steps = agent.step
        run.episode(counters.recent_returns[-1])

    changes |= {"total_steps": run.asked_steps, "seed": run.seed, "threads": run.threads, "device": "cpu"}
    changes |= {"eval_episodes": 0, "run_dir": Path("run")}
    result = train(replace(settings, **changes), config, on_episode=on_episode, on_start=count_updates, progress=False)
    run.steps = result.counters.step
    if result.agent.updates != run.updates:
        raise RuntimeError(f"{result.agent.updates} updates were made, of which {run.updates} were counted")


def step(work: Stepping) -> None:
    """Raw stepping, both through `envs.make`, which `rate` is of, and by the batched functions alone (`raw_rate`)."""
    rng = np.random.default_rng(run.seed)
    native = NATIVE[work.env_id]()
    if isinstance(native.action_space, gymnasium.spaces.Discrete):
        actions = rng.integers(0, native.action_space.n, (64, work.num_envs))
    else:
        actions = rng.uniform(-1, 1, (64, work.num_envs, 1)).astype(np.float32)
    state = native.initial(np, work.num_envs, rng)

    def raw(i: int) -> None:
        nonlocal state
        state, _, terminations = native.step(np, state, actions[i % len(actions)])
        if terminations.any():
            state[:, terminations] = native.initial(np, int(terminations.sum()), rng)
        native.observe(np, state)

    run.step_for(raw)
    run.extra = {"raw_rate": run.rate}
    made = envs.make(work.env_id, work.num_envs, run.seed, backend="native")
    tensors = [torch.from_numpy(row) for row in actions]

    def contract(i: int) -> None:
        made.step(tensors[i % len(tensors)])
        made.take_episodes()

    run.step_for(contract)


if isinstance(work, Stepping):
    step(work)
else:
    run.train(learn)
run.report()
