"""A pinned buffer is not filled again while a copy out of it is in flight: the batch would be a mixture of two."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rl.staging import ALIGNMENT, StagingRing, fetch


class SlowDevice(TorchDispatchMode):
    """Stands in for a GPU at its slowest: a copy that need not be waited for is made when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[tuple[torch.Tensor, torch.Tensor]] = []  # targets and sources, in order
        self.begun = self.made = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is not torch.ops.aten._to_copy.default or not kwargs.get("non_blocking"):
            return function(*args, **kwargs)
        target = torch.zeros_like(args[0])
        self.pending.append((target, args[0]))
        self.begun += 1
        return target

    def make_copies(self, until: int) -> None:
        """Those begun first, up to the one numbered `until`."""
        while self.made < until:
            target, source = self.pending.pop(0)
            target.copy_(source)
            self.made += 1

    def event(self) -> "Event":
        return Event(self)


class Event:
    """What torch.cuda.Event is to a GPU: `record` marks a place among the copies, `synchronize` waits until there."""

    def __init__(self, device: SlowDevice) -> None:
        self.device, self.recorded = device, 0

    def record(self, stream: object) -> None:
        self.recorded = self.device.begun

    def query(self) -> bool:
        return self.device.made >= self.recorded

    def synchronize(self) -> None:
        self.device.make_copies(self.recorded)


class DeafEvent(Event):
    """One that does not wait."""

    def synchronize(self) -> None:
        pass


def batch(number: int, size: int = 5) -> list[torch.Tensor]:
    """Of every type and shape that a replay gathers, recognisable by every one of its numbers."""
    return [
        torch.full((size, 2, 3, 3), number, dtype=torch.uint8),
        torch.full((size,), number),
        torch.full((size, 3), number + 0.5),
        torch.full((size,), number % 2 == 0),
        torch.full((size, 0), number, dtype=torch.uint8),
        torch.full((size,), float(number)),
    ]


def received(device: SlowDevice, ring: StagingRing, count: int) -> list[list[torch.Tensor]]:
    """What arrives of batches 1 to `count` when all is done, each one sent before any other was looked at."""
    with device:
        arriving = []
        for number in range(1, count + 1):
            tensors = batch(number)
            arriving.append(ring.send(tensors))
            for tensor in tensors:
                tensor.zero_()  # the replay goes on and overwrites what it gathered
        device.make_copies(device.begun)
    return arriving


@pytest.mark.parametrize("length", [1, 2, 3])
def test_batches_arrive_whole_however_late_the_device_copies(length):
    device = SlowDevice()
    arrived = received(device, StagingRing("cpu", device.event, length), 7)
    for number, tensors in enumerate(arrived, 1):
        torch.testing.assert_close(tensors, batch(number), rtol=0, atol=0)


def test_without_the_wait_a_batch_that_was_in_flight_arrives_as_a_later_one():
    device = SlowDevice()
    arrived = received(device, StagingRing("cpu", lambda: DeafEvent(device)), 7)
    numbers = [int(tensors[1][0]) for tensors in arrived]
    assert numbers == [7, 6, 7, 6, 7, 6, 7]  # what the two buffers held last


def test_sending_waits_for_no_copy_but_the_last_one_out_of_the_same_buffer():
    device = SlowDevice()
    ring, pending = StagingRing("cpu", device.event, 3), []
    with device:
        for number in range(6):
            ring.send(batch(number))
            pending.append(len(device.pending))
    assert pending == [1, 2, 3, 3, 3, 3]


def test_buffers_are_allocated_once_and_anew_for_another_size_of_batch():
    device = SlowDevice()
    ring, places = StagingRing("cpu", device.event), []
    arriving, sizes = [], [5, 5, 5, 5, 6, 6, 5]
    with device:
        for number, size in enumerate(sizes):
            arriving.append(ring.send(batch(number, size)))
            places.append(tuple(block.data_ptr() for block in ring.blocks))
        device.make_copies(device.begun)
    assert places[0] == places[1] == places[2] == places[3] != places[4] == places[5]
    for number, (tensors, size) in enumerate(zip(arriving, sizes, strict=True)):
        torch.testing.assert_close(tensors, batch(number, size), rtol=0, atol=0)


def test_tensors_of_a_batch_lie_in_one_block_each_where_kernels_read_it_fast():
    tensors = StagingRing("cpu").send(batch(1))
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    assert all(tensor.storage_offset() * tensor.itemsize % ALIGNMENT == 0 for tensor in tensors)
    assert all(tensor.is_contiguous() for tensor in tensors)


def test_what_is_fetched_is_equal_and_a_copy():
    tensors = [value.transpose(0, -1) for value in batch(3)]  # also of tensors that are not contiguous
    fetched = fetch(tensors)
    torch.testing.assert_close(fetched, tensors, rtol=0, atol=0)
    tensors[1].zero_()
    assert (fetched[1] == 3).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_arrive_whole_on_a_gpu_that_is_busy():
    ring = StagingRing("cuda")
    torch.cuda._sleep(1_000_000_000)  # cycles, about half a second: the third batch finds the first one still in flight
    arriving = [ring.send(batch(number, 4096)) for number in range(7)]
    assert all(block.is_pinned() for block in ring.blocks)
    for number, tensors in enumerate(arriving):
        torch.testing.assert_close([tensor.cpu() for tensor in tensors], batch(number, 4096), rtol=0, atol=0)
