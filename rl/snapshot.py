"""The exact state of a gymnasium environment as plain data, so that a checkpoint needs no pickle of code."""

from typing import Any

import gymnasium
import numpy as np
import torch

# What every instance has alike, made anew with the environment: descriptions, and windows that training never opens.
_REBUILT = {"env", "spec", "_cached_spec", "metadata", "_metadata", "action_space", "observation_space"}
_REBUILT |= {"_action_space", "_observation_space", "_reward_range", "_saved_kwargs", "screen", "clock", "surf"}
_REBUILT_TYPES = {"MjModel", "MujocoRenderer"}
_PLAIN = (bool, int, float, str, type(None))


def snapshot(env: gymnasium.Env[Any, Any]) -> tuple[list[dict[str, Any]], str]:
    """Copy the attributes of `env` and of each of its wrappers, outermost first.

    Returns the layers and "" or, where an attribute is not plain data (numbers, strings, arrays, containers of these, a
    NumPy generator, MuJoCo's MjData), a sentence that names the first such attribute: then the environment cannot be
    saved.
    """
    layers = []
    for layer in _layers(env):
        saved = {}
        for name, value in vars(layer).items():
            if name in _REBUILT or type(value).__name__ in _REBUILT_TYPES:
                continue
            try:
                saved[name] = _encode(value)
            except TypeError:
                kind = type(value).__name__
                return [], f"{type(layer).__name__}.{name} is a {kind}, which a checkpoint cannot hold"
        layers.append(saved)
    return layers, ""


def restore(env: gymnasium.Env[Any, Any], layers: list[dict[str, Any]]) -> None:
    """Put back what `snapshot` copied into an environment made in the same way."""
    for layer, saved in zip(_layers(env), layers, strict=True):
        for name, value in saved.items():
            if isinstance(value, tuple) and value[0] == "mujoco":
                _fill(getattr(layer, name), value[1])
            else:
                setattr(layer, name, _decode(value))


def _layers(env: gymnasium.Env[Any, Any]) -> list[gymnasium.Env[Any, Any]]:
    layers = [env]
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        layers.append(env)
    return layers


def _encode(value: Any) -> Any:  # noqa: ANN401 - the types are what this function sorts out
    """Plain data as what torch.load(weights_only=True) reads back; each container tagged with its kind."""
    if type(value) in _PLAIN:  # exactly: numpy.float64 is a float too, and weights_only refuses it
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return ("array", torch.from_numpy(value.copy()))
    if isinstance(value, np.generic):
        return ("scalar", str(value.dtype), value.item())
    if isinstance(value, np.random.Generator) and isinstance(value.bit_generator, np.random.PCG64):
        return ("generator", value.bit_generator.state)
    if type(value).__name__ == "MjData":
        arrays = {name: getattr(value, name) for name in dir(value) if name[0] != "_"}
        arrays = {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}
        return ("mujoco", {"time": value.time} | {name: _encode(array) for name, array in arrays.items()})
    if type(value) in (list, tuple):
        return (type(value).__name__, [_encode(item) for item in value])
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return ("dict", {key: _encode(item) for key, item in value.items()})
    raise TypeError(f"{type(value).__name__} is not plain data")


def _fill(data: Any, saved: dict[str, Any]) -> None:  # noqa: ANN401 - an MjData
    """Put the saved arrays back, derived ones too: mj_getState alone would leave positions of bodies to be computed,
    while MuJoCo lets them lag a substep behind, and Ant's reward reads them. Contacts are found anew in each step.
    """
    data.time = saved["time"]
    for name, value in saved.items():
        if name != "time" and getattr(data, name).shape == value[1].shape:
            getattr(data, name)[...] = value[1].numpy()


def _decode(value: Any) -> Any:  # noqa: ANN401
    if not isinstance(value, tuple):
        return value
    match value:
        case ("array", tensor):
            return tensor.numpy().copy()
        case ("scalar", dtype, number):
            return np.dtype(dtype).type(number)
        case ("generator", state):
            generator = np.random.Generator(np.random.PCG64())
            generator.bit_generator.state = state
            return generator
        case ("list", items):
            return [_decode(item) for item in items]
        case ("tuple", items):
            return tuple(_decode(item) for item in items)
        case ("dict", items):
            return {key: _decode(item) for key, item in items.items()}
    raise TypeError(f"unknown tag {value[0]!r} in a saved environment")
