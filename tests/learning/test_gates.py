"""Every algorithm reaches its published return: the table of benchmarks/learning.py, seeds 0 to 4."""

import pytest

from benchmarks.learning import GATES, heading, line, missed, rows

pytestmark = [pytest.mark.learning, pytest.mark.timeout(3_600)]


@pytest.fixture(scope="module")
def show(request):
    """Prints to the terminal past pytest's capture, the table's heading first."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def show(text):
        with capture.global_and_fixture_disabled():
            print(f"\n{text}", flush=True)

    show(heading())
    return show


@pytest.mark.parametrize("name", GATES)
def test_the_return_of_every_seed_reaches_the_gates_bound(name, show):
    gate = GATES[name]
    table = rows(gate)
    show(line(name, gate, table))
    assert missed(gate, table) == 0, table
