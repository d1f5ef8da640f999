"""A replay in CPU memory, apart from its agent. There is no GPU: an agent on cpu:0, another name of the CPU, stands in
for an agent on one, and everything but pinning and CUDA's events runs as it does there.
"""

import copy
import io
import json

import pytest
import torch
from gymnasium import spaces
from rl_process import rl
from test_buffers import ACTIONS, OBSERVATIONS, assert_whole, numbered
from test_failures import CONFIGS, run_config
from test_frames import SPACE, Games, check, play
from torch.utils._python_dispatch import TorchDispatchMode

from rl import checkpoint, dqn, envs, sac
from rl.accelerate import Acceleration
from rl.buffers import ReplayBuffer, choose_replay_device
from rl.diagnose import diagnose
from rl.errors import RunError, UsageError
from rl.evaluate import evaluate
from rl.frames import FrameStack
from rl.loop import LARGE_REPLAY
from rl.run_config import RunConfig
from rl.train import load_agent, resume, train

SEED = 3


def pair(capacity: int, num_envs: int, space: spaces.Space) -> tuple[ReplayBuffer, ReplayBuffer]:
    """A replay with its agent, and one apart from it."""
    together = ReplayBuffer(capacity, num_envs, space, ACTIONS, "cpu", "cpu")
    apart = ReplayBuffer(capacity, num_envs, space, ACTIONS, "cpu:0", "cpu", SEED)
    assert together.staging is None
    assert apart.staging is not None
    return together, apart


def fill(buffer: ReplayBuffer, space: spaces.Space) -> None:
    if isinstance(space, FrameStack):
        play(buffer, Games(buffer.num_envs), 20, 6)
    else:
        for step in range(20):
            buffer.add(numbered(step * buffer.num_envs, buffer.num_envs))


@pytest.mark.parametrize("space", [OBSERVATIONS, SPACE], ids=["vectors", "stacks of frames"])
def test_a_replay_apart_gives_the_batches_of_one_with_its_agent(space):
    together, apart = pair(30, 3, space)
    for buffer in (together, apart):
        fill(buffer, space)
    generator = torch.Generator().manual_seed(SEED)
    untouched = torch.Generator().manual_seed(9)  # stands in for the agent's, which is on the GPU
    for _ in range(5):
        expected = together.sample(64, generator)
        torch.testing.assert_close(apart.sample(64, untouched), expected, rtol=0, atol=0)
        expected = together.sample_n_step(32, 3, 0.9, generator)
        torch.testing.assert_close(apart.sample_n_step(32, 3, 0.9, untouched), expected, rtol=0, atol=0)
    assert torch.equal(untouched.get_state(), torch.Generator().manual_seed(9).get_state())


def test_a_replay_apart_keeps_stacks_of_frames_and_whole_transitions():
    _, frames = pair(40, 2, SPACE)
    check(frames, play(frames, Games(2), 50, 7), 2)
    _, vectors = pair(10, 3, OBSERVATIONS)
    fill(vectors, OBSERVATIONS)
    batch = vectors.sample(500, torch.Generator())
    assert_whole(batch)
    assert set(batch.actions.tolist()) == set(range(50, 60))


class Copies(TorchDispatchMode):
    """Counts what would go from one device to another."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._to_copy.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("space", [OBSERVATIONS, SPACE], ids=["vectors", "stacks of frames"])
def test_a_step_comes_in_and_a_batch_goes_out_by_one_copy_each(space):
    for buffer, expected in zip(pair(30, 3, space), (0, 1), strict=True):
        fill(buffer, space)
        step = Games(3).step([""] * 3) if space is SPACE else numbered(0, 3)
        for verb in (
            lambda buffer=buffer, step=step: buffer.add(step),
            lambda buffer=buffer: buffer.sample(8, torch.Generator()),
            lambda buffer=buffer: buffer.sample_n_step(8, 3, 0.9, torch.Generator()),
        ):
            with Copies() as copies:
                verb()
            assert copies.count == expected


def test_a_transition_stored_apart_does_not_change_with_the_tensors_that_it_came_from():
    _, buffer = pair(4, 2, OBSERVATIONS)
    transition = numbered(0, 2)
    buffer.add(transition)
    transition.obs.fill_(99)
    assert buffer.storage.obs.max() < 99


@pytest.mark.parametrize("saved_apart", [False, True])
@pytest.mark.parametrize("loaded_apart", [False, True])
def test_what_was_saved_of_a_replay_loads_wherever_the_next_one_lies(saved_apart, loaded_apart):
    saved, loaded = pair(30, 3, SPACE)[saved_apart], pair(30, 3, SPACE)[loaded_apart]
    fill(saved, SPACE)
    saved.sample(10, torch.Generator())
    file = io.BytesIO()
    torch.save(saved.state_dict(), file)
    file.seek(0)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(loaded.state_dict(), saved.state_dict(), rtol=0, atol=0)
    if saved_apart == loaded_apart:
        batches = [buffer.sample(20, torch.Generator().manual_seed(1)) for buffer in (saved, loaded)]
        torch.testing.assert_close(*batches, rtol=0, atol=0)


def test_a_replay_saved_before_there_was_a_choice_still_loads():
    together, _ = pair(30, 3, OBSERVATIONS)
    fill(together, OBSERVATIONS)
    state = together.state_dict()
    del state["generator"]
    _, apart = pair(30, 3, OBSERVATIONS)
    apart.load_state_dict(state)
    assert_whole(apart.sample(50, torch.Generator()))


@pytest.mark.parametrize(
    ("asked", "device", "size", "lies"),
    [
        ("auto", "cpu", 10**6, "cpu"),
        ("auto", "cuda:1", 500, "cuda:1"),  # exactly half of what is free
        ("auto", "cuda:1", 501, "cpu"),
        ("cpu", "cuda:1", 1, "cpu"),
        ("cpu", "cpu", 1, "cpu"),
        ("cuda", "cuda:1", 501, "cuda:1"),
    ],
)
def test_a_replay_lies_on_the_agents_gpu_while_half_its_free_memory_stays_free(monkeypatch, asked, device, size, lies):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    assert choose_replay_device(asked, device, size) == lies


def test_a_replay_too_large_for_the_gpu_is_refused_with_the_way_round(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    with pytest.raises(RunError, match=r"give a smaller --buffer-size, or --replay-device cpu$"):
        ReplayBuffer(10**6, 1, OBSERVATIONS, ACTIONS, "cuda", "cuda")


def test_an_unknown_place_is_refused():
    with pytest.raises(UsageError, match=r"--replay-device disk: choose one of auto, cpu, cuda"):
        Acceleration(replay_device="disk")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["dqn", "--replay-device", "gpu"], "--replay-device gpu: choose one of auto, cpu, cuda"),
        (["sac", "--env-id", "Pendulum-v1", "--device", "cpu", "--replay-device", "cuda"], "the agent is on the CPU"),
        (["ppo", "--replay-device", "cpu"], "--replay-device cpu: is for dqn and sac; ppo has no replay"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_place_that_cannot_be_gets_one_clear_error(tmp_path, flags, message):
    done = rl("train", *flags, cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


CASES = {
    "dqn": ("CartPole-v1", dqn.Config(buffer_size=700, learning_starts=100, hidden_sizes=(8,), n_steps=3)),
    "sac": ("Pendulum-v1", sac.Config(buffer_size=700, learning_starts=100, update_interval=20, hidden_sizes=(8,))),
}


def settings(path, env_id: str, **changes) -> RunConfig:
    """Of a run whose replay lies apart, unless `changes` say otherwise."""
    apart = {"device": "cpu:0", "replay_device": "cpu"}
    small = {"num_envs": 3, "checkpoint_interval": 300, "eval_episodes": 0, "seed": SEED}
    return RunConfig(run_dir=path, env_id=env_id, **(apart | small | changes))


def latest(path) -> dict:
    return checkpoint.load(path / "checkpoints" / "latest.pt")


@pytest.mark.parametrize("algorithm", sorted(CASES))
def test_a_resumed_run_whose_replay_lies_apart_is_the_uninterrupted_one_bit_for_bit(tmp_path, algorithm):
    env_id, config = CASES[algorithm]
    whole = train(settings(tmp_path / "whole", env_id, total_steps=1800), config, progress=False)
    assert whole.agent.buffer.staging
    train(settings(tmp_path / "run", env_id, total_steps=1000), config, progress=False)
    resumed = resume(tmp_path / "run", {"total_steps": 1800}, progress=False)
    assert resumed.agent.buffer.staging
    assert resumed.agent.updates == whole.agent.updates > 0
    one, other = (latest(tmp_path / name) for name in ("whole", "run"))
    torch.testing.assert_close(one["agent"], other["agent"], rtol=0, atol=0)


@pytest.mark.parametrize("algorithm", sorted(CASES))
def test_a_run_on_the_cpu_is_the_same_whether_its_replay_was_asked_to_be_there_or_not(tmp_path, algorithm):
    env_id, config = CASES[algorithm]
    for asked in ("auto", "cpu"):
        run = settings(tmp_path / asked, env_id, total_steps=500, device="cpu", replay_device=asked)
        train(run, config, progress=False)
    auto, asked = (latest(tmp_path / name) for name in ("auto", "cpu"))
    torch.testing.assert_close(auto["agent"], asked["agent"], rtol=0, atol=0)


def test_a_large_replay_that_lies_apart_has_its_file_and_resumes_exactly(tmp_path):
    config = dqn.Config(buffer_size=1_600_000, learning_starts=100, hidden_sizes=(8,))
    whole = train(settings(tmp_path / "whole", "CartPole-v1", total_steps=1500), config, progress=False)
    assert whole.agent.buffer.nbytes > LARGE_REPLAY
    train(settings(tmp_path / "run", "CartPole-v1", total_steps=900), config, progress=False)
    assert latest(tmp_path / "run")["agent"]["buffer"]["file"] == "replay-900.pt"
    resumed = resume(tmp_path / "run", {"total_steps": 1500}, progress=False)
    torch.testing.assert_close(resumed.agent.state_dict(), whole.agent.state_dict(), rtol=0, atol=0)


def test_a_resume_moves_the_replay_where_it_is_told_to(tmp_path):
    env_id, config = CASES["dqn"]
    path = tmp_path / "run"
    train(settings(path, env_id, total_steps=600, replay_device="auto"), config, progress=False)
    held = copy.deepcopy(latest(path)["agent"]["buffer"])
    done = rl("resume", path, "--replay-device", "cpu", "--total-steps", "900")
    assert done.returncode == 0, done.stderr
    assert "on the CPU, replay in CPU memory, in" in done.stdout
    assert json.loads((path / "config.json").read_text())["run"]["replay_device"] == "cpu"
    moved = latest(path)["agent"]["buffer"]
    assert torch.equal(moved["storage"]["obs"][200:600], held["storage"]["obs"][200:600])  # 600 to 900 wrapped round
    assert not torch.equal(moved["generator"], held["generator"])  # it draws by its own now


def test_a_change_that_is_refused_leaves_the_run_as_it_was(tmp_path):
    env_id, config = CASES["dqn"]
    path = tmp_path / "run"
    train(settings(path, env_id, total_steps=300), config, progress=False)
    before = (path / "config.json").read_text()
    with pytest.raises(UsageError, match="--replay-device cuda: the agent is on the CPU"):
        resume(path, {"total_steps": 600, "replay_device": "cuda"}, progress=False)
    assert (path / "config.json").read_text() == before
    assert resume(path, {"total_steps": 600}, progress=False).state == "finished"


def test_the_agent_of_a_run_with_its_replay_on_a_gpu_can_be_looked_at_without_one(tmp_path):
    env_id, config = CASES["dqn"]
    path = tmp_path / "run"
    train(settings(path, env_id, total_steps=300), config, progress=False)
    saved = json.loads((path / "config.json").read_text())
    saved["run"] |= {"device": "cuda", "replay_device": "cuda"}
    (path / "config.json").write_text(json.dumps(saved))
    run, agent, _ = load_agent(path, "cpu")
    assert len(evaluate(agent, run.env_id, 2, seed=0)) == 2


@pytest.mark.parametrize("algorithm", sorted(CASES))
def test_a_failing_update_from_a_replay_apart_leaves_a_bundle_that_repeats_it(tmp_path, algorithm):
    path = tmp_path / "run"
    run = run_config(path, algorithm, "Huge", device="cpu:0", replay_device="cpu")
    with pytest.raises(RunError, match="is not finite in the update of"):
        train(run, CONFIGS[algorithm], progress=False)
    (bundle,) = path.glob("not-finite-step-*.pt")
    assert diagnose(bundle).splitlines()[-1].startswith("first: ")


@pytest.mark.parametrize("algorithm", sorted(CASES))
def test_parts_of_a_batch_from_a_replay_apart_make_the_update_of_the_whole(algorithm):
    env_id, config = CASES[algorithm]
    trained = []
    for parts in (1, 4):
        vector = envs.make(env_id, 3, SEED)
        torch.manual_seed(SEED)
        agent_type = {"dqn": dqn.DQN, "sac": sac.SAC}[algorithm]
        spaces_of = vector.observation_space, vector.action_space
        agent = agent_type(config, *spaces_of, 3, "cpu:0", SEED, Acceleration("fp32", parts, "cpu"))
        while agent.updates < 3:
            agent.observe(vector.step(agent.act(vector.obs)))
            agent.learn()
        trained.append(agent)
    for whole, split in zip(*(agent.descents.values() for agent in trained), strict=True):
        torch.testing.assert_close(whole.parameters, split.parameters, rtol=1e-4, atol=1e-5)


def test_out_of_memory_advises_to_move_a_replay_that_lies_on_the_gpu(tmp_path):
    for device, advised in (("cpu", True), ("cpu:0", False)):  # with its agent, and apart
        path = tmp_path / device
        with pytest.raises(RunError) as caught:
            train(run_config(path, "dqn", "Memory", device=device, replay_device="cpu"), CONFIGS["dqn"], progress=False)
        assert ("saves some too, and --replay-device cpu 0.00 GiB;" in str(caught.value)) == advised
