"""The examples in docstrings give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
MODULES = [
    ".".join(path.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(REPO.glob("rl/**/*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_give_what_they_say(module):
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert failed == 0
    assert tried > 0


def test_the_maths_is_shown_by_examples():
    assert {"rl.returns", "rl.networks", "rl.normalize", "rl.envs"} <= set(MODULES)
