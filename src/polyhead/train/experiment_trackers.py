"""Log the metrics of a training to Weights & Biases or MLflow (extras ``wandb`` and ``mlflow``).

The id of the remote run is stored in tracker.json of the run directory, so that a resumed training continues
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from polyhead.config.recipe import Recipe
from polyhead.core.atomic_io import replace_file
from polyhead.core.errors import UserError
from polyhead.core.json_io import decode_json
from polyhead.train.loggers import MetricsRow
from polyhead.viz.run_page import flatten_tree

PROJECT = "polyhead"
MOST_PARAMETERS, LONGEST_PARAMETER = 100, 500  # parameters per request, and characters of one, of MLflow


def open_tracker(recipe: Recipe, is_resumed: bool, info: Callable[[str], None]) -> Tracker:
    """Open the tracker ``train.log``. ImportError if its library is missing, UserError if it cannot start."""
    kinds: dict[str, Callable[[Recipe, str | None], Backend]] = {"wandb": WandB, "mlflow": MLflow}
    kind = kinds[str(recipe.train.log)]
    id_file = recipe.out / "tracker.json"
    ids = decode_json(id_file.read_bytes(), id_file) if is_resumed and id_file.is_file() else {}
    try:
        backend = kind(recipe, ids.get(recipe.train.log))
    except ImportError:
        raise
    except Exception as error:  # of the library, such as no network or no account
        raise UserError(f"train.log={recipe.train.log} does not start: {error}") from error
    recipe.out.mkdir(parents=True, exist_ok=True)
    replace_file(id_file, json.dumps(ids | {str(recipe.train.log): backend.id}).encode())
    return Tracker(backend, info)


class Backend(Protocol):
    """A remote run that logs values by name and step."""

    id: str

    def log(self, values: Mapping[str, float], step: int) -> None: ...
    def end(self) -> None: ...


class Tracker:
    """Logs metrics by split and name (``train/loss``); a failed request is reported once and ignored."""

    def __init__(self, backend: Backend, warn: Callable[[str], None]) -> None:
        self.backend, self.warn = backend, warn

    def log_train(self, row: MetricsRow) -> None:
        self._send_row("train", row)

    def log_valid(self, row: MetricsRow) -> None:
        self._send_row("valid", row)

    def info(self, line: str) -> None:
        pass

    def close(self) -> None:
        self._try_or_warn(self.backend.end)

    def _send_row(self, split: str, row: MetricsRow) -> None:
        values = {f"{split}/{name}": value for name, value in row.items() if name not in ("step", "steps")}
        self._try_or_warn(lambda: self.backend.log(values, int(row["step"])))

    def _try_or_warn(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # a failing service must not end training
            self.warn(f"warning: {type(self.backend).__name__} rejected the metrics: {error}")
            self.warn = lambda line: None


class WandB:
    """Weights & Biases. ``step`` is a metric, as a resumed run repeats the steps after its checkpoint."""

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
    """MLflow: the recipe as parameters, the metrics as metrics."""

    def __init__(self, recipe: Recipe, id: str | None) -> None:
        import mlflow

        self.library: Any = mlflow
        mlflow.set_experiment(PROJECT)
        self.id = str(mlflow.start_run(run_id=id, run_name=recipe.out.resolve().name).info.run_id)
        if id is None:
            parameters = [
                (k, v[:LONGEST_PARAMETER]) for k, v in flatten_tree(recipe.model_dump(mode="json")).items()
            ]
            for start in range(0, len(parameters), MOST_PARAMETERS):
                mlflow.log_params(dict(parameters[start : start + MOST_PARAMETERS]))

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.library.log_metrics(dict(values), step=step)

    def end(self) -> None:
        self.library.end_run()
