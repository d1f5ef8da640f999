"""What mixed precision gains (Micikevicius et al. 2018): updates of PPO per second and their memory, by precision."""

import gc
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from rl import ppo
from rl.accelerate import Acceleration
from rl.errors import UsageError

ROUNDS = 5  # whose median counts, after one that warms up
MIB = 2**20


class Case(NamedTuple):
    """A network, by what it sees and gives, and the size of its batches."""

    name: str
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    hidden_sizes: tuple[int, ...]
    batch_size: int


CASES = (
    Case("Nature CNN", spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6), (), 256),  # Atari's Pong
    Case("MLP 1024-1024", spaces.Box(-1, 1, (348,)), spaces.Box(-1, 1, (17,)), (1024, 1024), 4096),  # MuJoCo's Humanoid
)


def bench(device: str, threads: int, updates: int | None, cases: Sequence[Case] = CASES) -> dict[str, Any]:
    """Updates per second and peak memory in bytes of each case in fp32, bf16 and, on a GPU, fp16, and their ratios to
    fp32's.

    A round is `updates` optimiser steps on one made-up batch. Peak memory is that of torch's allocator (weights, Adam's
    state, gradients, activations, batch), which there is on a GPU only: None on a CPU. fp32 is as torch sets it: on
    GPUs that have TF32 convolutions use it, and matrix products do not.
    """
    on_gpu = device.startswith("cuda")
    for flag, value in (("--threads", threads), ("--updates", updates)):
        if value is not None and value < 1:
            raise UsageError(f"{flag} {value}: must be at least 1")
    torch.set_num_threads(threads)
    updates = updates or (50 if on_gpu else 1)
    networks = []
    for case in cases:
        precisions = {name: _measure(case, name, device, updates) for name in ("fp32", "bf16", "fp16")[: 2 + on_gpu]}
        full = precisions["fp32"].copy()
        for row in precisions.values():
            row["speed_ratio"] = row["updates_per_second"] / full["updates_per_second"]
            row["memory_ratio"] = None
            if on_gpu:  # GPU only
                row["memory_ratio"] = row["peak_memory_bytes"] / full["peak_memory_bytes"]
        networks.append({"network": case.name, "batch_size": case.batch_size, "precisions": precisions})
    name = torch.cuda.get_device_name(device) if on_gpu else None
    return {"device": device, "gpu": name, "threads": threads, "updates_per_round": updates, "networks": networks}


def table(report: dict[str, Any]) -> str:
    """What `bench` returned, for people."""
    place = report["gpu"] or f"the CPU, threads {report['threads']}"
    lines = [f"PPO's update on {place}: median of {ROUNDS} rounds of {report['updates_per_round']}"]
    for network in report["networks"]:
        lines += ["", f"{network['network']}, batch {network['batch_size']:,}"]
        for precision, row in network["precisions"].items():
            line = f"  {precision} {row['updates_per_second']:>9,.2f} updates/s = {row['speed_ratio']:.2f} x fp32"
            if row["memory_ratio"] is not None:  # GPU only
                line += f", peak {row['peak_memory_bytes'] / MIB:>6,.0f} MiB = {row['memory_ratio']:.2f} x fp32"
            lines.append(line)
    if not report["gpu"]:
        lines += ["", "peak memory is measured on a GPU only, by torch's allocator"]
    return "\n".join(lines)


def _measure(case: Case, precision: str, device: str, updates: int) -> dict[str, Any]:
    gc.collect()  # the agent before holds itself through its loss, and its memory would count
    config = ppo.Config(num_steps=1, num_minibatches=1, hidden_sizes=case.hidden_sizes)
    torch.manual_seed(0)  # every precision starts with the same weights
    agent = ppo.PPO(config, case.observation_space, case.action_space, 1, device, 0, Acceleration(precision))
    batch = _batch(case, agent)
    on_gpu, peak, rates = device.startswith("cuda"), None, []
    if on_gpu:  # GPU only
        torch.cuda.reset_peak_memory_stats(device)  # to what weights and batch take
        torch.cuda.synchronize(device)
    for _ in range(1 + ROUNDS):
        start = time.perf_counter()
        for _ in range(updates):
            agent.descent(ppo.normalized(batch))
        if on_gpu:  # GPU only
            torch.cuda.synchronize(device)
            peak = torch.cuda.max_memory_allocated(device)
        rates.append(updates / (time.perf_counter() - start))
    return {"updates_per_second": statistics.median(rates[1:]), "peak_memory_bytes": peak}


@torch.no_grad()
def _batch(case: Case, agent: ppo.PPO) -> ppo.Batch:
    """Random numbers of the right shapes and types; the log-probabilities are the policy's own, as in a first epoch."""
    size, shape, device = case.batch_size, case.observation_space.shape or (), agent.device
    generator = torch.Generator(device).manual_seed(0)
    if case.observation_space.dtype == np.uint8:
        obs = torch.randint(256, (size, *shape), generator=generator, device=device, dtype=torch.uint8)
    else:
        obs = torch.randn(size, *shape, generator=generator, device=device)
    head, parameters = agent.network.head, agent.network.policy(obs)
    actions = head.sample(parameters, generator)
    advantages, returns = torch.randn(2, size, generator=generator, device=device)
    return ppo.Batch(obs, actions, head.log_prob(parameters, actions), advantages, returns)
