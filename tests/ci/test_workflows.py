"""The GitHub workflows cannot run here, so what they call, name and rely on is held instead."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
WORKFLOWS = sorted((REPO / ".github/workflows").glob("*.yml"))
TEXTS = [path.read_text() for path in WORKFLOWS]
VERSION = re.search(r'^version = "(.+)"$', (REPO / "pyproject.toml").read_text(), re.MULTILINE)[1]


def release_notes(tag):
    return subprocess.run([REPO / "scripts/release_notes.sh", tag], text=True, capture_output=True, check=False)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_its_commit_and_says_its_version(path):
    used = re.findall(r"uses: (.+)", path.read_text())
    assert used
    for action in used:
        if own := re.match(r"\$/(\S+)", action):
            assert (REPO / own[1]).exists()
        else:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_the_same_action_has_the_same_commit_everywhere():
    pins = {}
    for action, commit in re.findall(r"uses: ([\w./-]+)@(\S+)", "\n".join(TEXTS)):
        pins.setdefault(action, set()).add(commit)
    assert {action: commits for action, commits in pins.items() if len(commits) > 1} == {}


def test_what_the_workflows_call_is_there():
    targets = re.findall(r"^([a-z-]+):.*## ", (REPO / "Makefile").read_text(), re.MULTILINE)
    called = {target for text in TEXTS for target in re.findall(r"run: make ([a-z-]+)", text)}
    assert {"test", "audit"} <= called <= set(targets)
    scripts = {script for text in TEXTS for script in re.findall(r"\b((?:scripts|tests/container)/\w+\.sh)", text)}
    assert {"scripts/release_notes.sh", "scripts/image.sh"} <= scripts
    assert all(os.access(REPO / script, os.X_OK) for script in scripts)


def test_the_tag_of_this_version_has_notes():
    assert release_notes(f"v{VERSION}").stdout.startswith("* ")


@pytest.mark.parametrize("tag", [VERSION, f"v{VERSION}.1", "v0.0.0"])
def test_another_tag_is_refused_with_the_version_that_is_here(tag):
    done = release_notes(tag)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"pyproject.toml says version {VERSION}" in done.stderr


def test_every_variant_is_released_for_the_platforms_of_the_bake_file_and_built_every_week():
    bake = baked(RELEASE="1")
    built = {name: {platform.removeprefix("linux/") for platform in bake[name]["platforms"]} for name in bake}
    release, weekly = ((REPO / f".github/workflows/{name}.yml").read_text() for name in ("release", "weekly"))
    released = {}
    for target, arch in re.findall(r"target: (\w+), arch: (\w+)", release):
        released.setdefault(target, set()).add(arch)
    assert released == built
    names = {name: bake[name]["tags"][0] for name in bake}
    assert {t: f"pytorch-cuda-rl:{i}" for t, i in re.findall(r"target: (\w+), image: (\S+)", weekly)} == names


def test_a_release_s_names_are_those_of_home_with_registry_and_version():
    at_home = baked()
    assert at_home["torch2_13"]["tags"] == ["pytorch-cuda-rl:torch2.13", "pytorch-cuda-rl:latest"]
    assert at_home["torch2_6"]["args"]["RL_IMAGE"] == "pytorch-cuda-rl:torch2.6"
    released = baked(REGISTRY="ghcr.io/someone/", VERSION="1.2.3")["torch2_6"]
    ours = "ghcr.io/someone/pytorch-cuda-rl"
    assert released["tags"] == [f"{ours}:torch2.6", f"{ours}:torch2.6-1.2.3"]
    assert released["args"]["RL_IMAGE"] == f"{ours}:torch2.6-1.2.3"


def test_every_base_stands_in_a_from_line_with_its_digest():
    """Only there does Dependabot find it."""
    bases = re.findall(r"^FROM nvidia/cuda:\S+@sha256:[0-9a-f]{64} AS (\S+)$", (REPO / "Dockerfile").read_text(), re.M)
    assert {target["args"]["BASE_IMAGE"] for target in baked().values()} == set(bases)


def test_every_vulnerability_passed_over_has_a_reason():
    lines = (REPO / "locks/exceptions.txt").read_text().splitlines()
    entries = [line for line in lines if not line.startswith("#")]
    assert [line for line in entries if not re.fullmatch(r"(PYSEC|CVE|GHSA)-\S+  # \S.+", line)] == []


def baked(**variables):
    """The targets of docker-bake.hcl, as they would be built; no engine is asked."""
    if not shutil.which("docker"):
        pytest.skip("no docker command here, whose buildx reads docker-bake.hcl")
    clean = {name: value for name, value in os.environ.items() if name not in ("BASE_IMAGE", "RELEASE")}
    command = ["docker", "buildx", "bake", "--file", str(REPO / "docker-bake.hcl"), "--print"]
    done = subprocess.run(command, env=clean | variables, text=True, capture_output=True, check=True)
    return json.loads(done.stdout)["target"]
