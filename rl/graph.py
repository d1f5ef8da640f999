"""CUDA graphs: a function's launches recorded once and launched again as a whole.

A small network's update is a hundred or more kernels of a few microseconds each, and the CPU takes longer to launch
them one by one than the GPU to run them. A graph launches all of them at once.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

WARM_UP = 3  # calls before the recording: libraries choose their kernels, optimisers and autograd make what they keep

Function = Callable[..., Sequence[Tensor]]


class Graph:
    """`function` of tensors, recorded after `WARM_UP` calls and replayed from then on.

    Its inputs are copied into the memory that was recorded and its outputs out of it, so that neither is overwritten by
    the next call. Everything else that it reads and writes must keep its place in memory: parameters, optimiser states
    and whatever it changes in place. It must not read a tensor on the host. `generators` are those that it draws from:
    a graph that does not know them would draw the same numbers at every replay.

    On the CPU, which has no graphs, a replay calls the function again, on the memory of the recording: so the tests see
    all of this but the recording.
    """

    def __init__(self, function: Function, device: str, generators: Sequence[torch.Generator] = ()) -> None:
        self.function, self.device, self.generators = function, device, generators
        self.calls = 0
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.replay: Callable[[], None] | None = None

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """What `function` returns for `inputs`, in memory of its own."""
        if self.calls < WARM_UP:
            self.calls += 1
            return self._warm_up(inputs)
        if self.replay is None:
            self.inputs = [value.clone() for value in inputs]
            self.replay = self._record()
        for recorded, value in zip(self.inputs, inputs, strict=True):
            recorded.copy_(value)
        self.replay()
        return [value.clone() for value in self.outputs]

    def _warm_up(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """A call as it is, beside the stream on which everything else runs, as recording asks for."""
        if not self.device.startswith("cuda"):
            return [*self.function(*inputs)]
        current, beside = torch.cuda.current_stream(), torch.cuda.Stream()  # GPU only
        beside.wait_stream(current)  # GPU only
        with torch.cuda.stream(beside):  # GPU only
            outputs = [*self.function(*inputs)]
        current.wait_stream(beside)  # GPU only
        return outputs  # GPU only

    def _record(self) -> Callable[[], None]:
        if not self.device.startswith("cuda"):
            return self._call_again
        graph = torch.cuda.CUDAGraph()  # GPU only
        for generator in self.generators:  # GPU only
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):  # GPU only
            self.outputs = [*self.function(*self.inputs)]
        return graph.replay  # GPU only

    def _call_again(self) -> None:
        outputs = self.function(*self.inputs)
        if not self.outputs:
            self.outputs = [torch.empty_like(value) for value in outputs]
        for recorded, value in zip(self.outputs, outputs, strict=True):
            recorded.copy_(value)
