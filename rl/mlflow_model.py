"""The model that `--track mlflow` registers, as code that MLflow runs when it is loaded: observations in, actions out.

model = mlflow.pyfunc.load_model("models:/CartPole-v1-dqn/1")
actions = model.predict(observations)  # [n, …] of observations [n, …]; greedy, continuous ones in ±1
"""

from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import torch

from rl.train import load_agent


class BestAgent(mlflow.pyfunc.PythonModel):  # type: ignore[misc, name-defined]
    """Acts as the run's best agent does without exploring."""

    def load_context(self, context: Any) -> None:  # noqa: ANN401
        """Read the agent from the run's configuration and checkpoint, on the CPU."""
        _, self.agent, _ = load_agent(Path(context.artifacts["run"]), "cpu")

    def predict(self, context: Any, model_input: Any, params: Any = None) -> np.ndarray:  # noqa: ANN401
        """Actions [n, …] of observations [n, …], an array or a table with a column for each number."""
        obs = torch.from_numpy(np.asarray(model_input))
        return self.agent.act(obs if obs.dtype == torch.uint8 else obs.float(), explore=False).numpy()


mlflow.models.set_model(BestAgent())
