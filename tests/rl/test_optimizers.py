"""The optimisers against torch.optim's, number by number; pitfall: importing the compiler only to take a step."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from rl.optimizers import Adam, RMSprop

CASES = {
    "adam": (
        lambda parameters: Adam(parameters, 1e-2, eps=1e-5),
        lambda parameters: torch.optim.Adam(parameters, lr=1e-2, eps=1e-5, fused=True),
    ),
    "rmsprop": (
        lambda parameters: RMSprop(parameters, 1e-2),
        lambda parameters: torch.optim.RMSprop(parameters, lr=1e-2, alpha=0.99, eps=1e-5),
    ),
}


def twins() -> tuple[list[Tensor], list[Tensor]]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    return list(network.parameters()), list(copy.deepcopy(network).parameters())


def step(parameters: list[Tensor], optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


@pytest.mark.parametrize("name", CASES)
def test_thirty_steps_equal_those_of_torch_optim_bit_for_bit(name):
    ours, theirs = twins()
    optimizer, reference = CASES[name][0](ours), CASES[name][1](theirs)
    for seed in range(30):
        rate = 1e-2 * (1 - seed / 30)
        optimizer.param_groups[0]["lr"] = reference.param_groups[0]["lr"] = rate
        step(ours, optimizer, seed)
        step(theirs, reference, seed)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_learning_rate_on_the_device_gives_the_same_steps_up_to_rounding():
    parameters, others = twins()
    optimizer, other = RMSprop(parameters, 1e-2), RMSprop(others, 1e-2)
    other.param_groups[0]["lr"] = torch.tensor(1e-2)
    for seed in range(5):
        step(parameters, optimizer, seed)
        step(others, other, seed)
    torch.testing.assert_close(others, parameters)


@pytest.mark.parametrize("name", CASES)
def test_what_was_saved_goes_on_as_if_nothing_had_happened(name):
    parameters, others = twins()
    optimizer, other = CASES[name][0](parameters), CASES[name][0](others)
    for seed in range(3):
        step(parameters, optimizer, seed)
    with torch.no_grad():
        for copied, parameter in zip(others, parameters, strict=True):
            copied.copy_(parameter)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for seed in range(3, 6):
        step(parameters, optimizer, seed)
        step(others, other, seed)
    torch.testing.assert_close(others, parameters, rtol=0, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_a_step_with_found_inf_set_moves_nothing_and_is_not_counted(name):
    parameters, others = twins()
    optimizer, other = CASES[name][0](parameters), CASES[name][0](others)
    optimizer.found_inf = torch.ones(())
    before = [parameter.detach().clone() for parameter in parameters]
    parameters[0].grad = torch.full_like(parameters[0], torch.inf)
    optimizer.step()
    torch.testing.assert_close(parameters, before, rtol=0, atol=0, check_stride=False)
    optimizer.found_inf.zero_()
    step(parameters, optimizer, 0)
    step(others, other, 0)
    torch.testing.assert_close(parameters, others, rtol=0, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_a_parameter_that_the_loss_did_not_depend_on_stays(name):
    parameters, _ = twins()
    before = parameters[1].detach().clone()
    optimizer = CASES[name][0](parameters)
    step(parameters, optimizer, 0)
    after_one = parameters[1].detach().clone()
    assert not torch.equal(after_one, before)
    fresh, _ = twins()
    optimizer = CASES[name][0](fresh)
    fresh[0].grad = torch.ones_like(fresh[0])
    optimizer.step()
    assert torch.equal(fresh[1], before)


def test_weights_in_the_order_of_convolutions_move_as_in_any_other():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 5, 2), nn.Flatten(), nn.Linear(20, 1))
    ordered = copy.deepcopy(network).to(memory_format=torch.channels_last)
    optimizer, reference = Adam(list(ordered.parameters()), 1e-2), torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(3):
        pictures = torch.randn(4, 3, 3, 3)
        for one, descent in ((network, reference), (ordered, optimizer)):
            for parameter in one.parameters():
                parameter.grad = None
            one(pictures).square().mean().backward()
            descent.step()
    torch.testing.assert_close(ordered.state_dict(), network.state_dict())


def test_training_does_not_import_the_compiler(tmp_path):
    code = (
        # a tensor without memory makes torch 2.6 and 2.7 import sympy
        "import sys, torch; torch.zeros(1, device='meta'); of_torch = set(sys.modules); import rl.__main__\n"
        "try: rl.__main__.main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch._dynamo', 'torch._inductor', 'sympy') if name in set(sys.modules) - of_torch])"
    )
    flags = ["train", "dqn", "--device", "cpu", "--total-steps", "1100", "--eval-episodes", "1"]
    done = subprocess.run(
        [sys.executable, "-c", code, *flags, "--run-dir", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
