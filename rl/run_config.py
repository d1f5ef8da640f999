"""What a run is asked to do, whatever the algorithm."""

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import torch

from rl.accelerate import Acceleration
from rl.errors import RunError, UsageError
from rl.validate import check_fields


@dataclass(frozen=True)
class RunConfig:
    """What to train on, for how long, and where to keep it. Counts are environment steps, summed over environments."""

    env_id: str = "CartPole-v1"  # gymnasium id, module:Name-v0 to import the module first, or module:make_env
    total_steps: int = 100_000  # environment steps to train for
    seed: int = 0  # of networks, exploration and environments
    num_envs: int = 8  # environments stepped together
    device: str = "auto"  # auto (a usable GPU, else the CPU), cpu, cuda or cuda:i
    backend: str = "auto"  # auto (ale or native, else by measurement), native, sync (in turn), async (processes), ale
    run_dir: Path | None = None  # run folder; by default a new one under models/runs
    stop_at_return: float | None = None  # end when the last 100 training episodes average this
    normalize_obs: bool = False  # scale observations by their running mean and deviation (ppo, a2c)
    normalize_rewards: bool = False  # divide rewards by the running deviation of the return (ppo, a2c)
    log_interval: int = 1_000  # environment steps between rows of metrics
    eval_interval: int = 25_000  # environment steps between evaluations; 0 evaluates at the end only
    eval_episodes: int = 10  # greedy episodes per evaluation
    checkpoint_interval: int = 25_000  # environment steps between checkpoints
    keep_checkpoints: int = 5  # newest step-N.pt files that are kept
    threads: int = 0  # CPU threads of torch; 0 takes one for small networks, which are fastest so, else all cores
    accelerate: str = "auto"  # auto (see the manifest for its choice), eager, graph (CUDA graphs) or compile
    precision: str = "fp32"  # of the networks' matrix products: fp32, bf16 or fp16
    gradient_accumulation: int = 1  # parts that each batch is split into: the same result in less memory
    track: str = ""  # also hand figures and files to mlflow or wandb
    replay_device: str = "auto"  # of dqn and sac: auto (the GPU, if half of what is free there is enough), cpu or cuda

    @property
    def acceleration(self) -> Acceleration:
        """How the agent computes."""
        mode = "eager" if self.accelerate == "auto" else self.accelerate
        return Acceleration(self.precision, self.gradient_accumulation, self.replay_device, mode)

    def __post_init__(self) -> None:
        _ = self.acceleration  # checks its own fields
        check_fields(
            self,
            at_least_1=(
                "total_steps",
                "num_envs",
                "log_interval",
                "checkpoint_interval",
                "keep_checkpoints",
            ),
            not_negative=("seed", "eval_interval", "eval_episodes", "threads"),
        )

    def name(self, algorithm: str) -> str:
        """Of the run's folder, such as CartPole-v1-dqn-seed0-20260131-235959-123-77: milliseconds tell apart the runs
        of one process, its number those of several.
        """
        now = datetime.now()
        env_name = self.env_id.removeprefix("__main__:").replace("/", "-").replace(":", "-")
        return f"{env_name}-{algorithm}-seed{self.seed}-{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03}-{os.getpid()}"


def choose_device(asked: str) -> str:
    """`asked` checked, `auto` resolved. Raises RunError where a GPU was asked for and cannot be used."""
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise UsageError(f"--device {asked}: choose auto, cpu, cuda or cuda:i") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"--device {asked}: choose auto, cpu, cuda or cuda:i")
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise RunError(
            f"--device {asked}: torch can use {torch.cuda.device_count()} GPUs here. `rl doctor` says why; "
            "--device cpu trains without"
        )
    return asked
