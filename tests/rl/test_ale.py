"""Atari: the preprocessing of the literature and the one transition contract, against a plain loop over one emulator.

Pitfalls 44 (order of the preprocessing, frame cap, true score) and 45 (a return spans all lives).
"""

import numpy as np
import pytest
import torch

from rl import envs
from rl.errors import UsageError
from rl.evaluate import evaluate
from rl.frames import FrameStack

ale_py = pytest.importorskip("ale_py", reason="the extra atari is not installed")

from rl.envs.ale import AleEnvs  # noqa: E402

NUM_ENVS = 2


def shrink(image: np.ndarray, size: int) -> np.ndarray:
    """Average the rows of an image over the `size` equal bands that they fall into, parts of rows included."""
    sums = np.vstack([np.zeros(image.shape[1]), np.cumsum(image, axis=0)])
    edges = np.arange(size + 1) * len(image) / size
    below = np.minimum(edges.astype(int), len(image) - 1)
    at_edges = sums[below] + (edges - below)[:, None] * (sums[below + 1] - sums[below])
    return np.diff(at_edges, axis=0) * size / len(image)


class Game:
    """One emulator, preprocessed step by step as Mnih et al. 2015 describe it."""

    def __init__(self, game: str, max_frames: int) -> None:
        self.ale = ale_py.ALEInterface()
        self.ale.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.loadROM(ale_py.roms.get_rom_path(game))
        self.actions = self.ale.getMinimalActionSet()
        self.max_frames = max_frames

    def reset(self, frames: int) -> None:
        """FIRE, then no-ops until `frames` frames are played: their number is drawn by the other side."""
        self.ale.reset_game()
        if ale_py.Action.FIRE in self.actions:
            self.ale.act(ale_py.Action.FIRE)
        while self.ale.getEpisodeFrameNumber() < frames:
            self.ale.act(ale_py.Action.NOOP)
        self.screens = [np.zeros((210, 160), dtype=np.uint8), self.ale.getScreenGrayscale()]
        self.elapsed = 0
        self.lives = self.ale.lives()

    def step(self, action: int) -> tuple[float, bool, bool, bool]:
        """Reward, game over, life lost, frame cap reached."""
        reward = 0.0
        for _ in range(4):
            reward += self.ale.act(self.actions[action])
            self.elapsed += 1
            if self.ale.game_over() or self.elapsed == self.max_frames:
                break
            self.screens = [self.screens[1], self.ale.getScreenGrayscale()]
        lives, self.lives = self.lives, self.ale.lives()
        return reward, self.ale.game_over(), 0 < self.lives < lives, self.elapsed == self.max_frames

    def frame(self) -> np.ndarray:
        return shrink(shrink(np.maximum(*self.screens), 84).T, 84).T


def assert_frames_are_near(frames: torch.Tensor, expected: np.ndarray) -> None:
    assert np.abs(frames.numpy() - expected).max() <= 1  # rounded to whole grey values, by another order of additions


@pytest.mark.parametrize(
    ("game", "training"), [("breakout", True), ("breakout", False), ("space_invaders", True), ("pong", False)]
)
def test_transitions_are_those_of_one_emulator_after_another_pitfalls_44_45(game, training):
    max_frames = 800
    vector = AleEnvs(game, NUM_ENVS, 5, "cpu", training=training, max_frames=max_frames)
    twins = [Game(game, max_frames) for _ in range(NUM_ENVS)]
    scores, lengths = np.zeros(NUM_ENVS), np.zeros(NUM_ENVS, dtype=int)
    for i, twin in enumerate(twins):
        twin.reset(vector.frames[i])
        assert_frames_are_near(vector.obs[i, 3], twin.frame())
        assert not vector.obs[i, :3].any()
    generator = np.random.default_rng(0)
    episodes, lost_lives, capped, rewards_seen = [], 0, 0, set()
    for _ in range(500):
        actions = torch.from_numpy(generator.integers(len(twins[0].actions), size=NUM_ENVS))
        before = vector.obs
        transition = vector.step(actions)
        assert transition.obs is before
        for i, twin in enumerate(twins):
            reward, game_over, life_lost, cap = twin.step(int(actions[i]))
            rewards_seen.add(reward)
            assert transition.rewards[i] == (np.sign(reward) if training else reward)
            assert transition.terminations[i] == (game_over or (training and life_lost))
            assert transition.truncations[i] == (cap and not transition.terminations[i])
            assert torch.equal(transition.next_obs[i, :3], transition.obs[i, 1:])
            if not game_over and not cap:
                assert_frames_are_near(transition.next_obs[i, 3], twin.frame())
                assert torch.equal(vector.obs[i], transition.next_obs[i])  # a lost life ends no game
            scores[i], lengths[i], lost_lives, capped = (
                scores[i] + reward,
                lengths[i] + 1,
                lost_lives + life_lost,
                capped + cap,
            )
            if game_over or cap:
                episodes.append((scores[i], lengths[i]))
                scores[i] = lengths[i] = 0
                twin.reset(vector.frames[i])
                assert_frames_are_near(vector.obs[i, 3], twin.frame())
                assert not vector.obs[i, :3].any()
    vector.close()
    assert vector.take_episodes() == episodes
    assert len(episodes) >= 2  # and each of what can happen did happen:
    assert capped if game != "breakout" else lost_lives
    assert {"breakout": {1.0}, "space_invaders": {5.0, 10.0}, "pong": {-1.0}}[game] <= rewards_seen


def test_no_observation_changes_after_it_was_given_pitfall_47():
    vector = envs.make("ALE/Breakout-v5", NUM_ENVS, seed=0)
    transitions = [vector.step(torch.tensor([1, 2])) for _ in range(100)]
    kept = [[value.clone() for value in transition] for transition in transitions]
    for _ in range(50):
        vector.step(torch.tensor([1, 3]))
    assert all(
        torch.equal(a, b) for one, two in zip(transitions, kept, strict=True) for a, b in zip(one, two, strict=True)
    )
    vector.close()


def test_atari_is_chosen_for_its_ids_and_gives_uint8_frames_marked_as_a_stack():
    vector = envs.make("ALE/Pong-v5", NUM_ENVS, seed=0)
    assert isinstance(vector, AleEnvs)
    assert isinstance(vector.observation_space, FrameStack)
    assert vector.observation_space.shape == (4, 84, 84)
    assert vector.action_space.n == 6
    transition = vector.step(torch.tensor([0, 3]))
    assert vector.obs.dtype == transition.obs.dtype == transition.next_obs.dtype == torch.uint8
    assert transition.next_obs.shape == (NUM_ENVS, 4, 84, 84)
    vector.close()


def starts(seed: int, state: dict | None = None) -> tuple[dict, list]:
    """The state, and the frames that the emulators have played before the first steps: the number of no-ops differs."""
    vector = envs.make("ALE/Pong-v5", 3, seed)
    if state:
        vector.load_state_dict(state)
    seen = [vector.frames.tolist(), vector.obs.sum((1, 2, 3)).tolist()]
    for _ in range(3):
        vector.step(torch.zeros(3, dtype=torch.int64))
        seen.append(vector.obs.sum((1, 2, 3)).tolist())
    saved = vector.state_dict()
    vector.close()
    return saved, seen


def test_games_are_seeded_apart_and_a_resumed_run_says_why_it_starts_others():
    state, first = starts(1)
    assert first == starts(1)[1]
    assert first != starts(2)[1]
    assert len(set(first[0])) == 3  # environments of one vector differ
    later_state, second = starts(1, state)
    third = starts(1, later_state)[1]
    assert first[0] != second[0] != third[0] != first[0]
    assert starts(1, state)[1] == second
    assert "ale-py" in AleEnvs.unsaved


def test_an_unknown_game_is_refused_in_one_line():
    with pytest.raises(UsageError, match="Pongg") as raised:
        envs.make("ALE/Pongg-v5", 1, seed=0)
    assert "\n" not in str(raised.value)


def test_an_evaluation_plays_whole_games():
    class Random:
        def act(self, obs, explore):
            return torch.from_numpy(generator.integers(4, size=len(obs)))

    generator = np.random.default_rng(0)
    played = evaluate(Random(), "ALE/Breakout-v5", episodes=2, seed=0)
    assert len(played) == 2
    assert all(episode.length > 80 for episode in played)  # five balls; the first alone is lost after some 20 steps
