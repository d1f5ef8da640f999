"""Every backend gives the same transitions as the plainest loop over single environments.

Pitfalls 41 (autoreset rows), 46 (lengths), 47 (aliased last observations), 48 (seeds), 49 (bounds) and 50 (ragged
infos). 44 and 45 are in test_ale.py; 60, 61 and 63 in test_workers.py.
"""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from scripted_envs import Pixels, Scripted

from rl import envs
from rl.envs.contract import check_finite, episode_seeds
from rl.errors import NotFiniteError, RunError, UsageError

NUM_ENVS, STEPS, SEED = 3, 60, 4


@pytest.fixture
def make():
    """`envs.make`, closed at the end."""
    made = []

    def make_one(*arguments, **options):
        made.append(envs.make(*arguments, **options))
        return made[-1]

    yield make_one
    for vector in made:
        vector.close()


def actions_of(step: int) -> torch.Tensor:
    return torch.tensor([(step + i) % 5 for i in range(NUM_ENVS)])


def rows(transition) -> list[tuple]:
    obs, actions, rewards, next_obs, terminations, truncations = (value.tolist() for value in transition)
    ends = terminations, truncations
    return list(zip(map(tuple, obs), actions, rewards, map(tuple, next_obs), *ends, strict=True))


def one_after_another() -> list[tuple]:
    transitions = []
    for i, seed in enumerate(episode_seeds(SEED, 0, NUM_ENVS)):
        env = gymnasium.make("Scripted-v0")
        obs = tuple(env.reset(seed=seed)[0].tolist())
        for step in range(STEPS):
            action = int(actions_of(step)[i])
            next_obs, reward, terminated, truncated, _ = env.step(action)
            next_obs = tuple(next_obs.tolist())
            transitions.append((obs, action, reward, next_obs, terminated, truncated and not terminated))
            obs = tuple(env.reset()[0].tolist()) if terminated or truncated else next_obs
    return sorted(transitions)


GYMNASIUM = pytest.mark.parametrize("backend", ["sync", "async"])


@GYMNASIUM
def test_transitions_are_those_of_one_environment_after_another_pitfalls_41_47_48_50(make, backend):
    vector = make("scripted_envs:Scripted-v0", NUM_ENVS, SEED, backend=backend)
    steps = [vector.step(actions_of(step)) for step in range(STEPS)]  # read only at the end: nothing may be overwritten
    seen = sorted(row for transition in steps for row in rows(transition))
    assert seen == one_after_another()
    assert {(terminated, truncated) for *_, terminated, truncated in seen} == {(0, 0), (0, 1), (1, 0)}
    assert any((t.terminations | t.truncations).tolist() in ([1, 0, 0], [0, 1, 0], [0, 0, 1]) for t in steps)  # mixed


@GYMNASIUM
def test_episodes_are_counted_with_their_returns_and_lengths_pitfall_46(make, backend):
    vector = make("scripted_envs:Scripted-v0", NUM_ENVS, SEED, backend=backend)
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
    assert {length for _, length in expected} == {1, 2, 3, 4, 5, 6}
    assert vector.take_episodes() == []


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_another_autoreset_mode_is_refused_with_the_argument_to_give_pitfall_41(mode, kind):
    ready_made = kind([Scripted], autoreset_mode=mode)
    with pytest.raises(UsageError, match=r"autoreset_mode=AutoresetMode\.SAME_STEP"):
        envs.GymnasiumEnvs(ready_made, seed=0, device="cpu")
    ready_made.close()


def test_a_ready_made_vector_environment_is_taken_and_says_that_it_cannot_be_saved():
    ready_made = SyncVectorEnv([Scripted], autoreset_mode=AutoresetMode.SAME_STEP)
    vector = envs.GymnasiumEnvs(ready_made, seed=0, device="cpu")
    assert "rl.envs.vectorize" in vector.unsaved
    assert vector.step(torch.tensor([1])).next_obs[0, 2] == 1


def of(env_class: type) -> envs.GymnasiumEnvs:
    return envs.GymnasiumEnvs(envs.vectorize([env_class], processes=False), seed=0, device="cpu")


@pytest.mark.parametrize(
    ("name", "space", "message"),
    [
        ("observation_space", spaces.Dict(a=spaces.Discrete(2)), "wrap the environment"),
        ("observation_space", spaces.Tuple([spaces.Discrete(2)]), "wrap the environment"),
        ("observation_space", spaces.Box(0, 1, (4, 4)), "FlattenObservation"),
        ("observation_space", spaces.Box(0, 255, (3, 35, 84), np.uint8), "36 x 36 or more"),
        ("observation_space", spaces.Box(0, 1, (3, 84, 84), np.float32), "uint8 images"),
        ("observation_space", spaces.Box(0, 255, (84, 84, 3), np.uint8), r"channels last: .* numpy\.moveaxis"),
        ("action_space", spaces.MultiDiscrete([2, 2]), "wrap the environment"),
        ("action_space", spaces.Dict(a=spaces.Discrete(2)), "wrap the environment"),
        ("action_space", spaces.Box(-np.inf, np.inf, (1,)), "finite low and high"),  # pitfall 49
    ],
    ids=str,
)
def test_a_space_that_no_agent_takes_is_refused_with_the_way_round(name, space, message):
    class Odd(Scripted):
        def __init__(self):
            super().__init__()
            setattr(self, name, space)

    with pytest.raises(UsageError, match=message):
        of(Odd)


def test_an_environment_with_action_masks_is_refused_with_the_way_round():
    class Masked(Scripted):
        def reset(self, *, seed=None, options=None):
            obs, _ = super().reset(seed=seed)
            return obs, {"action_mask": np.array([1, 0, 1, 1, 1], dtype=np.int8)}

    with pytest.raises(UsageError, match=r"action masks are not supported.*wrap it"):
        of(Masked)


@GYMNASIUM
def test_images_stay_uint8_and_hold_the_true_successor(make, backend):
    vector = make("scripted_envs:Pixels-v0", NUM_ENVS, SEED, backend=backend)
    assert vector.obs.dtype == torch.uint8
    assert vector.obs.shape == (NUM_ENVS, *Pixels.observation_space.shape)
    for step in range(20):
        transition = vector.step(actions_of(step))
        assert transition.next_obs.dtype == torch.uint8
        assert torch.equal(transition.next_obs, transition.obs + 1)


def run(vector: envs.Envs, steps: int) -> list[torch.Tensor]:
    seen = []
    for step in range(steps):
        seen += list(vector.step(torch.arange(vector.num_envs) % 2 ^ (step // 3 % 2)))
    return seen


BACKENDS = pytest.mark.parametrize("backend", ["native", "sync", "async"])


@BACKENDS
def test_the_same_seed_gives_the_same_run_and_another_seed_another(make, backend):
    one, same, other = (run(make("CartPole-v1", 3, seed, backend=backend), 100) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_processes_change_nothing(make):
    sync, in_processes = (run(make("CartPole-v1", 3, 1, backend=backend), 100) for backend in ("sync", "async"))
    assert all(torch.equal(a, b) for a, b in zip(sync, in_processes, strict=True))


@BACKENDS
def test_environments_of_one_vector_differ_and_so_do_their_episodes_pitfall_48(make, backend):
    vector = make("CartPole-v1", 4, seed=0, backend=backend)
    firsts = {tuple(row) for row in vector.obs.tolist()}
    for _ in range(300):
        transition = vector.step(torch.ones(4, dtype=torch.int64))
        ended = transition.terminations | transition.truncations
        firsts |= {tuple(row) for row in vector.obs[ended].tolist()}
    assert len(firsts) == 4 + len(vector.take_episodes())


@BACKENDS
def test_a_restored_vector_goes_on_exactly(make, backend):
    one = make("CartPole-v1", 3, seed=1, backend=backend)
    run(one, 57)
    one.take_episodes()
    other = make("CartPole-v1", 3, seed=99, backend=backend)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.obs, other.obs)
    assert all(torch.equal(a, b) for a, b in zip(run(one, 100), run(other, 100), strict=True))
    assert one.take_episodes() == other.take_episodes() != []


@pytest.mark.parametrize("processes", [False, True])
def test_an_environment_that_cannot_be_saved_says_why_and_starts_new_episodes_after_each_resume(processes):
    class Simulator(gymnasium.envs.classic_control.CartPoleEnv):
        def __init__(self):
            super().__init__()
            self.engine = range(3)

    made = []

    def make() -> envs.GymnasiumEnvs:
        made.append(envs.GymnasiumEnvs(envs.vectorize([Simulator] * 2, processes=processes), seed=3, device="cpu"))
        return made[-1]

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
    for vector in made:
        vector.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCar-v0"])  # one terminates, the other meets its time limit
def test_a_native_environment_gives_the_transitions_of_single_gymnasium_environments_from_the_same_states(env_id):
    vector = envs.make(env_id, NUM_ENVS, seed=1, backend="native")
    singles = [gymnasium.make(env_id) for _ in range(NUM_ENVS)]
    for env in singles:
        env.reset()
    ends = 0
    for step in range(450):
        actions = torch.tensor([step // 5 % 2, step % 2, 1])
        expected = []
        for i, env in enumerate(singles):
            env.unwrapped.state = vector.state[:, i].copy()  # resets are drawn apart
            obs = tuple(vector.obs[i].tolist())
            next_obs, reward, terminated, truncated, _ = env.step(int(actions[i]))
            expected.append((obs, int(actions[i]), reward, tuple(next_obs.tolist()), terminated, truncated))
            if terminated or truncated:
                env.reset()
                ends += 1
        assert rows(vector.step(actions)) == expected
    assert len(vector.take_episodes()) == ends > 3


@GYMNASIUM
@pytest.mark.parametrize(
    ("action", "message"),
    [(3, r"environment 1 gave observation\[1\] = nan after action 3"), (4, "environment 1 gave reward = inf")],
)
def test_nan_and_inf_are_errors_that_name_environment_and_element(make, backend, action, message):
    vector = make("scripted_envs:Troubled-v0", NUM_ENVS, SEED, backend=backend)
    with pytest.raises(NotFiniteError, match=message):
        vector.step(torch.tensor([0, action, 0]))


def test_nan_of_a_native_environment_is_an_error_that_tells_the_action():
    vector = envs.make("Pendulum-v1", 2, seed=0)
    with pytest.raises(NotFiniteError, match=r"environment 1 gave observation\[0\] = nan after action \[nan\]"):
        vector.step(torch.tensor([[0.0], [float("nan")]]))


def test_nan_in_the_last_observation_of_an_episode_is_an_error_too():
    class Ends(Scripted):
        def step(self, action):
            return np.array([0, np.inf, 0], dtype=np.float32), 0.0, True, False, {}

    with pytest.raises(NotFiniteError, match=r"observation\[1\] = inf"):
        of(Ends).step(torch.tensor([0]))


def test_nan_in_the_first_observation_of_an_episode_is_an_error_too():
    class Starts(Scripted):
        def step(self, action):
            obs, *_ = super().step(action)
            return obs, 0.0, True, False, {}

        def _obs(self):
            return np.array([np.nan if self.episode else 0, 0, 0], dtype=np.float32)

    with pytest.raises(NotFiniteError, match=r"observation\[0\] = nan"):
        of(Starts).step(torch.tensor([0]))


def test_large_finite_numbers_are_no_error():
    check_finite(np.full((2, 2), 3e38, dtype=np.float32), np.full(2, 1e308), torch.zeros(2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("CartPoll-v1", 1), "CartPoll"),
        (("CartPole-v9", 1), "v9"),
        (("no_such_module:X-v0", 1), "no_such_module"),
        (("two words", 1), "Malformed"),
        (("CartPole-v1", 0), "--num-envs 0"),
    ],
    ids=str,
)
def test_what_cannot_be_made_gives_one_line(arguments, message):
    with pytest.raises(UsageError, match=message) as raised:
        envs.make(*arguments, seed=0)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("env_id", "backend", "message"),
    [
        ("Blackjack-v1", "native", "use --backend sync"),
        ("CartPole-v1", "ale", "ALE/Name-v5"),
        ("ALE/Pong-v5", "sync", "--backend ale"),
        ("CartPole-v1", "threads", "choose one of auto"),
    ],
)
def test_a_backend_that_does_not_fit_is_refused_with_what_does(env_id, backend, message):
    with pytest.raises(UsageError, match=message):
        envs.make(env_id, 1, seed=0, backend=backend)


def test_where_a_package_is_missing_one_line_names_the_command():
    code = """
import sys
from rl.__main__ import main
for package in ("ale_py", "mujoco", "Box2D"):
    sys.modules[package] = None  # Python's own way of saying that there is none
for env_id in ("ALE/Pong-v5", "HalfCheetah-v5", "LunarLander-v3"):
    sys.argv = ["rl", "train", "ppo", "--env-id", env_id]
    try:
        main()
    except SystemExit as end:
        print(end.code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == 3 * [str(RunError.exit_code)]
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    for line, extra in zip(lines, ("atari", "mujoco", "box2d"), strict=True):
        assert line.endswith(f"pip install 'pytorch-cuda-rl[{extra}]'")


@BACKENDS
def test_continuous_actions_go_from_plus_minus_1_to_the_box_and_are_clipped_there_only(make, backend):
    vector = make("Pendulum-v1", 3, seed=0, backend=backend)
    actions = torch.tensor([[0.5], [-1.0], [7.0]])
    rewards_of_torque = [1.0, 2.0, 2.0]  # N·m: ±1 is ±2
    obs = vector.obs.double()
    transition = vector.step(actions)
    assert torch.equal(transition.actions, actions)  # what the agent drew
    angle, speed = torch.atan2(obs[:, 1], obs[:, 0]), obs[:, 2]
    expected = -(angle**2 + 0.1 * speed**2 + 0.001 * torch.tensor(rewards_of_torque) ** 2)
    torch.testing.assert_close(transition.rewards.double(), expected, atol=1e-5, rtol=1e-5)


@GYMNASIUM
@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Ant-v5"])
def test_mujoco_is_restored_exactly(make, backend, env_id):
    pytest.importorskip("mujoco", reason="the extra mujoco is not installed")
    one = make(env_id, 2, seed=1, backend=backend)
    generator = torch.Generator().manual_seed(0)
    actions = torch.rand(40, 2, *one.action_space.shape, generator=generator) * 2 - 1
    for action in actions[:15]:
        one.step(action)
    other = make(env_id, 2, seed=99, backend=backend)
    other.load_state_dict(one.state_dict())
    assert one.unsaved == ""
    for action in actions[15:]:
        assert all(torch.equal(a, b) for a, b in zip(one.step(action), other.step(action), strict=True))
