"""The contract that every agent keeps."""

import copy
import dataclasses
import io

import pytest
import torch

from rl import envs
from rl.accelerate import Acceleration
from rl.errors import UsageError
from rl.train import ALGORITHMS

SMALL = {
    "dqn": {"buffer_size": 50, "learning_starts": 12, "batch_size": 8, "hidden_sizes": (8,), "target_interval": 20},
    "ppo": {"num_steps": 6, "num_epochs": 2, "num_minibatches": 3, "hidden_sizes": (8,)},
    "a2c": {"num_steps": 4, "hidden_sizes": (8,)},
    "a3c": {"num_steps": 4, "hidden_sizes": (8,), "num_workers": 1},
    "sac": {"buffer_size": 50, "learning_starts": 12, "batch_size": 8, "hidden_sizes": (8,)},
}
DISCRETE, CONTINUOUS = "CartPole-v1", "Pendulum-v1"
ALL = [
    (name, env_id)
    for name in sorted(ALGORITHMS)
    for env_id in (DISCRETE, CONTINUOUS)
    if (name, env_id) not in (("dqn", CONTINUOUS), ("sac", DISCRETE))
]
NUM_ENVS = 3


def make(case: tuple[str, str], seed: int = 0, acceleration: Acceleration = Acceleration(), **settings):
    algorithm, env_id = case
    vector = envs.make(env_id, NUM_ENVS, seed)
    config_type, agent_type = ALGORITHMS[algorithm]
    torch.manual_seed(seed)
    config = config_type(**(SMALL[algorithm] | settings))
    return agent_type(
        config, vector.observation_space, vector.action_space, NUM_ENVS, "cpu", seed, acceleration
    ), vector


def train(agent, vector, steps: int) -> list[dict]:
    metrics = []
    for _ in range(steps):
        agent.observe(vector.step(agent.act(vector.obs)))
        metrics.append(agent.learn())
    return metrics


def saved(agent) -> bytes:
    """The agent's state as the bytes of a file: equal bytes, equal state."""
    file = io.BytesIO()
    torch.save(agent.state_dict(), file)
    return file.getvalue()


@pytest.mark.parametrize("case", ALL, ids="-".join)
def test_acting_changes_nothing_but_the_generator_and_greedily_not_even_that(case):
    agent, vector = make(case)
    train(agent, vector, 20)
    before = copy.deepcopy(agent.state_dict())
    greedy = agent.act(vector.obs, explore=False)
    torch.testing.assert_close(agent.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(greedy, agent.act(vector.obs, explore=False))
    agent.act(vector.obs)
    after = agent.state_dict()
    assert not torch.equal(after.pop("generator"), before.pop("generator"))
    torch.testing.assert_close(after, before, rtol=0, atol=0)


@pytest.mark.parametrize("case", ALL, ids="-".join)
def test_actions_are_int64_one_for_each_environment_or_float32_in_rows(case):
    agent, vector = make(case)
    actions = agent.act(vector.obs)
    expected = (torch.int64, (NUM_ENVS,)) if case[1] == DISCRETE else (torch.float32, (NUM_ENVS, 1))
    assert (actions.dtype, actions.shape) == expected


@pytest.mark.parametrize("steps", [0, 20])  # SAC draws its first actions in another way
@pytest.mark.parametrize("case", ALL, ids="-".join)
def test_an_agent_acts_for_some_of_its_environments_too(case, steps):
    agent, vector = make(case)
    train(agent, vector, steps)
    whole, part = vector.obs, vector.obs[1:]
    assert agent.act(part).shape == agent.act(whole)[1:].shape
    torch.testing.assert_close(agent.act(part, explore=False), agent.act(whole, explore=False)[1:])


@pytest.mark.parametrize("case", ALL, ids="-".join)
def test_learn_is_empty_unless_an_update_was_due_and_then_names_finite_scalars(case):
    agent, vector = make(case)
    metrics = train(agent, vector, 30)
    assert metrics[0] == {}
    named = [entry for entry in metrics if entry]
    assert named
    for entry in named:
        assert all(torch.isfinite(torch.as_tensor(value)) for value in entry.values())
    assert agent.step == 30 * NUM_ENVS


@pytest.mark.parametrize("case", ALL, ids="-".join)
def test_an_agent_loaded_from_another_goes_on_as_that_one_would(case):
    agent, vector = make(case)
    train(agent, vector, 23)
    other, other_vector = make(case, seed=9)
    other.load_state_dict(torch.load(io.BytesIO(saved(agent)), weights_only=True))
    other_vector.load_state_dict(vector.state_dict())
    train(agent, vector, 23)
    train(other, other_vector, 23)
    torch.testing.assert_close(agent.state_dict(), other.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("case", ALL, ids="-".join)
def test_two_agents_of_one_seed_are_one_and_the_same(case):
    (one, one_envs), (two, two_envs), (other, other_envs) = make(case), make(case), make(case, seed=1)
    for agent, vector in ((one, one_envs), (two, two_envs), (other, other_envs)):
        train(agent, vector, 25)
    assert saved(one) == saved(two) != saved(other)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("case", ALL, ids="-".join)
def test_every_agent_learns_in_low_precision_with_float32_weights_actions_and_losses(case, precision):
    agent, vector = make(case, acceleration=Acceleration(precision))
    metrics = [entry for entry in train(agent, vector, 30) if entry]
    assert all(torch.as_tensor(value).isfinite() for entry in metrics for value in entry.values())
    assert all(value.dtype == torch.float32 for value in metrics[-1].values() if torch.is_tensor(value))
    for descent in agent.descents.values():
        assert all(parameter.dtype == torch.float32 for parameter in descent.parameters.values())


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("case", ALL, ids="-".join)
def test_a_batch_in_parts_makes_the_same_update_as_a_whole_one(case, parts):
    settings = {"batch_size": 6 * parts} if case[0] in ("dqn", "sac") else {}
    if case[0] not in ("a2c", "a3c") or parts == 3:  # their rollout is split between its 3 environments
        (whole, whole_envs), (split, split_envs) = (
            make(case, acceleration=Acceleration(gradient_accumulation=n), **settings) for n in (1, parts)
        )
        train(whole, whole_envs, 6)
        train(split, split_envs, 6)
        for one, other in zip(whole.descents.values(), split.descents.values(), strict=True):
            torch.testing.assert_close(one.parameters, other.parameters, rtol=1e-4, atol=1e-5)
        assert whole.updates == split.updates > 0


def batches(agent, vector) -> dict:
    """The last batch that each of the agent's descents learned from."""
    seen = {}

    def recording(name, loss):
        def recorded(batch):
            seen[name] = type(batch)(*(value.clone() for value in batch))
            return loss(batch)

        return recorded

    losses = {name: descent.loss for name, descent in agent.descents.items()}
    for name, descent in agent.descents.items():
        descent.loss = recording(name, losses[name])
    train(agent, vector, 30)
    for name, descent in agent.descents.items():
        descent.loss = losses[name]
    return seen


def assert_compiled_equals_eager(case, backend: str) -> None:
    agent, vector = make(case)
    for name, batch in batches(agent, vector).items():
        descent = agent.descents[name]
        metrics = descent.backward(batch)
        gradients = {key: value.grad.clone() for key, value in descent.parameters.items()}
        descent.loss = torch.compile(descent.loss, fullgraph=True, backend=backend)
        torch.testing.assert_close(descent.backward(batch), metrics, rtol=1e-4, atol=1e-5)
        for key, value in descent.parameters.items():
            torch.testing.assert_close(value.grad, gradients[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ALL, ids="-".join)
def test_every_loss_is_one_graph_whose_gradients_are_those_of_eager_code(case):
    torch._dynamo.reset()
    assert_compiled_equals_eager(case, "aot_eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch's own, in inductor
@pytest.mark.parametrize("case", ALL, ids="-".join)
def test_every_compiled_loss_equals_eager_code(case):
    torch._dynamo.reset()
    assert_compiled_equals_eager(case, "inductor")


@pytest.mark.parametrize(
    ("case", "message"), [(("dqn", CONTINUOUS), "train ppo or sac"), (("sac", DISCRETE), "train ppo")], ids=str
)
def test_actions_that_an_agent_does_not_take_are_refused_with_the_way_round(case, message):
    with pytest.raises(UsageError, match=message):
        make(case)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_count_and_share_of_a_config_is_checked_and_named_as_a_flag(algorithm):
    config_type, _ = ALGORITHMS[algorithm]
    checked = 0
    for field in dataclasses.fields(config_type):
        if field.name in ("entropy_coef", "value_coef", "double", "hidden_sizes", "network", "shared_trunk"):
            continue
        flag = "--" + field.name.replace("_", "-")
        with pytest.raises(UsageError, match=flag):
            config_type(**{field.name: -1})
        checked += 1
        if isinstance(field.default, float):
            with pytest.raises(UsageError, match=f"{flag} nan"):
                config_type(**{field.name: float("nan")})
    assert checked >= 6
