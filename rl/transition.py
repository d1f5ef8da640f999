"""What one step of N environments yields: the only thing that passes from environments to agents."""

from typing import NamedTuple

from torch import Tensor


class Transition(NamedTuple):
    """One step of N environments, every tensor on the agent's device.

    `next_obs` is the true successor of `obs`: where an episode ended it is its last observation, never the first one
    of the next episode. A learner bootstraps from it unless `terminations` is set; a truncation (time limit) ends the
    episode, but the state that it ended in still has a value (Pardo et al. 2018, "Time Limits in Reinforcement
    Learning").
    """

    obs: Tensor  # [N, *observation shape]
    actions: Tensor  # [N] int64, or [N, action size] float32
    rewards: Tensor  # [N] float32
    next_obs: Tensor  # [N, *observation shape]
    terminations: Tensor  # [N] bool: the environment itself ended the episode
    truncations: Tensor  # [N] bool: a limit from outside ended it
