"""PufferLib, in the environment of pufferlib.sh: `--work ppo-cartpole-4096` and `step-cartpole-4096`.

Its CartPole, in C, ends an episode after 200 steps and gives no reward in the last: an easier task, at more steps a
second, than CartPole-v1. Trained is its default network (one hidden layer, shared by policy and values) as in its
cartpole.ini, but without the LSTM and in one process, which is several times faster on a CPU, and by Adam.
"""

import sys

import numpy as np
import torch
from measure import OnPolicy, Run, Stepping

run = Run("pufferlib", "pufferlib")  # before PufferLib: it leaves a link in the current folder
if run.name not in ("ppo-cartpole-4096", "step-cartpole-4096"):
    run.unknown()
sys.argv[1:] = []  # PufferLib parses the command line, too

import pufferlib.pufferl  # noqa: E402
import pufferlib.vector  # noqa: E402
from pufferlib.models import Default  # noqa: E402
from pufferlib.ocean.cartpole.cartpole import Cartpole  # noqa: E402

run.extra = {"note": "its own CartPole in C, 200 steps an episode"}
work = run.work


def step() -> None:
    """Raw stepping."""
    envs = Cartpole(num_envs=work.num_envs)
    envs.reset(seed=run.seed)
    actions = np.random.default_rng(run.seed).integers(0, 2, (64, work.num_envs)).astype(np.float32)
    run.step_for(lambda i: envs.step(actions[i % len(actions)]))


def train(work: OnPolicy) -> None:
    """Its own trainer, without dashboard and checkpoints."""
    torch.manual_seed(run.seed)
    config = pufferlib.pufferl.load_config("puffer_cartpole")["train"] | {
        "env": "puffer_cartpole",
        "device": "cpu",
        "seed": run.seed,
        "use_rnn": False,
        "optimizer": "adam",
        "learning_rate": work.learning_rate,
        "gamma": work.gamma,
        "gae_lambda": work.gae_lambda,
        "clip_coef": work.clip_coef,
        "total_timesteps": 10**9,
        "batch_size": "auto",
        "bptt_horizon": work.num_steps,
        "minibatch_size": work.batch_size,
        "update_epochs": work.num_epochs,
        "checkpoint_interval": 10**9,
    }
    envs = pufferlib.vector.make(
        Cartpole, env_kwargs={"num_envs": work.num_envs}, backend=pufferlib.vector.Serial, num_envs=1, seed=run.seed
    )
    pufferlib.pufferl.PuffeRL.print_dashboard = lambda *_, **__: None
    trainer = pufferlib.pufferl.PuffeRL(config, envs, Default(envs.driver_env, work.hidden_sizes[0]))

    def learn() -> None:
        while trainer.global_step < run.asked_steps:
            trainer.evaluate()
            trainer.train()

    run.train(learn)
    run.steps = trainer.global_step
    trainer.utilization.stop()


if isinstance(work, Stepping):
    step()
else:
    train(work)
run.report()
