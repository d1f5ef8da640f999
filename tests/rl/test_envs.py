"""Every backend gives the same transitions as the plainest loop over one environment."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl import envs
from rl.envs import SyncEnvs
from rl.errors import UsageError


class Scripted(gymnasium.Env):
    """Its observation tells environment, episode and step; episodes last 2, 3, 4 steps in turn and end by turns."""

    observation_space = spaces.Box(0, 1000, (3,))
    action_space = spaces.Discrete(5)

    def __init__(self, number: int) -> None:
        self.number, self.episode, self.count = number, -1, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action):
        self.count += 1
        ended = self.count == 2 + (self.number + self.episode) % 3
        terminated = ended and self.episode % 2 == 0
        return self._obs(), float(action), terminated, ended and not terminated, {}

    def _obs(self):
        return np.array([self.number, self.episode, self.count], dtype=np.float32)


NUM_ENVS, STEPS = 3, 40


def actions_of(step: int) -> torch.Tensor:
    return torch.tensor([(step + i) % 5 for i in range(NUM_ENVS)])


def brute_force() -> list[tuple]:
    transitions = []
    for number in range(NUM_ENVS):
        env = Scripted(number)
        obs, _ = env.reset()
        for step in range(STEPS):
            action = int(actions_of(step)[number])
            next_obs, reward, terminated, truncated, _ = env.step(action)
            transitions.append((tuple(obs), action, reward, tuple(next_obs), terminated, truncated))
            obs = env.reset()[0] if terminated or truncated else next_obs
    return sorted(transitions)


def scripted(mode: AutoresetMode = AutoresetMode.SAME_STEP) -> SyncEnvs:
    makers = [lambda number=number: Scripted(number) for number in range(NUM_ENVS)]
    return SyncEnvs(SyncVectorEnv(makers, autoreset_mode=mode), seed=0, device="cpu")


def test_transitions_are_those_of_one_environment_after_another():
    vector = scripted()
    steps = [vector.step(actions_of(step)) for step in range(STEPS)]  # read only at the end: nothing may be overwritten
    seen = [tuple(zip(*(value.tolist() for value in transition), strict=True)) for transition in steps]
    transitions = [
        (tuple(obs), action, reward, tuple(next_obs), terminated, truncated)
        for rows in seen
        for obs, action, reward, next_obs, terminated, truncated in rows
    ]
    assert sorted(transitions) == brute_force()


def test_episodes_are_counted_with_their_returns_and_lengths():
    vector = scripted()
    returns = np.zeros(NUM_ENVS)
    expected = []
    for step in range(STEPS):
        transition = vector.step(actions_of(step))
        returns += transition.rewards.numpy()
        for i in range(NUM_ENVS):
            if transition.terminations[i] or transition.truncations[i]:
                expected.append((returns[i], int(transition.next_obs[i, 2])))
                returns[i] = 0
    assert vector.take_episodes() == expected
    assert vector.take_episodes() == []


def test_a_step_that_ends_both_ways_is_a_termination_alone():
    class Both(Scripted):
        def step(self, action):
            return self._obs(), 1.0, True, True, {}

    vector = SyncEnvs(SyncVectorEnv([lambda: Both(0)], autoreset_mode=AutoresetMode.SAME_STEP), seed=0, device="cpu")
    transition = vector.step(torch.tensor([0]))
    assert transition.terminations.tolist() == [True]
    assert transition.truncations.tolist() == [False]


def test_another_autoreset_mode_is_refused_with_the_argument_to_give():
    with pytest.raises(UsageError, match=r"autoreset_mode=AutoresetMode\.SAME_STEP"):
        scripted(AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize(
    ("name", "space"),
    [
        ("observation_space", spaces.Dict(a=spaces.Discrete(2))),
        ("observation_space", spaces.Box(0, 1, (4, 4))),
        ("observation_space", spaces.Tuple([spaces.Discrete(2)])),
        ("action_space", spaces.MultiDiscrete([2, 2])),
        ("action_space", spaces.Dict(a=spaces.Discrete(2))),
    ],
    ids=str,
)
def test_a_space_that_no_agent_takes_is_refused_with_the_way_round(name, space):
    class Odd(Scripted):
        def __init__(self):
            super().__init__(0)
            setattr(self, name, space)

    with pytest.raises(UsageError, match="wrap the environment"):
        SyncEnvs(SyncVectorEnv([Odd], autoreset_mode=AutoresetMode.SAME_STEP), seed=0, device="cpu")


def run(vector: envs.Envs, steps: int) -> list[torch.Tensor]:
    seen = []
    for step in range(steps):
        seen += list(vector.step(torch.arange(vector.num_envs) % 2 ^ (step // 3 % 2)))
    return seen


BACKENDS = ["native", "sync"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_seed_gives_the_same_run_and_another_seed_another(backend):
    one, same, other = (run(envs.make("CartPole-v1", 3, seed, backend=backend), 100) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_environments_of_one_vector_differ_and_so_do_their_episodes(backend):
    vector = envs.make("CartPole-v1", 4, seed=0, backend=backend)
    firsts = {tuple(row) for row in vector.obs.tolist()}
    for _ in range(300):
        transition = vector.step(torch.ones(4, dtype=torch.int64))
        ended = transition.terminations | transition.truncations
        firsts |= {tuple(row) for row in vector.obs[ended].tolist()}
    assert len(firsts) == 4 + len(vector.take_episodes())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_restored_vector_goes_on_exactly(backend):
    one = envs.make("CartPole-v1", 3, seed=1, backend=backend)
    run(one, 57)
    one.take_episodes()
    other = envs.make("CartPole-v1", 3, seed=99, backend=backend)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.obs, other.obs)
    assert all(torch.equal(a, b) for a, b in zip(run(one, 100), run(other, 100), strict=True))
    assert one.take_episodes() == other.take_episodes() != []


def test_an_environment_that_cannot_be_saved_says_why_and_starts_new_episodes_after_each_resume():
    class Simulator(gymnasium.envs.classic_control.CartPoleEnv):
        def __init__(self):
            super().__init__()
            self.engine = object()

    def make() -> SyncEnvs:
        return SyncEnvs(SyncVectorEnv([Simulator] * 2, autoreset_mode=AutoresetMode.SAME_STEP), seed=3, device="cpu")

    first = make()
    assert "Simulator.engine" in first.unsaved
    second, third = make(), make()
    second.load_state_dict(first.state_dict())
    third.load_state_dict(second.state_dict())
    starts = {tuple(vector.obs.flatten().tolist()) for vector in (make(), second, third)}
    assert len(starts) == 3  # the run's first episodes are not played again
    again = make()
    again.load_state_dict(first.state_dict())
    assert torch.equal(again.obs, second.obs)  # and which ones are played is no matter of chance


def test_native_and_gymnasiums_cartpole_step_alike():
    native, sync = (envs.make("CartPole-v1", 3, seed=1, backend=backend) for backend in BACKENDS)
    for step in range(600):
        for i, env in enumerate(sync.envs.envs):  # resets are drawn apart, so the states are made equal before a step
            env.unwrapped.state = native.state[:, i].copy()
        sync.obs = native.obs
        actions = torch.tensor([step // 5 % 2, step % 2, 1])
        sync_transition, native_transition = sync.step(actions), native.step(actions)
        assert all(torch.equal(a, b) for a, b in zip(sync_transition, native_transition, strict=True))
    assert native.take_episodes() == sync.take_episodes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("CartPoll-v1", 1), "CartPoll"),
        (("CartPole-v9", 1), "v9"),
        (("no_such_module:X-v0", 1), "no_such_module"),
        (("two words", 1), "Malformed"),
        (("LunarLander-v3", 1), r"gymnasium\[box2d\]"),
        (("CartPole-v1", 0), "--num-envs 0"),
    ],
    ids=str,
)
def test_what_cannot_be_made_gives_one_line(arguments, message):
    with pytest.raises(UsageError, match=message) as raised:
        envs.make(*arguments, seed=0)
    assert "\n" not in str(raised.value)


def test_the_native_backend_is_refused_where_there_is_none():
    with pytest.raises(UsageError, match="use --backend sync"):
        envs.make("Blackjack-v1", 1, seed=0, backend="native")


@pytest.mark.parametrize("backend", BACKENDS)
def test_continuous_actions_go_from_plus_minus_1_to_the_box_and_are_clipped_there_only(backend):
    vector = envs.make("Pendulum-v1", 3, seed=0, backend=backend)
    actions = torch.tensor([[0.5], [-1.0], [7.0]])
    rewards_of_torque = [1.0, 2.0, 2.0]  # N·m: ±1 is ±2
    obs = vector.obs.double()
    transition = vector.step(actions)
    assert torch.equal(transition.actions, actions)  # what the agent drew
    angle, speed = torch.atan2(obs[:, 1], obs[:, 0]), obs[:, 2]
    expected = -(angle**2 + 0.1 * speed**2 + 0.001 * torch.tensor(rewards_of_torque) ** 2)
    torch.testing.assert_close(transition.rewards.double(), expected, atol=1e-5, rtol=1e-5)


def test_unbounded_actions_are_refused_with_what_to_give():
    class Unbounded(Scripted):
        action_space = spaces.Box(-np.inf, np.inf, (1,))

    with pytest.raises(UsageError, match="finite low and high"):
        SyncEnvs(SyncVectorEnv([lambda: Unbounded(0)], autoreset_mode=AutoresetMode.SAME_STEP), seed=0, device="cpu")
