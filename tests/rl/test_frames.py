"""Stacks of frames, each frame kept once, against a list of whole observations (pitfalls 4.3: 27 to 29)."""

import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.a2c import A2C
from rl.a2c import Config as A2CConfig
from rl.buffers import ReplayBuffer
from rl.dqn import DQN
from rl.dqn import Config as DQNConfig
from rl.errors import RunError, UsageError
from rl.frames import FrameStack
from rl.networks import ActorCritic, NatureCNN, q_network
from rl.ppo import PPO
from rl.ppo import Config as PPOConfig
from rl.sac import SAC
from rl.sac import Config as SACConfig
from rl.transition import Transition

DEPTH, SIZE = 3, (2, 2)
SPACE, ACTIONS = FrameStack(0, 255, (DEPTH, *SIZE), "uint8"), spaces.Discrete(4)


class Games:
    """N games whose frames are random; `step` ends them as it is told. A life lost ends an episode, not the game."""

    def __init__(self, num_envs: int, seed: int = 0, depth: int = DEPTH, size: tuple[int, int] = SIZE) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.shape = (num_envs, depth, *size)
        self.obs = self.new()
        self.number = 0

    def new(self) -> torch.Tensor:
        return torch.randint(256, self.shape, generator=self.generator, dtype=torch.uint8)

    def step(self, ends: list[str]) -> Transition:
        next_obs = torch.cat([self.obs[:, 1:], self.new()[:, :1]], dim=1)
        over = torch.tensor([end in ("over", "limit") for end in ends])
        terminated = torch.tensor([end in ("over", "life") for end in ends])
        n = len(ends)
        numbers = torch.arange(self.number, self.number + n)
        obs, self.obs = self.obs, torch.where(over[:, None, None, None], self.new(), next_obs)
        self.number += n
        return Transition(obs, numbers % 4, numbers.float(), next_obs, terminated, over & ~terminated)


def check(buffer: ReplayBuffer, history: list[Transition], num_envs: int) -> None:
    """Every transition that is held has the observations that it was added with, and all but the oldest are held."""
    oldest = (buffer.cursor - buffer.size) % buffer.capacity
    rows = (oldest + torch.arange(buffer.size)) % buffer.capacity
    numbers = buffer.storage.rewards[rows].long()
    added = len(history) * num_envs
    assert numbers.tolist() == list(range(added - buffer.size, added))
    obs = torch.cat([transition.obs for transition in history])
    next_obs = torch.cat([transition.next_obs for transition in history])
    assert torch.equal(buffer.frames.obs(rows), obs[numbers])
    assert torch.equal(buffer.frames.next_obs(rows), next_obs[numbers])


ENDS = st.sampled_from(["", "", "", "", "over", "limit", "life"])


@settings(max_examples=60, deadline=None)
@given(
    num_envs=st.integers(1, 4),
    capacity=st.integers(4, 30),
    ends=st.lists(st.lists(ENDS, min_size=4, max_size=4), min_size=1, max_size=120),
)
def test_every_stack_is_rebuilt_exactly_however_games_end_and_rings_wrap(num_envs, capacity, ends):
    buffer, games, history = ReplayBuffer(capacity, num_envs, SPACE, ACTIONS, "cpu"), Games(num_envs), []
    for step in ends:
        history.append(games.step(step[:num_envs]))
        buffer.add(history[-1])
        check(buffer, history, num_envs)


def play(buffer: ReplayBuffer, games: Games, steps: int, length: int) -> list[Transition]:
    """Games that are over every `length` steps, not all at once."""
    history = []
    for t in range(steps):
        history.append(games.step(["over" if (t + n) % length == 0 else "" for n in range(buffer.num_envs)]))
        buffer.add(history[-1])
    return history


@pytest.mark.parametrize(("length", "held"), [(1000, 100), (32, 100), (2, 40)])
def test_all_transitions_are_held_unless_games_are_very_short(length, held):
    buffer, games = ReplayBuffer(100, 4, SPACE, ACTIONS, "cpu"), Games(4)
    history = play(buffer, games, 200, length)
    assert held <= buffer.size <= 100
    check(buffer, history, 4)
    batch = buffer.sample(5000, torch.Generator().manual_seed(0))
    assert set(batch.rewards.long().tolist()) == set(range(800 - buffer.size, 800))


def test_a_replay_of_frames_goes_on_exactly_where_it_was_saved_and_begins_empty_without_a_state():
    one, other = (ReplayBuffer(50, 2, SPACE, ACTIONS, "cpu") for _ in range(2))
    games = Games(2)
    history = play(one, games, 37, 9)
    other.load_state_dict(one.state_dict())
    for buffer in (one, other):
        games_now, games.generator = games.generator.get_state(), games.generator
        transition = games.step(["", "over"])
        games.generator.set_state(games_now)
        games.obs = transition.obs
        games.number -= 2
        buffer.add(transition)
        check(buffer, [*history, transition], 2)
    other.load_state_dict({})
    assert other.size == 0
    games = Games(2, seed=5)
    check(other, play(other, games, 20, 7), 2)


def test_n_steps_over_frames_go_from_the_first_observation_to_the_last_successor():
    buffer, games = ReplayBuffer(90, 3, SPACE, ACTIONS, "cpu"), Games(3)
    history = play(buffer, games, 40, 11)
    batch, discounts = buffer.sample_n_step(300, 3, 0.5, torch.Generator().manual_seed(0))
    for i in range(300):
        steps = round(-torch.log2(discounts[i]).item())
        t = next(t for t, step in enumerate(history) for n in range(3) if torch.equal(step.obs[n], batch.obs[i]))
        n = next(n for n in range(3) if torch.equal(history[t].obs[n], batch.obs[i]))
        assert torch.equal(batch.next_obs[i], history[t + steps - 1].next_obs[n])
        assert batch.rewards[i] == sum(0.5**k * history[t + k].rewards[n] for k in range(steps))


def test_games_begun_anew_by_a_resume_are_not_taken_for_those_that_were_saved():
    """As Atari games are, which cannot be saved: 6 steps without an end, then 6 of new games."""
    saved, resumed = (ReplayBuffer(40, 2, SPACE, ACTIONS, "cpu") for _ in range(2))
    games, history = Games(2), []
    for buffer in (saved, resumed):
        if buffer is resumed:
            resumed.load_state_dict(saved.state_dict())
            games.obs = games.new()
        for _ in range(6):
            history.append(games.step(["", ""]))
            buffer.add(history[-1])
    check(resumed, history, 2)
    batch, discounts = resumed.sample_n_step(500, 12, 0.5, torch.Generator().manual_seed(0))
    seen = set()
    for obs, discount in zip(batch.obs, discounts, strict=True):
        step = next(t for t, old in enumerate(history) for n in range(2) if torch.equal(old.obs[n], obs))
        seen.add((step, round(-torch.log2(discount).item())))
    assert seen == {(step, 6 - step % 6) for step in range(12)}  # as many steps as are left of the game


def frame_bytes(capacity: int) -> int:
    """Of a replay of `capacity` transitions of 8 environments, 4 frames of 84 x 84: worked out by hand."""
    frames = 8 * (capacity // 8 + capacity // 64 + 2 * 4)
    return frames * 84 * 84 + capacity * (8 + 8 + 8 + 4 + 1 + 1)  # p, environment, action, reward, two ends


def test_frames_take_about_a_byte_a_pixel_and_as_much_as_was_predicted():
    space = FrameStack(0, 255, (4, 84, 84), "uint8")
    assert ReplayBuffer(8000, 8, space, ACTIONS, "cpu").nbytes == frame_bytes(8000)
    assert 1.0 <= frame_bytes(8000) / (8000 * 84 * 84) < 1.15
    with pytest.raises(RunError, match=f"needs {frame_bytes(64 * 10**8) / 2**30:.2f} GiB"):
        ReplayBuffer(64 * 10**8, 8, space, ACTIONS, "cpu")


def test_pixels_are_divided_by_255_once_and_in_the_network():
    network = q_network(FrameStack(0, 255, (2, 36, 36), "uint8"), (8,), 3)
    seen = []
    network[0].layers[0].register_forward_hook(lambda _, inputs, output: seen.append(inputs[0]))
    network(torch.full((1, 2, 36, 36), 255, dtype=torch.uint8))
    network(torch.full((1, 2, 36, 36), 1, dtype=torch.uint8))
    assert seen[0].dtype == torch.float32
    assert (seen[0] == 1).all()
    torch.testing.assert_close(seen[1], torch.full_like(seen[1], 1 / 255))


def test_the_network_is_that_of_the_paper_for_atari():
    network = NatureCNN((4, 84, 84))
    shapes = [tuple(parameter.shape) for name, parameter in network.named_parameters() if name.endswith("weight")]
    assert shapes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 3136)]
    assert network(torch.zeros(5, 3, 4, 84, 84, dtype=torch.uint8)).shape == (5, 3, 512)


PICTURES = FrameStack(0, 255, (2, 36, 36), "uint8")


@pytest.mark.parametrize(
    "agent",
    [
        lambda: DQN(DQNConfig(buffer_size=40, learning_starts=8, batch_size=4, n_steps=2), PICTURES, ACTIONS, 2),
        lambda: PPO(PPOConfig(num_steps=4, num_epochs=1), PICTURES, ACTIONS, 2),
        lambda: A2C(A2CConfig(num_steps=4), PICTURES, ACTIONS, 2),
    ],
    ids=["dqn", "ppo", "a2c"],
)
def test_agents_learn_from_pictures(agent):
    agent = agent()
    games = Games(2, depth=2, size=(36, 36))
    (descent,) = agent.descents.values()
    before = {name: value.detach().clone() for name, value in descent.parameters.items()}
    metrics = {}
    for t in range(12):
        actions = agent.act(games.obs)
        agent.observe(games.step(["over" if t % 5 == 4 else ""] * 2)._replace(actions=actions))
        metrics |= agent.learn()
    assert metrics
    assert any(name.endswith("layers.0.weight") for name in before)
    assert all(not torch.equal(value, before[name]) for name, value in descent.parameters.items())


@pytest.mark.parametrize("make", [lambda: q_network(PICTURES, (8,), 4), lambda: ActorCritic(PICTURES, ACTIONS, (8,))])
def test_networks_for_pictures_compile_as_one_graph(make):
    network, obs = make(), Games(3, depth=2, size=(36, 36)).obs
    compiled = torch.compile(lambda obs: network(obs), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(obs), network(obs))


def test_policy_and_value_share_the_convolutions():
    agent = PPO(PPOConfig(num_steps=4), PICTURES, ACTIONS, 2)
    obs = Games(2, depth=2, size=(36, 36)).obs
    parameters, values = agent.network(obs)
    torch.testing.assert_close(parameters, agent.network.policy(obs))
    torch.testing.assert_close(values, agent.network.value(obs))
    assert [name for name, _ in agent.network.named_parameters() if "trunk" not in name] == [
        "actor.0.weight",
        "actor.0.bias",
        "critic.0.weight",
        "critic.0.bias",
    ]


def test_sac_does_not_take_pictures():
    with pytest.raises(UsageError, match=r"SAC learns from vectors, .* train ppo"):
        SAC(SACConfig(buffer_size=8), PICTURES, spaces.Box(-1, 1, (1,)), 1)
