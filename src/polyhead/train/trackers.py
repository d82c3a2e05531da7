"""The numbers of a training for Weights & Biases or MLflow, beside metrics.jsonl (extras ``wandb`` and ``mlflow``).

Both keep the id of their run in the directory's tracker.json, so that a training that is resumed goes on in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from polyhead.analysis.run_page import flatten
from polyhead.errors import UserError
from polyhead.files import replace_file
from polyhead.recipe import Recipe
from polyhead.train.reporting import Row

PROJECT = "polyhead"
MOST_PARAMETERS, LONGEST_PARAMETER = 100, 500  # of one request to MLflow


def open_tracker(recipe: Recipe, resumed: bool, say: Callable[[str], None]) -> Tracker:
    """The one that ``train.log`` names. ModuleNotFoundError if it is not installed, UserError if it does not begin."""
    kind = {"wandb": WandB, "mlflow": MLflow}[str(recipe.train.log)]
    saved = recipe.out / "tracker.json"
    ids = json.loads(saved.read_text()) if resumed and saved.is_file() else {}
    try:
        tracker = kind(recipe, ids.get(recipe.train.log), say)
    except ImportError:
        raise
    except Exception as error:  # of the library: no network, no account
        raise UserError(f"train.log={recipe.train.log} does not begin: {error}") from error
    recipe.out.mkdir(parents=True, exist_ok=True)
    replace_file(saved, json.dumps(ids | {str(recipe.train.log): tracker.id}).encode())
    return tracker


class Tracker:
    """A reporter that names numbers by their split, as ``train/loss``; trouble while it sends is said once and ends nothing."""

    id: str

    def __init__(self, say: Callable[[str], None]) -> None:
        self.warn = say

    def train(self, row: Row) -> None:
        self._send("train", row)

    def valid(self, row: Row) -> None:
        self._send("valid", row)

    def say(self, line: str) -> None:
        pass

    def close(self) -> None:
        self._try(self._end)

    def _send(self, split: str, row: Row) -> None:
        values = {f"{split}/{name}": value for name, value in row.items() if name not in ("step", "steps")}
        self._try(lambda: self._log(values, int(row["step"])))

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # a service that does not answer is not worth a training
            self.warn(f"warning: {type(self).__name__} does not take the numbers: {error}")
            self.warn = lambda line: None

    def _log(self, values: Mapping[str, float], step: int) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


class WandB(Tracker):
    """Weights & Biases. ``step`` is a number of its own, for a resumed run logs steps again that were lost with a checkpoint."""

    def __init__(self, recipe: Recipe, id: str | None, say: Callable[[str], None]) -> None:
        super().__init__(say)
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

    def _log(self, values: Mapping[str, float], step: int) -> None:
        self.run.log({**values, "step": step})

    def _end(self) -> None:
        self.run.finish()


class MLflow(Tracker):
    """MLflow: the recipe as parameters, the numbers as metrics."""

    def __init__(self, recipe: Recipe, id: str | None, say: Callable[[str], None]) -> None:
        super().__init__(say)
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

    def _log(self, values: Mapping[str, float], step: int) -> None:
        self.library.log_metrics(dict(values), step=step)

    def _end(self) -> None:
        self.library.end_run()
