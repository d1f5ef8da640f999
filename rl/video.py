"""Films of greedy episodes."""

import os
from pathlib import Path
from typing import Any

from rl import envs
from rl.agent import Agent
from rl.envs import Episode
from rl.errors import RunError


def film(agent: Agent, env_id: str, episodes: int, seed: int, folder: Path, device: str = "cpu") -> list[Episode]:
    """Play `episodes` greedy episodes one after the other and write each to `folder`/episode-N.mp4.

    Raises RunError where a package for it is missing.
    """
    try:
        import imageio.v2 as imageio
    except ModuleNotFoundError as error:
        raise RunError("--video: a package is missing here: pip install 'pytorch-cuda-rl[video]'") from error
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # gymnasium draws by SDL, and no screen is needed
    folder.mkdir(parents=True, exist_ok=True)
    stage = envs.make(env_id, 1, seed, backend="auto", device=device, training=False, render=True)
    played: list[Episode] = []
    try:
        for number in range(episodes):
            picture, per_second = stage.render()
            file = folder / f"episode-{number}.mp4"
            video: Any = imageio.get_writer(file, fps=per_second, macro_block_size=2)  # even sides suffice
            with video:
                while len(played) == number:
                    video.append_data(picture)
                    stage.step(agent.act(stage.obs, explore=False))
                    played += stage.take_episodes()
                    picture, _ = stage.render()
    finally:
        stage.close()
    return played
