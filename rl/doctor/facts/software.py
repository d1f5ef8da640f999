"""The software in here, from its files: nothing of it is imported."""

import ast
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path

from rl.doctor.facts.files import text_of
from rl.doctor.schema import Kernel, Tools, TorchBuild, decode


def torch_build() -> TorchBuild:
    """Version and CUDA of the installed torch, from the assignments in its version.py."""
    spec = PathFinder.find_spec("torch")
    if spec is None or not spec.origin:
        return TorchBuild()
    values: dict[str, object] = {"installed": True}
    try:
        tree = ast.parse(text_of(Path(spec.origin).with_name("version.py")))
    except (SyntaxError, ValueError):  # a torn install
        return TorchBuild(installed=True)
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id.replace("__version__", "version")] = value.value
    build: TorchBuild = decode(TorchBuild, values)
    return build


def tools(environment: Mapping[str, str]) -> Tools:
    """See `Tools`."""
    return Tools()


def kernels() -> tuple[Kernel, ...]:
    """The notebook kernels that are not the doctor's own Python."""
    return ()
