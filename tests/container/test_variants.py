"""Inside each variant's image: the fast suite on its own Python and torch, CartPole's gate, the doctor's view."""

import json
import subprocess

import pytest
from workbench import IMAGE, WORKING_TREE, docker

OTHERS = ["pytorch-cuda-rl:torch2.7", "pytorch-cuda-rl:torch2.6"]
# Of requirements-dev.txt: what lints, documents and drives browsers, and half a gigabyte of trackers.
NOT_NEEDED = "-r|anchore|furo|hadolint|jactionlint|mlflow|mypy|myst|pip-audit|playwright|ruff|sphinx|uv|wandb|zizmor"
VARIANTS = [IMAGE, *(pytest.param(image, marks=pytest.mark.slow) for image in OTHERS if image != IMAGE)]


def suite_in(image, *arguments):
    """The last line of pytest, run in the image on a copy of this working tree."""
    script = (
        f"mkdir /tmp/repo && cd /tmp/repo && tar x && grep -vE '^({NOT_NEEDED})' requirements-dev.txt >/tmp/dev.txt"
        ' && pip install --quiet --requirement /tmp/dev.txt && pytest -q "$@"'
    )
    container = ["docker", "run", "--rm", "--interactive", "--shm-size=1g", "-e", "GPU_CHECK=off", image]
    with subprocess.Popen(["bash", "-c", WORKING_TREE], stdout=subprocess.PIPE) as archive:
        done = subprocess.run(
            [*container, "bash", "-c", script, "bash", *arguments],
            stdin=archive.stdout,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("image", VARIANTS)
def test_the_fast_suite_passes_inside_and_cartpole_is_solved(image, capsys):
    passed = suite_in(image, "-n", "auto", "-m", "not learning and not slow", "tests/rl", "tests/notebooks")
    solved = suite_in(image, "tests/learning/test_cartpole.py")
    with capsys.disabled():
        print(f"\ninside {image}: {passed}; {solved}")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_notebook_runs_from_top_to_bottom_inside(capsys):
    passed = suite_in(IMAGE, "-m", "slow", "tests/notebooks")
    with capsys.disabled():
        print(f"\ninside {IMAGE}: {passed}")


@pytest.mark.parametrize("image", VARIANTS)
def test_the_doctor_knows_the_variant(image):
    script = "rl doctor --save-facts /tmp/facts.json >/tmp/said; cat /tmp/facts.json"
    facts = json.loads(docker("run", "--rm", "-e", "GPU_CHECK=off", image, "bash", "-c", script).stdout)
    built_for = facts["torch_build"]["image"]
    assert facts["torch_build"]["version"].split("+")[0] == built_for
    assert image.endswith(f"torch{built_for.rpartition('.')[0]}")
