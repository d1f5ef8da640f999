"""Vector environments behind one contract: `obs`, `step(actions) -> Transition`, `take_episodes()`, and exact state.

The only place that reads gymnasium's `infos` or knows of autoreset modes.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.wrappers import PassiveEnvChecker

from rl import entry_point
from rl.envs.contract import Envs, Episode
from rl.envs.device import DeviceEnvs
from rl.envs.gymnasium_envs import GymnasiumEnvs, vectorize
from rl.envs.halves import Halves
from rl.envs.native import NativeEnvs
from rl.envs.workers import PROCESSES_WORK
from rl.errors import RunError, UsageError
from rl.native_envs import NATIVE

__all__ = [
    "BACKENDS",
    "PROCESSES_WORK",
    "DeviceEnvs",
    "Envs",
    "Episode",
    "GymnasiumEnvs",
    "Halves",
    "NativeEnvs",
    "make",
    "special_backend",
    "vectorize",
]

BACKENDS = ("auto", "native", "sync", "async", "ale")
EXTRAS = {"gymnasium.envs.mujoco": "mujoco", "gymnasium.envs.box2d": "box2d"}  # by gymnasium's package


def make(
    env_id: str,
    num_envs: int,
    seed: int,
    *,
    backend: str = "auto",
    device: str = "cpu",
    training: bool = True,
    render: bool = False,
) -> Envs:
    """Make `num_envs` environments, seeded apart from one another by `seed`.

    `env_id` is a registered id, `module:Name-v0` where importing the module registers it, or `module:make_env`, a
    function (or class) that makes one environment; to be filmed it must take `render_mode`. `backend`: `native` steps
    a batch of arrays (native_envs.py), in NumPy or, to train on a GPU, by torch on that GPU; `sync` steps gymnasium
    environments in turn, `async` each of them in a process of its own (worth it where one step takes a millisecond or
    more), `ale` Atari games in threads; `auto` takes ale for ALE/ ids, else native where there is one, else sync: what
    is faster, backend.py measures. Without `training`, Atari games neither cut rewards to their sign nor end with the
    loss of a life. With `render` they can be filmed: native ones are gymnasium's then.

    Raises UsageError for an unknown id or backend and for spaces that no agent here can use, RunError where a package
    is missing.

    >>> import torch
    >>> train_envs = make("CartPole-v1", num_envs=2, seed=0)
    >>> transition = train_envs.step(torch.tensor([0, 1]))
    >>> transition.obs.shape, transition.rewards
    (torch.Size([2, 4]), tensor([1., 1.]))
    """
    if num_envs < 1:
        raise UsageError(f"--num-envs {num_envs}: at least 1 environment is needed")
    if backend not in BACKENDS:
        raise UsageError(f"--backend {backend}: choose one of {', '.join(BACKENDS)}")
    if env_id.startswith("ALE/") != (backend == "ale") and backend != "auto":
        raise UsageError(f"--backend {backend} --env-id {env_id}: Atari games are ALE/Name-v5 and need --backend ale")
    special = special_backend(env_id)
    if special == "ale":
        return _make_ale(env_id, num_envs, seed, device, training)
    if backend == "native" and special != "native":
        raise UsageError(f"--backend native knows {', '.join(NATIVE)}, not {env_id}: use --backend sync")
    if backend in ("auto", "native") and special == "native" and not render:
        if training and device.startswith("cuda"):  # GPU only
            return DeviceEnvs(NATIVE[env_id](), num_envs, seed, device)
        return NativeEnvs(NATIVE[env_id](), num_envs, seed, device)
    module, _, name = env_id.rpartition(":")
    filmed: dict[str, Any] = {"render_mode": "rgb_array"} if render else {}
    spec = None
    try:
        if module and (module == "__main__" or hasattr(importlib.import_module(module), name)):
            maker = functools.partial(_checked, entry_point.load(env_id, "--env-id"), **filmed)
        else:
            spec = gymnasium.spec(name)
            maker = functools.partial(gymnasium.make, spec, **filmed)
        envs = vectorize([maker] * num_envs, processes=backend == "async")
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        made_by = str(spec.entry_point) if spec else ""
        if isinstance(error, (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError)):
            for package, extra in EXTRAS.items():
                if made_by.startswith(package):
                    raise _missing(env_id, extra) from error
        raise UsageError(f"--env-id {env_id}: {error}".splitlines()[0]) from error
    return GymnasiumEnvs(envs, seed, device)


def special_backend(env_id: str) -> str:
    """The backend that is made for this very environment, ale or native; "" where it is one of gymnasium's."""
    if env_id.startswith("ALE/"):
        return "ale"
    return "native" if env_id in NATIVE else ""


def _checked(make_env: Callable[..., gymnasium.Env[Any, Any]], **filmed: str) -> gymnasium.Env[Any, Any]:
    """One environment of the user's own, with the checks that gymnasium.make adds to those it knows."""
    return PassiveEnvChecker(make_env(**filmed))


def _make_ale(env_id: str, num_envs: int, seed: int, device: str, training: bool) -> Envs:
    try:
        from rl.envs.ale import AleEnvs  # imports ale_py, which registers its games
    except ImportError as error:
        raise _missing(env_id, "atari") from error
    try:
        game = gymnasium.spec(env_id).kwargs["game"]
    except gymnasium.error.Error as error:
        raise UsageError(f"--env-id {env_id}: {error}".splitlines()[0]) from error
    return AleEnvs(game, num_envs, seed, device, training=training)


def _missing(env_id: str, extra: str) -> RunError:
    return RunError(f"--env-id {env_id}: a package is missing here: pip install 'pytorch-cuda-rl[{extra}]'")
