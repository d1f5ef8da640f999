"""The field's libraries in the image, by the very programs of docs/libraries.md; RLlib's is in test_derived.py."""

import re

import pytest
from workbench import IMAGE, docker, program_on_page


def follow(folders, program, *lines, **options):
    """What `lines` print in the work folder, where the page's program lies."""
    (folders.code / program).write_text(program_on_page("libraries.md", program))
    script = " && ".join(lines)
    run = ("run", "--rm", "-e", "GPU_CHECK=off", *folders.arguments, IMAGE, "bash", "-c", script)
    return docker(*run, timeout=280, **options).stdout


@pytest.mark.slow
def test_stable_baselines3_learns_and_its_curve_is_among_the_runs(folders):
    printed = follow(folders, "with_sb3.py", "pip install --quiet stable-baselines3", "python with_sb3.py")
    assert float(re.search(r"return ([\d.]+)", printed)[1]) >= 195
    assert len([*folders.models.glob("runs/sb3/PPO_1/events.*")]) == 1
    assert (folders.models / "cartpole-sb3.zip").is_file()


def test_a_script_of_one_file_learns_and_its_curve_is_among_the_runs(folders):
    assert "solved after" in follow(folders, "single_file.py", "python single_file.py")
    assert len([*folders.models.glob("runs/CartPole-v1-single-file-*/events.*")]) == 1


def test_an_environment_in_gymnasiums_wrappers_learns(folders):
    line = "rl train ppo --env-id positions_only:make_env --stop-at-return 195"
    assert "reached 195" in follow(folders, "positions_only.py", line)
