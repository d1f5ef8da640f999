import subprocess

import imageio_ffmpeg
import numpy as np
import pytest
from rl_process import rl

from rl import dqn, envs, ppo
from rl.run_config import RunConfig
from rl.train import load_agent, train
from rl.video import film


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    train(RunConfig(run_dir=path, total_steps=256, eval_episodes=1), ppo.Config(num_steps=16), progress=False)
    return path


def read(path) -> np.ndarray:
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    data = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(data, np.uint8).reshape(-1, 400, 600, 3)


def test_each_episode_is_filmed_from_its_first_state_on_a_picture_a_step(run, tmp_path):
    _, agent, _ = load_agent(run, "cpu")
    played = film(agent, "CartPole-v1", 2, seed=3, folder=tmp_path / "films")
    assert sorted(path.name for path in (tmp_path / "films").iterdir()) == ["episode-0.mp4", "episode-1.mp4"]
    for number, episode in enumerate(played):
        pictures = read(tmp_path / "films" / f"episode-{number}.mp4")
        assert pictures.shape == (episode.length, 400, 600, 3)
        assert pictures[0].min() < 50  # the cart is black
        assert pictures[0].max() > 200


def test_eval_films_the_episodes_that_it_reports(run, tmp_path):
    done = rl("eval", run, "--episodes", "1", "--video", tmp_path / "films", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert [path.name for path in (tmp_path / "films").iterdir()] == ["episode-0.mp4"]


def test_a_missing_package_is_named_with_its_extra(run, tmp_path):
    (tmp_path / "imageio.py").write_text("raise ModuleNotFoundError('No module named imageio')")
    done = rl("eval", run, "--episodes", "1", "--video", "films", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "rl: --video: a package is missing here: pip install 'pytorch-cuda-rl[video]'\n"


def test_an_atari_game_is_filmed_as_the_agent_sees_it(tmp_path):
    path = tmp_path / "run"
    run = RunConfig(run_dir=path, env_id="ALE/Pong-v5", total_steps=64, num_envs=2, eval_episodes=0)
    train(run, dqn.Config(buffer_size=100, learning_starts=32), progress=False)
    stage = envs.make("ALE/Pong-v5", 1, seed=0, training=False, render=True)
    picture, per_second = stage.render()
    stage.close()
    assert (picture.shape, per_second) == (((336, 336, 3)), 15)
    assert len(set(picture.flatten().tolist())) > 2
