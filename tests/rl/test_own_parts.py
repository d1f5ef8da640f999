"""Environments and networks of the user's own, by a function: from Python, by flag, and in a resumed run."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import scripted_envs
from scripted_envs import make_narrow, make_short_cartpole

from rl import a2c, a3c, dqn, ppo, sac
from rl.__main__ import main
from rl.errors import UsageError
from rl.train import RunConfig, load_agent, train

RUN = {"num_envs": 2, "total_steps": 64, "eval_episodes": 1, "log_interval": 16}
CONFIGS = [
    dqn.Config(learning_starts=16, batch_size=4),
    ppo.Config(num_steps=16),
    a2c.Config(),
    a3c.Config(num_workers=2),
    sac.Config(learning_starts=16, batch_size=4),
]


def rl(*arguments):
    """Run the command in this process; returns its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["rl", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    return ended.value.code


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__module__)
def test_every_algorithm_trains_a_network_made_by_a_function(config, tmp_path):
    env_id = "Pendulum-v1" if isinstance(config, sac.Config) else "CartPole-v1"
    run = RunConfig(env_id, run_dir=tmp_path / "run", **RUN)
    train(run, config, make_network=make_narrow, progress=False)
    _, _, content = load_agent(tmp_path / "run", "cpu")
    weights = {name: value for name, value in content["agent"].items() if name in ("network", "actor")}
    assert any(value.shape[0] == 7 for state in weights.values() for value in state.values())
    assert content["counters"]["step"] >= 64


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_an_environment_made_by_a_function_trains_is_evaluated_and_resumed_by_the_command(backend, tmp_path, capsys):
    run = RunConfig(backend=backend, run_dir=tmp_path / "run", **RUN)
    result = train(run, dqn.Config(), make_env=make_short_cartpole, progress=False)
    assert max(result.counters.recent_returns) <= 20
    assert rl("resume", tmp_path / "run", "--total-steps", 96) == 0
    assert rl("eval", tmp_path / "run", "--episodes", 2, "--json") == 0
    assert max(json.loads(capsys.readouterr().out.splitlines()[-1])["returns"]) <= 20


def test_both_can_be_given_as_flags(tmp_path):
    names = "--env-id", "scripted_envs:make_short_cartpole", "--network", "scripted_envs:make_narrow"
    assert rl("train", "ppo", *names, "--total-steps", 2048, "--run-dir", tmp_path / "run") == 0
    with (tmp_path / "run/metrics.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)][-1] == "2048"


def test_a_class_will_do_as_a_function(tmp_path):
    run = RunConfig(run_dir=tmp_path / "run", **RUN)
    assert train(run, ppo.Config(num_steps=16), make_env=scripted_envs.Corridor, progress=False).state == "finished"


def test_what_a_resumed_run_could_not_find_again_is_refused(tmp_path):
    run = RunConfig(run_dir=tmp_path / "run", **RUN)
    with pytest.raises(UsageError, match="make_env: give a function that stands at the top level"):
        train(run, dqn.Config(), make_env=lambda: make_short_cartpole())
    with pytest.raises(UsageError, match="make_network: give a function that stands at the top level"):
        train(run, dqn.Config(), make_network=lambda space, outputs: make_narrow(space, outputs))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flag", "name", "message"),
    [
        ("--network", "scripted_envs:make_wrong", r"for observations \[2, 4\] it must give \[2, 2\], not \[2, 3\]"),
        ("--network", "scripted_envs:make_nothing", "must return a torch.nn.Module, not None"),
        ("--network", "scripted_envs:make_typo", "module scripted_envs has no function make_typo"),
        ("--network", "make_network", "give module:function"),
        ("--network", "no_such_module:make_network", "give module:function"),
    ],
)
def test_a_function_that_does_not_fit_is_said_before_the_run_begins(flag, name, message, tmp_path, capsys):
    assert rl("train", "dqn", flag, name, "--run-dir", tmp_path / "run") == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_a_run_of_a_script_goes_on_in_the_script_and_elsewhere_says_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from scripted_envs import make_short_cartpole\n"
        "from rl import dqn, train\n"
        "def make_env():\n"
        "    return make_short_cartpole()\n"
        "run = train.RunConfig(total_steps=64, eval_episodes=1, run_dir=Path('run'))\n"
        "if len(sys.argv) > 1:\n"
        "    print(train.resume(Path('run'), {'total_steps': 128}).counters.step)\n"
        "else:\n"
        "    train.train(run, dqn.Config(), make_env=make_env)\n"
    )

    def python(*arguments):
        path = {"PYTHONPATH": f"{Path(scripted_envs.__file__).parent}:{Path(__file__).parents[2]}"}
        return subprocess.run([sys.executable, *arguments], cwd=tmp_path, env=path, capture_output=True, text=True)

    assert python("script.py").returncode == 0
    assert python("script.py", "go on").stdout.splitlines()[-1] == "128"
    elsewhere = python("-m", "rl", "eval", "run")
    assert elsewhere.returncode == 2
    assert "it was defined in a notebook or script. Go on there" in elsewhere.stderr
