"""Dependencies run one way only: commands → train → agents → pure parts."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

RL = Path(__file__).parents[2] / "rl"
LAYERS = [
    {"__main__"},
    {"bench", "bench_amp", "diagnose", "mlflow_model"},
    {"flags", "train"},
    {"plot"},
    {"dqn", "ppo", "sac", "loop", "a3c_workers"},
    {"a3c"},  # the one agent made of another
    {"a2c"},
    {"failures", "sampling"},
    {"backend", "evaluate", "video", "metrics", "run_config", "stop_signals"},
    {"tracking"},
    {"run_folder"},
    {"checkpoint", "envs"},
    {"networks", "returns", "native_envs", "normalize", "snapshot", "validate"},
    {"agent"},
    {"buffers"},
    {"accelerate", "frames", "gpu", "memory", "staging"},
    {"graph", "optimizers", "random_state"},
    {"entry_point"},
    {"transition", "errors"},
]
AGENTS = {"a2c", "a3c", "dqn", "ppo", "sac"}


def imports(module: str) -> set[str]:
    """Other modules of rl that a module imports, anywhere in it; a package is one module."""
    found = set()
    files = [RL / f"{module}.py"] if (RL / f"{module}.py").exists() else sorted((RL / module).glob("*.py"))
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text()))):
        if isinstance(node, ast.ImportFrom) and node.module == "rl":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rl."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("rl.")}
    return found - {module}


def test_every_module_has_its_layer():
    modules = {path.stem for path in RL.glob("*.py")} | {path.parent.name for path in RL.glob("*/__init__.py")}
    assert modules - {"__init__", "doctor"} == set().union(*LAYERS)


@pytest.mark.parametrize("layer", range(len(LAYERS)))
def test_a_layer_imports_only_from_layers_below_it(layer):
    below = set().union(*LAYERS[layer + 1 :]) | ({"doctor"} if layer == 0 else set())
    for module in LAYERS[layer]:
        assert imports(module) <= below, module


@pytest.mark.parametrize("agent", sorted(AGENTS))
def test_an_agent_knows_nothing_of_environments_checkpoints_or_metrics(agent):
    others = AGENTS - ({"a2c"} if agent == "a3c" else set())
    assert not imports(agent) & {"envs", "native_envs", "checkpoint", "metrics", "train", "evaluate", *others}


def test_the_doctor_imports_nothing_else_of_the_package_and_no_torch():
    code = "import sys, rl.doctor; print([m for m in sys.modules if m.split('.')[0] == 'torch' or m.startswith('rl.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert all(name.startswith("rl.doctor") for name in ast.literal_eval(done.stdout))


@pytest.mark.parametrize("path", sorted(RL.rglob("*.py")), ids=lambda path: str(path.relative_to(RL)))
def test_no_file_is_longer_than_300_lines(path):
    assert len(path.read_text().splitlines()) <= 300
