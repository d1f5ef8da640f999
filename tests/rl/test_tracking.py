"""`--track`: figures, files and the agent reach a real MLflow server and an offline W&B run, and cost no training."""

import csv
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import torch

from rl import ppo
from rl.train import load_agent

SETTINGS = ("--total-steps", "1024", "--num-steps", "32", "--eval-episodes", "1", "--log-interval", "256")


def rl(*arguments, **environment):
    """In a fresh interpreter: trackers start threads and processes of their own."""
    command = [sys.executable, "-m", "rl", *map(str, arguments)]
    variables = os.environ | {"PYTHONPATH": str(Path(ppo.__file__).parents[1]), **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a real MLflow server on this machine."""
    pytest.importorskip("mlflow", reason="mlflow is not installed here")
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    places = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "files")]
    with (folder / "log").open("w") as log:
        command = [sys.executable, "-m", "mlflow", "server", "--port", port, "--workers", "1", *places]
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, (folder / "log").read_text()
            try:
                urllib.request.urlopen(f"{address}/health", timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        yield address
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)


@pytest.fixture(scope="module")
def run(server, tmp_path_factory):
    """A run of 1,024 steps, resumed to 2,048."""
    path = tmp_path_factory.mktemp("runs") / "run"
    done = rl("train", "ppo", "--track", "mlflow", "--run-dir", path, *SETTINGS, MLFLOW_TRACKING_URI=server)
    assert done.returncode == 0, done.stderr
    done = rl("resume", path, "--total-steps", 2048, MLFLOW_TRACKING_URI=server)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def client(server):
    from mlflow.tracking import MlflowClient

    return MlflowClient(server, server)


def columns(run):
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_has_settings_files_and_the_figures_of_a_resumed_run_too(client, run):
    tracked = client.get_run(json.loads((run / "tracking.json").read_text())["mlflow"])
    assert (tracked.info.status, tracked.info.run_name) == ("FINISHED", "run")
    assert tracked.data.params["algorithm"] == "ppo"
    assert float(tracked.data.params["learning_rate"]) == ppo.Config().learning_rate
    losses = [(figure.step, figure.value) for figure in client.get_metric_history(tracked.info.run_id, "value_loss")]
    rows = [row for row in columns(run) if row["value_loss"]]
    assert losses == [(int(row["step"]), pytest.approx(float(row["value_loss"]))) for row in rows]
    assert losses[-1][0] == 2048
    assert {file.path for file in client.list_artifacts(tracked.info.run_id)} >= {"config.json", "curve.png"}


def test_the_model_that_mlflow_gives_back_acts_as_the_agent(server, run):
    script = (
        "import mlflow, numpy, sys; mlflow.set_tracking_uri(sys.argv[1])\n"
        "model = mlflow.pyfunc.load_model('models:/CartPole-v1-ppo/2')\n"
        "print(model.predict(numpy.linspace(-0.2, 0.2, 40).reshape(10, 4)).tolist())\n"
    )
    path = os.environ | {"PYTHONPATH": str(Path(ppo.__file__).parents[1])}
    command = [sys.executable, "-c", script, server]
    loaded = subprocess.run(command, env=path, capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr
    _, agent, _ = load_agent(run, "cpu")
    obs = torch.linspace(-0.2, 0.2, 40).reshape(10, 4)
    assert json.loads(loaded.stdout.splitlines()[-1]) == agent.act(obs, explore=False).tolist()


def test_wandb_offline_keeps_the_run_beside_its_files(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed here")
    run = tmp_path / "run"
    done = rl("train", "ppo", "--track", "wandb", "--run-dir", run, *SETTINGS, WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr
    (log,) = run.glob("wandb/offline-run-*/run-*.wandb")
    content = log.read_bytes()
    for written in (b"value_loss", b"learning_rate", b"curve.png", b"best.pt"):
        assert written in content, written


def test_a_server_that_cannot_be_reached_is_said_before_training(tmp_path):
    pytest.importorskip("mlflow", reason="mlflow is not installed here")
    run = tmp_path / "run"
    nowhere = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    done = rl("train", "ppo", "--track", "mlflow", "--run-dir", run, *SETTINGS, **nowhere)
    assert done.returncode == 1
    assert "--track mlflow: " in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((run / "status.json").read_text())["state"] == "failed"


def test_a_tracker_that_fails_later_is_said_once_and_the_run_goes_on(tmp_path):
    """Its package is one that breaks at the first figure."""
    (tmp_path / "wandb.py").write_text(
        "from types import SimpleNamespace as N\n"
        "def log(row, step): raise OSError('the line is dead')\n"
        "init = lambda **_: N(log=log, id='id')\nSettings = N\n"
    )
    path = {"PYTHONPATH": f"{tmp_path}:{Path(ppo.__file__).parents[1]}"}
    done = rl("train", "ppo", "--track", "wandb", "--run-dir", tmp_path / "run", *SETTINGS, **path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("--track wandb: the line is dead. The run goes on without") == 1
    assert columns(tmp_path / "run")[-1]["step"] == "1024"


@pytest.mark.parametrize(
    ("tracker", "code", "message"),
    [("tensorbord", 2, "choose one of mlflow, wandb"), ("wandb", 1, "pip install 'pytorch-cuda-rl[wandb]'")],
)
def test_a_tracker_that_is_not_there_leaves_nothing_behind(tracker, code, message, tmp_path):
    hide = "import sys, runpy; sys.modules['wandb'] = None; import importlib.util as u; find = u.find_spec\n"
    hide += "u.find_spec = lambda name, *rest: None if name == 'wandb' else find(name, *rest)\n"
    hide += "sys.argv[0] = 'rl'; runpy.run_module('rl', run_name='__main__')"
    command = [sys.executable, "-c", hide, "train", "ppo", "--track", tracker, "--run-dir", str(tmp_path / "run")]
    path = os.environ | {"PYTHONPATH": str(Path(ppo.__file__).parents[1])}
    done = subprocess.run(command, env=path, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert message in done.stderr
    assert not (tmp_path / "run").exists()
