"""Double-buffered sampling: no step is lost, doubled or given to the wrong half, and none is older than it may be."""

import copy
import os
import signal
import time

import gymnasium
import pytest
import torch
from rl_process import wait_until
from scripted_envs import Scripted
from test_workers import wait_until_ended

from rl import a2c, dqn, envs, ppo
from rl.buffers import ReplayBuffer, RolloutBuffer
from rl.envs.contract import episode_seeds
from rl.errors import NotFiniteError, RunError
from rl.normalize import Normalized
from rl.run_config import RunConfig
from rl.sampling import DoubleBuffered
from rl.train import build

SEED = 4


@pytest.fixture
def make():
    """Environments in two halves, closed at the end."""
    made = []

    def make_one(env_id: str | type, num_envs: int, seed: int = SEED) -> envs.Halves:
        if isinstance(env_id, str):
            vector = envs.make(env_id, num_envs, seed, backend="async")
        else:
            vector = envs.GymnasiumEnvs(envs.vectorize([env_id] * num_envs, processes=True), seed, "cpu")
        made.append(envs.Halves(vector, vector.workers))
        return made[-1]

    yield make_one
    for halves in made:
        halves.close()


class Scriptwriter:
    """An agent whose action is a function of the observation, and which keeps what it observes."""

    device, updates = "cpu", 0

    def __init__(self, halves: envs.Halves, num_steps: int = 0) -> None:
        spaces = halves.observation_space, halves.action_space
        kind = RolloutBuffer if num_steps else ReplayBuffer
        self.buffer = kind(num_steps or 100, halves.num_envs, *spaces, "cpu")
        self.seen: list = []

    def act(self, obs, explore=True):
        return obs.sum(dim=1).long() % 5

    def observe(self, transition):
        self.seen.append(transition)
        self.buffer.add(transition)

    def learn(self):
        if isinstance(self.buffer, RolloutBuffer) and self.buffer.full:
            self.buffer.clear()
            self.updates += 1


def sample(agent, halves: envs.Halves, steps: int) -> DoubleBuffered:
    sampler = DoubleBuffered(agent, halves)
    for _ in range(steps):
        sampler.sample()
        agent.learn()
    return sampler


def rows(seen: list, i: int) -> list[tuple]:
    """What was seen of environment `i`, step by step."""
    return [tuple(value[i].tolist() for value in transition) for transition in seen]


def one_environment(i: int, num_envs: int, steps: int) -> list[tuple]:
    """What environment `i` gives when it is stepped alone."""
    env = gymnasium.make("Scripted-v0")
    obs = env.reset(seed=episode_seeds(SEED, 0, num_envs)[i])[0].tolist()
    transitions = []
    for _ in range(steps):
        action = int(sum(obs)) % 5
        next_obs, reward, terminated, truncated, _ = env.step(action)
        next_obs = next_obs.tolist()
        transitions.append((obs, action, reward, next_obs, terminated, truncated and not terminated))
        obs = env.reset()[0].tolist() if terminated or truncated else next_obs
    return transitions


@pytest.mark.parametrize("num_steps", [0, 7], ids=["replay", "rollout"])
@pytest.mark.parametrize("num_envs", [2, 5])
def test_every_environment_gives_its_steps_once_and_in_order_to_its_own_column(make, num_envs, num_steps):
    halves = make("scripted_envs:Scripted-v0", num_envs)
    agent = Scriptwriter(halves, num_steps)
    sample(agent, halves, 60)
    for i in range(num_envs):
        assert rows(agent.seen, i) == one_environment(i, num_envs, 60)
    episodes = halves.take_episodes()
    assert len(episodes) == sum(int((t.terminations | t.truncations).sum()) for t in agent.seen)
    assert {episode.length for episode in episodes} == {1, 2, 3, 4, 5, 6}


def test_saving_between_any_two_steps_changes_nothing_and_a_copy_goes_on_exactly(make):
    halves = make("scripted_envs:Scripted-v0", 3)
    agent, sampler, copied = Scriptwriter(halves), None, make("scripted_envs:Scripted-v0", 3, seed=99)
    sampler = DoubleBuffered(agent, halves)
    for step in range(40):
        sampler.sample()
        episodes = halves.take_episodes()
        assert len(episodes) == int((agent.seen[-1].terminations | agent.seen[-1].truncations).sum())  # none too early
        state = halves.state_dict()
        if step % 10 == 9:
            other = Scriptwriter(copied)
            copied.load_state_dict(copy.deepcopy(state))
            copied_sampler = DoubleBuffered(other, copied)
            copied_sampler.sample()
            copied_sampler.sample()
            expected = [one_environment(i, 3, step + 3)[step + 1 :] for i in range(3)]
            assert [rows(other.seen, i) for i in range(3)] == expected
    assert [rows(agent.seen, i) for i in range(3)] == [one_environment(i, 3, 40) for i in range(3)]


def test_environments_that_cannot_be_saved_start_new_episodes_without_the_steps_in_progress(make):
    class Simulator(Scripted):
        def __init__(self):
            super().__init__()
            self.engine = range(3)

    halves = make(Simulator, 3)
    sample(Scriptwriter(halves), halves, 10)
    assert "Simulator.engine" in halves.unsaved
    resumed = make(Simulator, 3)
    sample(Scriptwriter(resumed), resumed, 3)  # so that there are steps in progress to be dropped
    resumed.load_state_dict(copy.deepcopy(halves.state_dict()))
    agent = Scriptwriter(resumed)
    sample(agent, resumed, 1)
    numbers = [seed % 100_000 for seed in episode_seeds(SEED, 1, 3)]
    assert agent.seen[0].obs.tolist() == [[number, 0, 0] for number in numbers]
    assert agent.seen[0].next_obs.tolist() == [[number, 0, 1] for number in numbers]


def test_one_half_steps_while_the_other_is_received_and_both_do_when_sample_returns(make, tmp_path):
    class Rendezvous(Scripted):
        """Step k of the second half ends when step k + 1 of the first one has begun."""

        def step(self, action):
            self.steps = getattr(self, "steps", 0) + 1
            second_half = self.number == seeds[1] % 100_000
            (tmp_path / f"{second_half}-{self.steps}").touch()
            deadline = time.monotonic() + 20
            awaited = tmp_path / f"False-{self.steps + 1}"
            while second_half and not awaited.exists() and time.monotonic() < deadline:
                time.sleep(0.001)
            obs, _, *rest = super().step(action)
            return obs, float(time.monotonic() < deadline), *rest

    seeds = episode_seeds(SEED, 0, 2)
    halves = make(Rendezvous, 2)
    agent = Scriptwriter(halves)
    for step in range(1, 6):
        DoubleBuffered(agent, halves).sample()
        assert agent.seen[-1].rewards.tolist() == [1.0, 1.0]  # it came in time
        wait_until(lambda step=step: all((tmp_path / f"{half}-{step + 1}").exists() for half in (False, True)))
    (tmp_path / "False-7").touch()  # so that the step in progress ends


@pytest.mark.parametrize(("update_interval", "updates"), [(1, 4), (2, 2), (4, 1), (8, 1)])
def test_an_agent_with_a_replay_lags_by_the_updates_of_one_learn_at_most(make, update_interval, updates):
    halves = make("CartPole-v1", 4)
    config = dqn.Config(learning_starts=8, update_interval=update_interval, hidden_sizes=(8,), batch_size=4)
    agent = dqn.DQN(config, halves.observation_space, halves.action_space, 4)
    sampler = sample(agent, halves, 2)
    assert sampler.take_metrics() == {"policy_lag": 0}  # nothing was learned yet
    for _ in range(20):
        sampler.sample()
        agent.learn()
    assert sampler.take_metrics() == {"policy_lag": updates}
    assert sampler.take_metrics() == {"policy_lag": 0}


class Witness(ppo.PPO):
    """Remembers how likely each action was when it was chosen, and compares before the update."""

    compared = 0

    def act(self, obs, explore=True):
        actions = super().act(obs, explore)
        with torch.no_grad():
            log_probs = self.network.head.log_prob(self.network.policy(obs), actions)
        acted = self.__dict__.setdefault("acted", {})
        acted |= {tuple(row): log_prob for row, log_prob in zip(obs.tolist(), log_probs, strict=True)}
        return actions

    def _batch(self):
        batch = super()._batch()
        before = torch.stack([self.acted.pop(tuple(row)) for row in batch.obs.tolist()])
        torch.testing.assert_close((batch.log_probs - before).exp(), torch.ones(len(before)), atol=1e-5, rtol=0)
        self.compared += len(before)
        return batch


@pytest.mark.parametrize("normalize_rewards", [False, True])
def test_ppo_learns_from_actions_of_its_present_network_only_so_its_first_ratio_is_1(make, normalize_rewards):
    halves = make("CartPole-v1", 3)
    config = ppo.Config(learning_rate=0.1, num_steps=6, num_minibatches=2, hidden_sizes=(8,))
    agent = witness = Witness(config, halves.observation_space, halves.action_space, 3)
    if normalize_rewards:
        agent = Normalized(witness, (4,), 0.99, obs=False, rewards=True)
    sampler = sample(agent, halves, 30)
    assert witness.compared == 5 * 6 * 3
    assert not witness.acted  # every action was learned from
    assert sampler.take_metrics() == {"policy_lag": 0}
    assert agent.updates == witness.updates == 5 * 10 * 2


@pytest.mark.parametrize(
    ("num_envs", "changes", "kind"),
    [
        (2, {}, envs.Halves),
        (1, {}, envs.GymnasiumEnvs),  # there is no half of it
        (2, {"normalize_rewards": True}, envs.Halves),
        (2, {"normalize_obs": True}, envs.GymnasiumEnvs),  # its statistics would be newer than those acted by
        (2, {"backend": "sync"}, envs.GymnasiumEnvs),
        (2, {"backend": "native"}, envs.NativeEnvs),
    ],
    ids=str,
)
def test_environments_in_processes_are_sampled_in_halves_where_there_are_two_and_actions_stay_fresh(
    num_envs, changes, kind
):
    run = RunConfig(num_envs=num_envs, **({"backend": "async"} | changes))
    _, made = build(run, "a2c", a2c.Config(), "cpu")
    made.close()
    assert type(made) is kind


def test_a_worker_killed_in_a_step_that_was_sent_ahead_is_an_error_that_names_it_and_closing_leaves_none(make):
    halves = make("scripted_envs:Troubled-v0", 4)
    pids = halves.workers.get_attr("pid")
    agent = Scriptwriter(halves)
    agent.act = lambda obs: torch.zeros(len(obs), dtype=torch.int64)
    sample(agent, halves, 3)
    os.kill(pids[3], signal.SIGKILL)
    with pytest.raises(RunError, match="environment 3: its worker process ended with exit code -9"):
        sample(agent, halves, 2)  # two: the step in progress may have been over when it was killed
    halves.close()
    wait_until_ended(pids)


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (1, RunError, "environment 3 raised ValueError: broken"),
        (3, NotFiniteError, r"environment 3 gave observation\[1\] = nan after action 3"),
        (4, NotFiniteError, "environment 3 gave reward = inf after action 4"),
    ],
)
def test_what_goes_wrong_in_the_second_half_is_said_of_the_right_environment(make, action, error, message):
    halves = make("scripted_envs:Troubled-v0", 4)
    halves.send(0, torch.tensor([0, 0]), 0)
    halves.send(1, torch.tensor([0, action]), 0)
    halves.receive(0)
    with pytest.raises(error, match=message):
        halves.receive(1)


def test_closing_with_steps_in_progress_leaves_no_worker(make):
    halves = make("scripted_envs:Slow-v0", 3)
    pids = [process.pid for process in halves.workers.processes]
    sample(Scriptwriter(halves), halves, 2)
    assert halves.in_progress(0)
    assert halves.in_progress(1)
    halves.close()
    wait_until_ended(pids)
