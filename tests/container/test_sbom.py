"""`make sbom`: the list of what is in an image names every wheel of its lock and the Debian packages, with versions."""

import json
import re

import pytest
from workbench import IMAGE, REPO, docker, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # syft unpacks six gigabytes
VARIANT = IMAGE.rpartition(":")[2]


@pytest.fixture(scope="module")
def packages():
    """Kind (pypi, deb), name and version of each."""
    run("scripts/sbom.sh", VARIANT, cwd=REPO, timeout=1100)
    found = set()
    for package in json.loads((REPO / f"build/sbom-{VARIANT}.spdx.json").read_text())["packages"]:
        for reference in package.get("externalRefs", []):
            if kind := re.match(r"pkg:(pypi|deb)/", reference["referenceLocator"]):
                found.add((kind[1], spelled(package["name"]), package["versionInfo"].split("+")[0]))
    return found


def spelled(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(*command):
    return docker("run", "--rm", "--network", "none", "-e", "GPU_CHECK=off", IMAGE, *command).stdout


def test_every_wheel_of_the_lock_is_listed_with_its_version(packages):
    lock = (REPO / f"locks/torch-{VARIANT.removeprefix('torch')}.txt").read_text()
    here = {spelled(package["name"]) for package in json.loads(installed("pip", "list", "--format", "json"))}
    wheels = {("pypi", spelled(name), version) for name, version in re.findall(r"^([\w.-]+)==([^ +]+)", lock, re.M)}
    wheels = {wheel for wheel in wheels if wheel[1] in here}  # the lock has those of other systems too
    assert ("pypi", "torch") in {wheel[:2] for wheel in wheels}
    assert wheels - packages == set()


def test_rl_itself_and_the_debian_packages_are_listed_with_their_versions(packages):
    listed = installed("dpkg-query", "--show", "--showformat", r"${Package} ${Version}\n").splitlines()
    debian = {("deb", spelled(name), version.split("+")[0]) for name, version in map(str.split, listed)}
    assert "openssh-server" in {name for _, name, _ in debian}
    assert debian - packages == set()
    assert ("pypi", "pytorch-cuda-rl") in {package[:2] for package in packages}
