"""Greedy episodes in environments of their own."""

import numpy as np

from rl import envs
from rl.agent import Agent
from rl.envs import Episode


def evaluate(
    agent: Agent,
    env_id: str,
    episodes: int,
    seed: int,
    backend: str = "auto",
    device: str = "cpu",
) -> list[Episode]:
    """Play `episodes` episodes with `agent.act(obs, explore=False)`.

    Each of up to ten parallel environments plays an equal share (the first ones one more): taking the first to finish
    would favour short episodes. Training environments and random generators are left alone.
    """
    num_envs = min(episodes, 10)
    eval_envs = envs.make(env_id, num_envs, seed, backend=backend, device=device, training=False)
    quotas = np.full(num_envs, episodes // num_envs)
    quotas[: episodes % num_envs] += 1
    played: list[Episode] = []
    try:
        while quotas.any():
            transition = eval_envs.step(agent.act(eval_envs.obs, explore=False))
            ended = (transition.terminations | transition.truncations).cpu().numpy()
            for i, episode in zip(np.flatnonzero(ended), eval_envs.take_episodes(), strict=True):
                if quotas[i]:
                    quotas[i] -= 1
                    played.append(episode)
    finally:
        eval_envs.close()
    return played
