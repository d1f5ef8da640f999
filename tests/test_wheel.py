"""The wheel of the package, where a user installs it: in an empty environment, outside of the repository."""

import json
import os
import subprocess
import sys

import pytest
from workbench import WORKING_TREE, run

PROGRAM = """
from rl import ppo, train
print(train.train(train.RunConfig(total_steps=2048), ppo.Config(), progress=False).state)
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)  # pip brings torch
def test_the_wheel_gives_an_empty_environment_a_working_rl(tmp_path):
    sources, venv, work = tmp_path / "sources", tmp_path / "venv", tmp_path / "work"
    for folder in (sources, work):
        folder.mkdir()
    subprocess.run(f"{WORKING_TREE} | tar x -C {sources}", shell=True, check=True)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(sources))
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", str(venv))
    run(f"{venv}/bin/pip", "install", "--quiet", str(wheel), timeout=1000)

    alone = {"HOME": str(tmp_path), "PATH": f"{venv}/bin:{os.environ['PATH']}"}
    run("rl", "train", "dqn", "--stop-at-return", "195", "--seed", "1", cwd=work, env=alone)
    (trained,) = work.glob("models/runs/*")
    assert json.loads((trained / "status.json").read_text())["reason"].endswith("reached 195")
    assert (trained / "curve.png").is_file()
    assert "over 5 episodes" in run("rl", "eval", str(trained), "--episodes", "5", cwd=work, env=alone).stdout
    assert run("python", "-c", PROGRAM, cwd=work, env=alone).stdout == "finished\n"
    assert run("rl", "doctor", cwd=work, env=alone, check=False).returncode in (0, 1, 3)
