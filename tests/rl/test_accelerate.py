"""Pitfalls 4.3: 9, 54 and, of mixed precision and accumulation, what no list names."""

import math
import os
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from rl.accelerate import Acceleration, Descent, choose_mode, keep_compiled_code
from rl.errors import NotFiniteError, RunError, UsageError


class Batch(NamedTuple):
    inputs: Tensor  # [B, 2]
    targets: Tensor  # [B]


def batch(size: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(1)
    return Batch(torch.randn(size, 2, generator=generator), torch.randn(size, generator=generator))


def descent(precision: str = "fp32", parts: int = 1, loss=None, **options) -> tuple[nn.Module, Descent]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))

    def squared_error(part: Batch):
        error = (network(part.inputs).float().squeeze(1) - part.targets).square().mean()
        return error, {"error": error.detach()}

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1)

    acceleration = Acceleration(precision, parts)
    named = network.named_parameters()
    return network, Descent(loss or squared_error, Batch, named, sgd, "cpu", acceleration, **options)


def weights(network: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(network.parameters()).detach().clone()


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_the_gradients_of_the_parts_add_up_to_that_of_the_whole(parts):
    (whole, step), (split, step_in_parts) = descent(), descent(parts=parts)
    metrics, metrics_of_parts = step(batch()), step_in_parts(batch())
    torch.testing.assert_close(weights(split), weights(whole))
    torch.testing.assert_close(metrics_of_parts["error"], metrics["error"])


def test_a_split_along_another_dimension_keeps_the_first_whole():
    seen = []

    def loss(part: Batch):
        seen.append(tuple(part.inputs.shape))
        return part.inputs.sum() * next(iter(network.parameters())).sum(), {}

    network, step = descent(parts=2, loss=loss, split_dim=1)
    step.batch_type = lambda inputs: Batch(inputs, inputs)
    step.backward([torch.zeros(5, 6)])
    assert seen == [(5, 3), (5, 3)]


def test_a_batch_that_cannot_be_split_evenly_is_refused():
    with pytest.raises(UsageError, match=r"--gradient-accumulation 3: must divide --batch-size = 64"):
        Acceleration(gradient_accumulation=3).check_splits(64, "--batch-size")


@pytest.mark.parametrize(("precision", "parts", "flag"), [("fp8", 1, "--precision fp8"), ("fp32", 0, "accumulation 0")])
def test_an_unknown_precision_and_no_parts_are_refused(precision, parts, flag):
    with pytest.raises(UsageError, match=flag):
        Acceleration(precision, parts)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_networks_multiply_in_the_precision_asked_for_and_steps_are_about_those_of_fp32(precision):
    (full, step), (lower, lower_step) = descent(max_grad_norm=0.1), descent(precision, max_grad_norm=0.1)
    before, dtypes = weights(full), []
    lower[0].register_forward_hook(lambda _, inputs, output: dtypes.append(output.dtype))
    lower_step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=precision == "fp16")  # no overflow yet
    step(batch())
    lower_step(batch())
    assert dtypes == [{"bf16": torch.bfloat16, "fp16": torch.float16}[precision]]
    assert all(parameter.dtype == torch.float32 for parameter in lower.parameters())
    moved, lower_moved = weights(full) - before, weights(lower) - before
    assert moved.norm().item() == pytest.approx(0.1 * 0.1, rel=1e-3)  # learning rate × the norm clipped to
    assert lower_moved.norm().item() == pytest.approx(0.1 * 0.1, rel=1e-3)  # unscaled before it was clipped
    torch.testing.assert_close(lower_moved, moved, rtol=0.1, atol=3e-4)
    assert not torch.is_autocast_enabled("cpu")


def test_an_overflow_of_the_scaled_gradients_leaves_the_step_out_and_halves_the_scale():
    network, step = descent("fp16")
    step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    before = weights(network)
    step(batch())
    assert torch.equal(weights(network), before)
    assert step.scaler.get_scale() == 2.0**126
    step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    step(batch())
    assert not torch.equal(weights(network), before)


def test_gradients_that_overflow_even_unscaled_are_refused():
    network = nn.Linear(1, 1)

    def loss(part: Batch):  # finite, with the infinite slope of a root at 0
        return (0 * network(part.inputs[:, :1]).float()).abs().sqrt().sum(), {}

    _, step = descent("fp16", loss=loss)
    step.parameters = dict(network.named_parameters())
    step.optimizer = torch.optim.SGD(network.parameters())
    step.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    with pytest.raises(NotFiniteError, match="gradient of weight"):
        step(batch())


def poisoned(what: str) -> tuple[nn.Module, Descent, Batch]:
    network, step = descent(max_grad_norm=0.5)
    data = batch()
    if what == "batch.targets":
        data.targets[3] = math.nan
    elif what == "parameter 2.weight":
        network[2].weight.data[0, 1] = math.inf
    elif what == "error":
        data.targets[0] = 3e30  # its square overflows
    elif what == "gradient of 0.weight":
        loss = step.loss

        def root(part: Batch):
            total, metrics = loss(part)
            return total + (0 * network[0].weight).abs().sqrt().sum(), metrics

        step.loss = root
    return network, step, data


@pytest.mark.parametrize("what", ["batch.targets", "parameter 2.weight", "error", "gradient of 0.weight"])
def test_the_first_tensor_that_is_not_finite_is_named_and_no_weight_moves(what):
    network, step, data = poisoned(what)
    before = weights(network)
    with pytest.raises(NotFiniteError, match=f"^{what} is not finite"):
        step(data)
    torch.testing.assert_close(weights(network), before, rtol=0, atol=0, equal_nan=True)


def test_no_gradient_flows_into_networks_that_the_loss_only_passes_through():
    judge = nn.Linear(1, 1)

    def loss(part: Batch):
        return judge(network(part.inputs)).mean(), {}

    network, step = descent(loss=loss)
    step(batch())
    assert all(parameter.grad is None for parameter in judge.parameters())
    assert all(parameter.grad.any() for parameter in network[2].parameters())


def test_the_loss_scale_is_saved_with_the_optimiser():
    _, step = descent("fp16")
    step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    step(batch())
    _, other = descent("fp16")
    other.load_state_dict(step.state_dict())
    assert other.scaler.get_scale() == 2.0**126
    _, full = descent("fp32")
    full.load_state_dict(step.state_dict())  # a run resumed in another precision
    assert not full.scaler.is_enabled()


@pytest.mark.parametrize(
    ("asked", "device", "precision", "mode", "reason"),
    [
        ("auto", "cpu", "fp32", "eager", "compiling takes longer"),
        ("auto", "cuda", "fp32", "graph", "one by one"),
        ("auto", "cuda:1", "bf16", "graph", "one by one"),
        ("auto", "cuda", "fp16", "eager", "loss scale"),
        ("eager", "cuda", "fp32", "eager", "asked for"),
        ("graph", "cuda", "fp32", "graph", "asked for"),
    ],
)
def test_the_mode_is_chosen_by_device_and_precision_unless_asked_for(asked, device, precision, mode, reason):
    chosen, why = choose_mode(asked, device, precision)
    assert chosen == mode
    assert reason in why


def test_a_graph_without_a_gpu_and_compiling_without_a_compiler_are_refused(monkeypatch):
    with pytest.raises(UsageError, match="--accelerate graph: CUDA graphs need a GPU, and the device is cpu"):
        choose_mode("graph", "cpu", "fp32")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RunError, match=r"needs a C\+\+ compiler, and there is no no-such-compiler here"):
        choose_mode("compile", "cpu", "fp32")
    with pytest.raises(UsageError, match="--accelerate fast: choose one of auto, eager, graph, compile"):
        Acceleration(mode="fast")


def test_compiled_code_is_kept_apart_for_each_user_and_device_in_the_folder_of_the_image(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    folder = keep_compiled_code("cpu")
    assert folder.parent == tmp_path
    assert folder.name.startswith(f"uid{os.getuid()}-cpu-")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
    assert keep_compiled_code("cpu") == folder  # a second run of the same process
