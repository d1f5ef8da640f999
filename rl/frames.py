"""Stacks of frames, as Atari observations are."""

from gymnasium import spaces


class FrameStack(spaces.Box):
    """A Box of the k newest frames, oldest first: uint8 [k, height, width]."""
