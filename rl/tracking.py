"""A run's figures and files in MLflow or Weights & Biases as well: `--track mlflow`, `--track wandb`.

Each is told where to by its own variables: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME; WANDB_MODE, WANDB_PROJECT. The
run folder stays the place that a run is resumed from; what a tracker refuses costs no training.
"""

import importlib.util
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl.errors import RunError, UsageError
from rl.run_folder import read_config

TRACKERS = ("", "mlflow", "wandb")
FILES = ("config.json", "manifest.json", "metrics.csv", "curve.png")


def check(name: str) -> None:
    """Raise UsageError for a tracker that there is not, RunError where its package is missing."""
    if name not in TRACKERS:
        raise UsageError(f"--track {name}: choose one of {', '.join(TRACKERS[1:])}")
    if name and importlib.util.find_spec(name) is None:
        raise RunError(f"--track {name}: a package is missing here: pip install 'pytorch-cuda-rl[{name}]'")


class Tracker:
    """Hands a run's figures on, and its files at the end. Without a name it does nothing.

    A run keeps its id in tracking.json, so that a resumed one goes on in the same place. Raises RunError where the
    tracker cannot be reached at the start; later trouble is said once, and tracking ends.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.ended = name, folder, not name
        self.backend: Any = None
        if not name:
            return
        check(name)
        try:
            self.backend = {"mlflow": MLflow, "wandb": WandB}[name](folder)
        except Exception as error:
            raise RunError(
                f"--track {name}: {_first_line(error)}. Without --track the run starts all the same"
            ) from error

    def log(self, step: int, row: dict[str, float]) -> None:
        """Hand on one row of metrics; nan and infinity, which trackers draw as 0 or not at all, are left out."""
        self._try(lambda: self.backend.log(step, {name: value for name, value in row.items() if math.isfinite(value)}))

    def finish(self, state: str) -> None:
        """Hand on the run's files and its best agent, and close; `state` is that of status.json."""
        self._try(lambda: self.backend.finish(state))
        self.ended = True

    def _try(self, call: Callable[[], None]) -> None:
        if self.ended:
            return
        try:
            call()
        except Exception as error:  # noqa: BLE001 - a tracker's trouble, of whatever kind, must not end a run
            self.ended = True
            words = (
                f"--track {self.name}: {_first_line(error)}. The run goes on without; its figures are in {self.folder}"
            )
            print(words, file=sys.stderr, flush=True)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _settings(folder: Path) -> dict[str, Any]:
    config = read_config(folder)
    return {"algorithm": config["algorithm"]} | config["run"] | config["config"]


def _best(folder: Path) -> Path:
    best = folder / "checkpoints/best.pt"
    return best if best.exists() else folder / "checkpoints/latest.pt"


class MLflow:
    """One MLflow run; at its end the agent is registered as a model, named by environment and algorithm."""

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # training waits meanwhile
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        import mlflow

        self.mlflow, self.folder, self.settings = mlflow, folder, _settings(folder)
        if not os.environ.get("MLFLOW_TRACKING_URI"):  # beside the runs, which are on a volume
            mlflow.set_tracking_uri(f"sqlite:///{folder.resolve().parent}/mlflow.db")
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or self.settings["env_id"])
        kept = folder / "tracking.json"
        if kept.exists():
            mlflow.start_run(run_id=json.loads(kept.read_text())["mlflow"])
        else:
            run = mlflow.start_run(run_name=folder.name)
            kept.write_text(json.dumps({"mlflow": run.info.run_id}))
            mlflow.log_params(self.settings)

    def log(self, step: int, row: dict[str, float]) -> None:
        """One row."""
        self.mlflow.log_metrics(row, step=step)

    def finish(self, state: str) -> None:
        """The files, the model, the status."""
        for name in FILES:
            if (self.folder / name).exists():
                self.mlflow.log_artifact(str(self.folder / name))
        if state == "finished":
            with tempfile.TemporaryDirectory() as copy:
                (Path(copy) / "checkpoints").mkdir()
                shutil.copy(self.folder / "config.json", copy)
                shutil.copy(_best(self.folder), Path(copy) / "checkpoints/best.pt")
                name = f"{self.settings['env_id']}-{self.settings['algorithm']}".replace("/", "-").replace(":", "-")
                self.mlflow.pyfunc.log_model(
                    name="agent",
                    python_model=str(Path(__file__).with_name("mlflow_model.py")),
                    artifacts={"run": copy},
                    pip_requirements=["pytorch-cuda-rl"],
                    registered_model_name=name,
                )
        self.mlflow.end_run({"finished": "FINISHED", "interrupted": "KILLED"}.get(state, "FAILED"))


class WandB:
    """One run of Weights & Biases; at its end the best agent is an artifact of type model."""

    def __init__(self, folder: Path) -> None:
        import wandb

        self.wandb, self.folder = wandb, folder
        kept = folder / "tracking.json"
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "pytorch-cuda-rl",
            id=json.loads(kept.read_text())["wandb"] if kept.exists() else None,
            name=folder.name,
            dir=folder,
            config=_settings(folder),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        kept.write_text(json.dumps({"wandb": self.run.id}))

    def log(self, step: int, row: dict[str, float]) -> None:
        """One row."""
        self.run.log(row, step=step)

    def finish(self, state: str) -> None:
        """The files, the agent, the status."""
        for name in FILES:
            if (self.folder / name).exists():
                self.run.save(str(self.folder / name), base_path=str(self.folder), policy="now")
        self.run.log_artifact(str(_best(self.folder)), name=f"{self.folder.name}-agent", type="model")
        self.run.finish(exit_code=0 if state in ("finished", "interrupted") else 1)
