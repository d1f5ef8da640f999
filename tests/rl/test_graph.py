"""Graphs and what runs in them, on the CPU's stand-in: the same memory at every call, and no look at a number."""

import math

import pytest
import torch
from torch import nn

from rl import accelerate
from rl.accelerate import Acceleration, Descent
from rl.errors import NotFiniteError, UsageError
from rl.graph import WARM_UP, Graph
from rl.optimizers import Adam, RMSprop
from tests.rl.test_accelerate import Batch, weights

CALLS = WARM_UP + 4


def descent(mode: str, optimizer=Adam, **options) -> tuple[nn.Module, Descent]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))

    def loss(part: Batch):
        error = (network(part.inputs).float().squeeze(1) - part.targets).square().mean()
        return error, {"error": error.detach(), "mean": part.targets.mean()}

    acceleration = Acceleration(mode=mode)
    make = lambda parameters: optimizer(parameters, 1e-2)  # noqa: E731
    return network, Descent(loss, Batch, network.named_parameters(), make, "cpu", acceleration, **options)


def batches(count: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [Batch(torch.randn(8, 2, generator=generator), torch.randn(8, generator=generator)) for _ in range(count)]


def test_a_graph_gives_each_call_its_own_outputs():
    graph = Graph(lambda value: [value * 2, value.sum()], "cpu")
    given = [torch.full((3,), float(i)) for i in range(CALLS)]
    got = [graph(value) for value in given]
    for value, (doubled, total) in zip(given, got, strict=True):
        assert torch.equal(doubled, value * 2)
        assert total == value.sum()


def test_a_graph_reads_its_inputs_from_the_memory_of_the_recording():
    seen = []
    graph = Graph(lambda value: [seen.append(value.data_ptr()) or value], "cpu")
    inputs = [torch.full((2,), float(i)) for i in range(CALLS)]
    for value in inputs:
        graph(value)
    assert len(set(seen[WARM_UP:])) == 1
    assert seen[-1] != inputs[-1].data_ptr()


@pytest.mark.parametrize("optimizer", [Adam, RMSprop])
@pytest.mark.parametrize("max_grad_norm", [None, 0.1])
def test_updates_in_a_graph_equal_eager_ones(optimizer, max_grad_norm):
    eager, step = descent("eager", optimizer, max_grad_norm=max_grad_norm)
    graphed, step_in_graph = descent("graph", optimizer, max_grad_norm=max_grad_norm)
    for one in batches(CALLS):
        metrics, metrics_in_graph = step(one), step_in_graph(one)
        assert {name: value.item() for name, value in metrics.items()} == {
            name: value.item() for name, value in metrics_in_graph.items()
        }
    assert torch.equal(weights(graphed), weights(eager))
    step.set_learning_rate(1e-3)
    step_in_graph.set_learning_rate(1e-3)
    (last,) = batches(1)
    step(last)
    step_in_graph(last)
    assert torch.equal(weights(graphed), weights(eager))


@pytest.mark.parametrize("optimizer", [Adam, RMSprop])
@pytest.mark.parametrize("at", [1, WARM_UP + 1])
def test_a_graph_stops_at_an_update_that_is_not_finite_and_tells_which(monkeypatch, optimizer, at):
    monkeypatch.setattr(accelerate, "CHECK_INTERVAL", 8)
    network, step = descent("graph", optimizer)
    data = batches(8)
    data[at].targets[2] = math.nan
    for one in data[:at]:
        step(one)
    before = weights(network)
    for one in data[at:-1]:
        step(one)
        assert torch.equal(weights(network), before)
    with pytest.raises(NotFiniteError, match=r"batch\.targets is not finite") as caught:
        step(data[-1])
    assert caught.value.descent is step
    torch.testing.assert_close(caught.value.batch, data[at], equal_nan=True, rtol=0, atol=0)
    assert torch.equal(weights(network), before)


def test_a_graph_goes_on_past_its_looks_while_all_is_finite(monkeypatch):
    monkeypatch.setattr(accelerate, "CHECK_INTERVAL", 2)
    network, step = descent("graph")
    before = weights(network)
    for one in batches(CALLS):
        step(one)
    assert not torch.equal(weights(network), before)


def test_fp16_is_refused_in_a_graph():
    with pytest.raises(UsageError, match="--accelerate graph --precision fp16"):
        Acceleration("fp16", mode="graph")
