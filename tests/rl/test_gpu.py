"""GPU figures beside the training curves, from the stub of NVML in tests/stubs; each in a process of its own, since the
loader reads its path when one starts."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl import ppo
from rl.run_config import RunConfig
from rl.train import train

REPO = Path(__file__).parents[2]
UUID = "00000000-0000-0000-0000-000000000001"  # of the stub's second GPU


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stubs")
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", folder / "libnvidia-ml.so.1"]
    subprocess.run([*command, REPO / "tests/stubs/libnvidia_ml.c"], check=True)
    return folder


def python(code: str, **variables: object) -> str:
    """What `code` prints, with `figures` open for the stub's second GPU."""
    begin = f"import json\nfrom rl.gpu import GpuFigures\nfigures = GpuFigures('cpu')\nfigures.open('{UUID}')\n"
    environment = os.environ | {"PYTHONPATH": str(REPO)} | {name: str(value) for name, value in variables.items()}
    done = subprocess.run(
        [sys.executable, "-c", begin + code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def read(stubs, **variables: object) -> dict[str, float]:
    return json.loads(python("print(json.dumps(figures.read()))", LD_LIBRARY_PATH=stubs, STUB_GPU_COUNT=2, **variables))


def test_each_figure_is_read_in_its_unit(stubs):
    assert read(stubs, STUB_MEMORY_USED=3072) == {
        "gpu/utilization_percent": 42.0,
        "gpu/memory_gib": 3.0,
        "gpu/power_watts": 123.0,
        "gpu/temperature_celsius": 40.0,
        "gpu/throttled": 0.0,
    }


def test_the_gpu_is_found_by_its_uuid_and_no_other_is_taken_for_it(stubs):
    assert "gpu/power_watts" in read(stubs, STUB_FAIL="nvmlDeviceGetPowerUsage=15@0")  # the first GPU is lost
    assert "gpu/power_watts" not in read(stubs, STUB_FAIL="nvmlDeviceGetPowerUsage=15@1")
    assert json.loads(python("print(json.dumps(figures.read()))", LD_LIBRARY_PATH=stubs, STUB_GPU_COUNT=1)) == {}


@pytest.mark.parametrize(
    ("bits", "throttled"),
    [(0x1, 0), (0x2, 0), (0x4, 1), (0x20, 2), (0x40 | 0x8, 2), (0x8, 3), (0x80, 3), (0x4 | 0x80, 3)],
    ids=["idle", "set clocks", "power cap", "heat", "heat, by hardware", "hardware", "power brake", "cap and brake"],
)
def test_the_reason_of_slow_clocks_is_one_number(stubs, bits, throttled):
    assert read(stubs, STUB_CLOCK_REASONS=bits)["gpu/throttled"] == throttled


def test_a_call_that_fails_costs_its_own_figure_only(stubs):
    left = read(stubs, STUB_FAIL="nvmlDeviceGetPowerUsage=15,nvmlDeviceGetTemperature=999")
    assert set(left) == {"gpu/utilization_percent", "gpu/memory_gib", "gpu/throttled"}


def test_without_nvml_there_are_no_figures_and_no_error(stubs, tmp_path):
    assert read(stubs, STUB_NVML_INIT=18) == {}
    assert read(tmp_path) == {}  # no such library


def test_a_second_reading_waits_a_second(stubs):
    code = "print(len(figures.read()), len(figures.read()))\nfigures.read_at -= 1.0\nprint(len(figures.read()))\n"
    assert python(code, LD_LIBRARY_PATH=stubs, STUB_GPU_COUNT=2).split() == ["5", "0", "5"]


TRAIN = """
from pathlib import Path
from rl import loop, ppo
from rl.run_config import RunConfig
from rl.train import train
loop.GpuFigures = lambda device: figures  # as if the stub's GPU trained
run = RunConfig(run_dir=Path({path!r}), total_steps=512, num_envs=4, log_interval=128, eval_episodes=0, device="cpu")
print(train(run, ppo.Config(num_steps=16, num_epochs=1, num_minibatches=1), progress=False).state)
"""


def test_a_run_writes_the_figures_to_the_table_and_to_tensorboard(stubs, tmp_path):
    path = str(tmp_path / "run")
    out = python(TRAIN.format(path=path), LD_LIBRARY_PATH=stubs, STUB_GPU_COUNT=2)
    assert out.split() == ["finished"]
    with (tmp_path / "run/metrics.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert (first["gpu/power_watts"], first["gpu/throttled"]) == ("123.0", "0.0")
    events = EventAccumulator(path).Reload()
    first_event = events.Scalars("gpu/power_watts")[0]
    assert (first_event.step, first_event.value) == (128, 123.0)


def test_a_gpu_whose_every_call_fails_does_not_end_the_run(stubs, tmp_path):
    calls = "UtilizationRates MemoryInfo PowerUsage Temperature CurrentClocksThrottleReasons"
    fail = ",".join(f"nvmlDeviceGet{call}=15" for call in calls.split())
    code = TRAIN.format(path=str(tmp_path / "run"))
    assert python(code, LD_LIBRARY_PATH=stubs, STUB_GPU_COUNT=2, STUB_FAIL=fail).split() == ["finished"]
    assert "gpu/" not in (tmp_path / "run/metrics.csv").read_text()


def test_on_the_cpu_nothing_is_imported_and_nothing_read():
    code = "import sys\nfrom rl.gpu import GpuFigures\nprint(GpuFigures('cpu').read(), 'pynvml' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "{} False\n"


def test_a_run_on_the_cpu_has_no_figures_of_a_gpu(tmp_path):
    run = RunConfig(
        run_dir=tmp_path / "run", total_steps=256, num_envs=4, log_interval=128, eval_episodes=0, device="cpu"
    )
    train(run, ppo.Config(num_steps=16, num_epochs=1, num_minibatches=1), progress=False)
    assert "gpu/" not in (tmp_path / "run/metrics.csv").read_text()
