"""An image on top of ours: deploy/derived is built as it stands, and used."""

import re

import pytest
from workbench import IMAGE, REPO, docker, new_name, program_on_page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # the build takes six minutes: pip looks for a ray that fits


@pytest.fixture(scope="module")
def derived():
    tag = new_name()
    docker("build", "--build-arg", f"BASE={IMAGE}", "--tag", tag, str(REPO / "deploy/derived"), timeout=1000)
    yield tag
    docker("rmi", "--force", tag)


def inside(image, *command):
    return docker("run", "--rm", "-e", "GPU_CHECK=off", image, *command, timeout=300).stdout


def test_the_added_packages_work_for_its_user_and_torch_is_the_images_own(derived):
    program = (
        "import gymnasium, ray, torch; e = gymnasium.make('LunarLander-v3'); e.reset(seed=0); e.step(0);"
        "print(torch.__version__.split('+')[0], torch.version.cuda is not None)"
    )
    assert inside(derived, "python", "-W", "ignore", "-c", program) == f"{IMAGE.rpartition('torch')[2]}.0 True\n"
    assert inside(derived, "id", "-un") == "rl\n"


def test_its_library_is_found_and_its_environment_trains(derived):
    line = ["rl", "train", "ppo", "--env-id", "mylib:Corridor-v0", "--total-steps", "2048", "--num-envs", "4"]
    assert "finished" in inside(derived, "bash", "-c", f"{' '.join(line)} && cat /workspace/models/runs/*/status.json")


def test_rllib_learns_in_it_as_the_page_says(derived):
    script = f"cat >with_rllib.py <<'END'\n{program_on_page('libraries.md', 'with_rllib.py')}END\npython with_rllib.py"
    options = ("--rm", "--shm-size=1g", "-e", "GPU_CHECK=off")
    printed = docker("run", *options, derived, "bash", "-c", script, timeout=600).stdout
    returns = [float(number) for number in re.findall(r"return ([\d.]+)", printed)]
    assert len(returns) == 15
    assert returns[-1] > 100 > returns[0]
