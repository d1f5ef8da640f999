"""Between CPU memory and a GPU: the tensors of a step or a batch in one copy, batches through pinned buffers."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes; tensors begin at multiples, since kernels read up to 16 bytes at once


class Layout:
    """How tensors of given types and shapes lie one after the other in a block of `size` bytes."""

    def __init__(self, kinds: tuple[tuple[torch.dtype, torch.Size], ...]) -> None:
        self.size, self.places = 0, []
        for dtype, shape in kinds:
            example = torch.empty(shape, dtype=dtype, device="meta")
            self.places.append((dtype, shape, example.stride(), self.size // dtype.itemsize))
            self.size += -(-example.nbytes // ALIGNMENT) * ALIGNMENT

    def views(self, block: Tensor) -> list[Tensor]:
        """The tensors in a block of bytes."""
        typed = {dtype: block.view(dtype) for dtype, *_ in self.places}
        return [typed[dtype].as_strided(shape, stride, start) for dtype, shape, stride, start in self.places]


_layout = lru_cache(Layout)


def layout_of(tensors: Sequence[Tensor]) -> Layout:
    """The layout of such tensors, made once."""
    return _layout(tuple((tensor.dtype, tensor.shape) for tensor in tensors))


def fetch(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of `tensors` in CPU memory, by one copy from the device that they lie on; waits for it."""
    layout = layout_of(tensors)
    block = torch.empty(layout.size, dtype=torch.uint8, device=tensors[0].device)
    for view, tensor in zip(layout.views(block), tensors, strict=True):
        view.copy_(tensor)
    return layout.views(block.to("cpu", copy=True))


class StagingRing:
    """Sends batches from CPU memory to `device` through `length` pinned buffers, allocated once and taken in turn.

    A copy out of pinned memory goes on after the call that began it has returned. Were its buffer filled again too
    early, the batch would arrive as a mixture of two, and nothing would say so. So an event is recorded behind each
    copy, and a buffer is filled again only after its event. (`event` is there for tests.)
    """

    def __init__(self, device: str, event: Callable[[], Any] | None = None, length: int = 2) -> None:
        self.device, self.module = device, torch.get_device_module(device)
        self.events = [(event or self.module.Event)() for _ in range(length)]  # behind the last copy of each buffer
        self.layout: Layout | None = None
        self.turn = 0  # buffer that is used next

    def send(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """`tensors` on the device, by one copy that this does not wait for; they may change as soon as it returns."""
        layout = layout_of(tensors)
        if layout is not self.layout:  # the first batch, or one of another size
            pin = torch.device(self.device).type == "cuda"
            self.blocks = [torch.empty(layout.size, dtype=torch.uint8, pin_memory=pin) for _ in self.events]
            self.views = [layout.views(block) for block in self.blocks]
            self.layout = layout
        block, views, event = self.blocks[self.turn], self.views[self.turn], self.events[self.turn]
        self.turn = (self.turn + 1) % len(self.events)
        event.synchronize()  # returns at once where nothing was recorded yet
        for view, tensor in zip(views, tensors, strict=True):
            view.copy_(tensor)
        sent = block.to(self.device, non_blocking=True, copy=True)
        event.record(self.module.current_stream(self.device))
        return layout.views(sent)
