"""What a batch costs by where the replay lies and how it is copied: `python benchmarks/copies.py` prints two tables.

The first: microseconds until a batch of transitions is on the GPU, drawn from a replay there or gathered on the CPU and
copied in one of four ways. The second: the tensors of one step of N environments, to the GPU as environments give
them, and back to the CPU for a replay there. Each cell holds two figures: batch after batch without waiting (what it
costs a learner that keeps the GPU busy), and waiting for each one (how late it comes). `--quick` measures less.

Without a GPU the gather on the CPU is measured alone.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl.buffers import ReplayBuffer
from rl.frames import FrameStack
from rl.staging import StagingRing, fetch, layout_of
from rl.transition import Transition

ACTIONS = spaces.Discrete(4)
PICTURES = FrameStack(0, 255, (4, 84, 84), np.uint8)
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"


def wait() -> None:
    """Until the GPU has done all that it was given."""
    if GPU:
        torch.cuda.synchronize()


def microseconds(call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """A call's time within calls in a row, and with a wait after each: medians of five parts of `seconds` in all."""

    def measure(waiting: bool, count: int) -> float:
        begun = time.perf_counter()
        for _ in range(count):
            call()
            if waiting:
                wait()
        wait()
        return (time.perf_counter() - begun) / count

    def median(waiting: bool) -> float:
        once = measure(waiting, 3)
        count = max(int(seconds / 10 / once), 1)
        return 1e6 * statistics.median(measure(waiting, count) for _ in range(5))

    measure(False, 3)  # allocators and caches warm up
    return median(False), median(True)


def step(num_envs: int, space: spaces.Box, device: str) -> Transition:
    """One step of random numbers."""
    shape = (2, num_envs, *space.shape)
    obs = torch.randint(256, shape, dtype=torch.uint8) if space is PICTURES else torch.rand(shape)
    no = torch.zeros(num_envs, dtype=torch.bool)
    fields = obs[0], torch.randint(4, (num_envs,)), torch.rand(num_envs), obs[1], no, no.clone()
    return Transition(*(value.to(device) for value in fields))


def filled(capacity: int, space: spaces.Box, device: str, replay_device: str) -> ReplayBuffer:
    """A full replay."""
    num_envs = 100
    buffer = ReplayBuffer(capacity, num_envs, space, ACTIONS, device, replay_device)
    for _ in range(capacity // num_envs):
        buffer.add(step(num_envs, space, device))
    return buffer


def each(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A copy of each tensor to the GPU."""
    return [tensor.to(DEVICE) for tensor in tensors]


def each_pinned(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same, each pinned for the purpose."""
    return [tensor.pin_memory().to(DEVICE, non_blocking=True) for tensor in tensors]


def in_a_block(tensors: Sequence[Tensor]) -> list[Tensor]:
    """One copy of a block that is not pinned: what the ring does, but for pinning."""
    layout = layout_of(tensors)
    block = torch.empty(layout.size, dtype=torch.uint8)
    for view, tensor in zip(layout.views(block), tensors, strict=True):
        view.copy_(tensor)
    return layout.views(block.to(DEVICE))


def print_table(first: str, table: list[tuple[str, dict[str, Callable[[], object]]]], seconds: float) -> None:
    """One line for each entry, as it is measured, one column for each way."""
    print(f"\n{first:<28}" + "".join(f"{way:>22}" for way in table[0][1]))
    for name, ways in table:
        cells = [microseconds(call, seconds) for call in ways.values()]
        print(f"{name:<28}" + "".join(f"{f'{busy:,.0f} / {late:,.0f}':>22}" for busy, late in cells), flush=True)


def batch_ways(space: spaces.Box, batch_sizes: Sequence[int]) -> list[tuple[str, dict[str, Callable[[], object]]]]:
    """The ways of a batch to the GPU, for one kind of observation."""
    capacity = 10_000 if space is PICTURES else 100_000
    on_cpu = filled(capacity, space, "cpu", "cpu")
    apart, on_gpu = (filled(capacity, space, DEVICE, place) for place in ("cpu", "cuda")) if GPU else (on_cpu, on_cpu)
    numbers, gpu_numbers = torch.Generator(), torch.Generator(DEVICE)

    def ways(size: int) -> dict[str, Callable[[], object]]:
        gather = {"gather on the CPU alone": lambda: on_cpu.sample(size, numbers)}
        return gather | {
            "replay on the GPU": lambda: on_gpu.sample(size, gpu_numbers),
            "CPU, pinned ring": lambda: apart.sample(size, gpu_numbers),
            "CPU, one copy": lambda: in_a_block(on_cpu.sample(size, numbers)),
            "CPU, six copies": lambda: each(on_cpu.sample(size, numbers)),
            "CPU, six, pinned each": lambda: each_pinned(on_cpu.sample(size, numbers)),
        } if GPU else gather  # fmt: skip

    shape = "x".join(map(str, space.shape))
    return [(f"{shape} {np.dtype(space.dtype).name}, {size}", ways(size)) for size in batch_sizes]


def step_ways(space: spaces.Box, num_envs: int) -> tuple[str, dict[str, Callable[[], object]]]:
    """The ways of a step to the GPU and back."""
    there, here, ring = step(num_envs, space, DEVICE), step(num_envs, space, "cpu"), StagingRing(DEVICE)
    return f"{'x'.join(map(str, space.shape))}, {num_envs} environments", {
        "in: six copies": lambda: each(here),
        "in: one copy": lambda: in_a_block(here),
        "in: pinned ring": lambda: ring.send(here),
        "out: six copies": lambda: [value.cpu() for value in there],
        "out: one copy": lambda: fetch(there),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sizes, shorter: half a minute")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)  # as a run has by default
    name = torch.cuda.get_device_name() if GPU else "no GPU: the gather on the CPU is measured alone, and no copy"
    print(f"torch {torch.__version__} on {platform.machine()}, 1 CPU thread; {name}")
    seconds, vectors = (0.1, (4, 376)) if quick else (0.5, (4, 17, 376))
    kinds = [spaces.Box(-1, 1, (size,), np.float32) for size in vectors]
    sizes = {"vectors": (64, 256) if quick else (64, 256, 1024, 4096), "pictures": (32,) if quick else (32, 256, 1024)}
    table = [row for space in kinds for row in batch_ways(space, sizes["vectors"])]
    print_table("us a batch of", table + batch_ways(PICTURES, sizes["pictures"]), seconds)
    if GPU:
        counts = (8, 1024) if quick else (1, 8, 64, 1024)
        print_table("us a step of", [step_ways(kinds[0], n) for n in counts] + [step_ways(PICTURES, 8)], seconds)


if __name__ == "__main__":
    main()
