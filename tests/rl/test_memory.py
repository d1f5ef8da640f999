import pytest

from rl.errors import RunError
from rl.memory import available_bytes, check_fits

GIB = 2**30


@pytest.fixture
def machine(tmp_path):
    """Writes files of a fake root: 16 GiB of the host's memory are available."""

    def write(**files):
        for name, text in {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {16 * 2**20} kB\n", **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def v2(limit: str, usage: int, inactive: int = 0) -> dict[str, str]:
    folder = "sys/fs/cgroup/memory."
    return {
        f"{folder}max": limit,
        f"{folder}current": f"{usage}\n",
        f"{folder}stat": f"anon 1\ninactive_file {inactive}\n",
    }


def test_without_a_limit_the_host_decides(machine):
    assert available_bytes("cpu", machine()) == 16 * GIB
    assert available_bytes("cpu", machine(**v2("max\n", GIB))) == 16 * GIB


def test_the_containers_limit_counts_and_not_the_hosts_memory(machine):
    assert available_bytes("cpu", machine(**v2(f"{2 * GIB}\n", GIB // 2))) == 3 * GIB // 2


def test_file_cache_that_the_kernel_gives_back_is_available(machine):
    assert available_bytes("cpu", machine(**v2(f"{2 * GIB}\n", 2 * GIB, inactive=GIB))) == GIB


def test_a_limit_above_the_hosts_memory_changes_nothing(machine):
    assert available_bytes("cpu", machine(**v2(f"{64 * GIB}\n", 0))) == 16 * GIB


def test_the_older_cgroups_are_read_too(machine):
    folder = "sys/fs/cgroup/memory/memory."
    files = {
        f"{folder}limit_in_bytes": f"{GIB}",
        f"{folder}usage_in_bytes": "0",
        f"{folder}stat": "total_inactive_file 0",
    }
    assert available_bytes("cpu", machine(**files)) == GIB


def test_what_does_not_fit_is_refused_with_figures_and_a_remedy():
    with pytest.raises(RunError, match=r"^the replay needs 1048576.00 GiB, and [\d.]+ GiB are free here: buy memory$"):
        check_fits(2**50, "cpu", "the replay", "buy memory")
    check_fits(1, "cpu", "a byte", "")
