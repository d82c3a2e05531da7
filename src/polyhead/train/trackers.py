"""Send the metrics of a training to Weights & Biases or MLflow (extras ``wandb`` and ``mlflow``).

The id of the remote run is kept in tracker.json of the run directory, so that a resumed training continues it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from polyhead.analysis.run_page import flatten
from polyhead.errors import UserError
from polyhead.files import replace_file
from polyhead.recipe import Recipe
from polyhead.train.reporting import Row

PROJECT = "polyhead"
MOST_PARAMETERS, LONGEST_PARAMETER = 100, 500  # of one request to MLflow


def open_tracker(recipe: Recipe, resumed: bool, say: Callable[[str], None]) -> Tracker:
    """The tracker that ``train.log`` names. ImportError if its library is missing, UserError if it cannot start."""
    kinds: dict[str, Callable[[Recipe, str | None], Backend]] = {"wandb": WandB, "mlflow": MLflow}
    kind = kinds[str(recipe.train.log)]
    saved = recipe.out / "tracker.json"
    ids = json.loads(saved.read_text()) if resumed and saved.is_file() else {}
    try:
        backend = kind(recipe, ids.get(recipe.train.log))
    except ImportError:
        raise
    except Exception as error:  # of the library: no network, no account
        raise UserError(f"train.log={recipe.train.log} does not start: {error}") from error
    recipe.out.mkdir(parents=True, exist_ok=True)
    replace_file(saved, json.dumps(ids | {str(recipe.train.log): backend.id}).encode())
    return Tracker(backend, say)


class Backend(Protocol):
    """A remote run that takes numbers by name and step."""

    id: str

    def log(self, values: Mapping[str, float], step: int) -> None: ...
    def end(self) -> None: ...


class Tracker:
    """A reporter that sends metrics named by their split, ``train/loss``; a failure to send is reported once and ignored."""

    def __init__(self, backend: Backend, warn: Callable[[str], None]) -> None:
        self.backend, self.warn = backend, warn

    def train(self, row: Row) -> None:
        self._send("train", row)

    def valid(self, row: Row) -> None:
        self._send("valid", row)

    def say(self, line: str) -> None:
        pass

    def close(self) -> None:
        self._try(self.backend.end)

    def _send(self, split: str, row: Row) -> None:
        values = {f"{split}/{name}": value for name, value in row.items() if name not in ("step", "steps")}
        self._try(lambda: self.backend.log(values, int(row["step"])))

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # a service that does not answer is not worth a training
            self.warn(f"warning: {type(self.backend).__name__} does not take the numbers: {error}")
            self.warn = lambda line: None


class WandB:
    """Weights & Biases. ``step`` is a metric of its own: a resumed run logs again the steps after its checkpoint."""

    def __init__(self, recipe: Recipe, id: str | None) -> None:
        import wandb

        self.run: Any = wandb.init(
            project=PROJECT,
            name=recipe.out.resolve().name,
            id=id,
            resume="allow",
            dir=str(recipe.out),
            config=recipe.model_dump(mode="json"),
        )
        self.run.define_metric("*", step_metric="step")
        self.id = str(self.run.id)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.run.log({**values, "step": step})

    def end(self) -> None:
        self.run.finish()


class MLflow:
    """MLflow: the recipe as parameters, the numbers as metrics."""

    def __init__(self, recipe: Recipe, id: str | None) -> None:
        import mlflow

        self.library: Any = mlflow
        mlflow.set_experiment(PROJECT)
        self.id = str(mlflow.start_run(run_id=id, run_name=recipe.out.resolve().name).info.run_id)
        if id is None:
            parameters = [
                (k, v[:LONGEST_PARAMETER]) for k, v in flatten(recipe.model_dump(mode="json")).items()
            ]
            for first in range(0, len(parameters), MOST_PARAMETERS):
                mlflow.log_params(dict(parameters[first : first + MOST_PARAMETERS]))

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.library.log_metrics(dict(values), step=step)

    def end(self) -> None:
        self.library.end_run()
