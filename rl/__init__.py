"""Reinforcement learning in PyTorch: agents with four verbs, one training loop, pure functions for the mathematics."""
