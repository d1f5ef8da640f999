"""What a run says and leaves behind when its numbers or the GPU's memory fail."""

from pathlib import Path

import torch

from rl import checkpoint
from rl.agent import Agent
from rl.buffers import ReplayBuffer
from rl.errors import NotFiniteError, RunError
from rl.run_folder import read_config

GIB = 2**30


def not_finite(error: NotFiniteError, folder: Path, agent: Agent, step: int) -> RunError:
    """Write a bundle from which `rl diagnose` repeats the failing update; returns the error to raise.

    The bundle holds the agent as it was before the update (without its replay), the batch, and the run's configuration.
    """
    name = next((name for name, descent in agent.descents.items() if descent is error.descent), "")
    bundle = {
        **read_config(folder),
        "agent": checkpoint.without_buffer(agent.state_dict()),
        "descent": name,
        "batch": tuple(value.clone() for value in error.batch) if error.batch is not None else (),
        "message": str(error),
        "step": step,
    }
    path = folder / f"not-finite-step-{step}.pt"
    checkpoint.write(path, bundle)
    if not name:
        return RunError(f"step {step:,}: {error} ({path} holds the agent as it acted; the checkpoints are sound)")
    return RunError(
        f"{error} in the update of {name} at step {step:,}: `rl diagnose {path}` repeats it. Nothing was spoiled: the "
        "checkpoints are sound. A smaller --learning-rate or rewards of a smaller scale usually help"
    )


def out_of_memory(folder: Path, agent: Agent, step: int, saved_step: int) -> RunError:
    """The error to raise when the GPU's memory ran out: with figures, and what to do."""
    saved = read_config(folder)
    sizes = saved["config"] | saved["run"]
    names = ("batch_size", "buffer_size", "num_steps", "num_minibatches", "num_envs")
    given = ", ".join(f"{name} {sizes[name]}" for name in names if name in sizes)
    parts = 2 * sizes["gradient_accumulation"]
    replay, buffer = "", agent.buffer
    if isinstance(buffer, ReplayBuffer) and not buffer.staging:
        replay = f", and --replay-device cpu {buffer.nbytes / GIB:.2f} GiB"
    return RunError(
        f"the GPU's memory ran out at step {step:,} ({_memory(agent.device)}; {given}). `rl resume {folder} "
        f"--gradient-accumulation {parts}` goes on from step {saved_step:,} with the same result in less memory; "
        f"--precision bf16 saves some too{replay}; else train anew with smaller figures"
    )


def _memory(device: str) -> str:
    if device.startswith("cuda"):  # GPU only
        peak, (free, total) = torch.cuda.max_memory_allocated(device), torch.cuda.mem_get_info(device)
        return f"peak {peak / GIB:.2f} GiB by this run, {free / GIB:.2f} of {total / GIB:.2f} GiB free on {device}"
    return device
