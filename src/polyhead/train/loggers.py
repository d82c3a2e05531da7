"""Training loggers: JSON lines, TensorBoard, experiment trackers, a terminal with the time that is left."""

from __future__ import annotations

import json
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.atomic_io import replace_file
from polyhead.core.errors import UserError
from polyhead.core.extras import install_command
from polyhead.core.i18n import tr
from polyhead.core.json_io import decode_json
from polyhead.viz.run_page import flatten_tree
from polyhead.viz.run_record import COUNTERS, StepTime, format_seconds, interpolate_seconds, read_metrics

MetricsRow = Mapping[str, float]


class Reporter:
    """Receives the metrics of logged steps and evaluations, and messages; by default ignores them."""

    def log_train(self, row: MetricsRow) -> None: ...
    def log_valid(self, row: MetricsRow) -> None: ...
    def info(self, line: str) -> None: ...
    def close(self) -> None: ...


class Reporters(Reporter):
    """Forwards every call to several reporters."""

    def __init__(self, *reporters: Reporter) -> None:
        self.reporters = [*reporters]

    def log_train(self, row: MetricsRow) -> None:
        for reporter in self.reporters:
            reporter.log_train(row)

    def log_valid(self, row: MetricsRow) -> None:
        for reporter in self.reporters:
            reporter.log_valid(row)

    def info(self, line: str) -> None:
        for reporter in self.reporters:
            reporter.info(line)

    def close(self) -> None:
        for reporter in self.reporters:
            reporter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class JsonlLogger(Reporter):
    """Appends metrics to metrics.jsonl, one row per log or evaluation.

    On resume, rows after the checkpoint's step are dropped, as they will be logged again.
    """

    def __init__(self, path: Path, from_step: int = 0) -> None:
        rows = [row for row in read_metrics(path) if row["step"] <= from_step] if from_step else []
        replace_file(path, "".join(map(_row_to_json, rows)).encode())
        self.file = path.open("a", encoding="utf-8")

    def log_train(self, row: MetricsRow) -> None:
        self._write_row({"split": "train", **row})

    def log_valid(self, row: MetricsRow) -> None:
        self._write_row({"split": "valid", **row})

    def close(self) -> None:
        self.file.close()

    def _write_row(self, row: Mapping[str, Any]) -> None:
        self.file.write(_row_to_json(row))
        self.file.flush()


def _row_to_json(row: Mapping[str, Any]) -> str:
    """A row as strict JSON: eight digits, and null for values that are not finite."""
    return json.dumps({name: _to_json_number(value) for name, value in row.items()}) + "\n"


def _to_json_number(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.8g}") if math.isfinite(value) else None


class TensorBoardLogger(Reporter):
    """Logs metrics to TensorBoard (extra ``board``)."""

    def __init__(self, directory: Path, from_step: int = 0) -> None:
        self.writer = _import_summary_writer()(str(directory), purge_step=from_step + 1)

    def log_train(self, row: MetricsRow) -> None:
        self._add_scalars("train", row)

    def log_valid(self, row: MetricsRow) -> None:
        self._add_scalars("valid", row)

    def close(self) -> None:
        self.writer.close()

    def _add_scalars(self, split: str, row: MetricsRow) -> None:
        for name, value in row.items():
            if name not in ("step", "steps", "seconds"):
                self.writer.add_scalar(f"{split}/{name}", value, int(row["step"]))


def _import_summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(f"train.tensorboard needs the extra 'board': {install_command('board')}") from None
    return SummaryWriter


class TextLogger(Reporter):
    """Text lines on stderr, for log files and pipes."""

    def log_train(self, row: MetricsRow) -> None:
        line = tr(
            "step {step:>6}/{steps}  {facts}  {left}",
            step=row["step"],
            steps=row["steps"],
            facts=format_train_row(row),
            left=_format_time_left(row),
        )
        print(line, file=sys.stderr, flush=True)

    def log_valid(self, row: MetricsRow) -> None:
        star = f"  {tr('best so far')}" if row.get("best") else ""
        line = tr("step {step:>6}  valid  {measures}", step=row["step"], measures=format_measures(row))
        print(f"{line}{star}", file=sys.stderr, flush=True)

    def info(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class ProgressBar(Reporter):
    """A progress bar at a terminal, with loss, speed and time left; evaluations are printed above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.console = Console(stderr=True, highlight=False)
        columns = (
            TextColumn(f"[bold]{tr('training')}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
        )
        self.progress = Progress(*columns, console=self.console, transient=True)
        self.task: Any = None

    def log_train(self, row: MetricsRow) -> None:
        if self.task is None:
            self.progress.start()
            self.task = self.progress.add_task("training", total=row["steps"], facts="")
        loss = tr("loss {loss:.3f}", loss=row["loss"])
        short = (
            f"{loss}  {_format_speed(row)}  {_format_time_left(row)}"  # fits next to the bar in 80 columns
        )
        self.progress.update(self.task, completed=row["step"], facts=short)

    def log_valid(self, row: MetricsRow) -> None:
        star = f"  [green]{tr('best so far')}[/green]" if row.get("best") else ""
        line = tr("step {step:>6}  {measures}", step=row["step"], measures=format_measures(row))
        self.console.print(f"{line}{star}")

    def info(self, line: str) -> None:
        self.console.print(line, markup=False)

    def close(self) -> None:
        self.progress.stop()


def make_terminal_reporter() -> Reporter:
    """A progress bar if stderr is a terminal, else text lines."""
    return ProgressBar() if sys.stderr.isatty() else TextLogger()


def format_train_row(row: MetricsRow) -> str:
    """Loss, learning rate and speed in one line, and the number of skipped steps if any."""
    loss, rate = tr("loss {loss:.3f}", loss=row["loss"]), tr("lr {lr:.2e}", lr=row["lr"])
    return f"{loss}  {rate}  {_format_speed(row)}"


def _format_speed(row: MetricsRow) -> str:
    skipped = f"  {tr('{count:.0f} skipped', count=row['skipped'])}" if row["skipped"] else ""
    if "tokens_per_s" in row:
        return tr("{rate:,.0f} tokens/s", rate=row["tokens_per_s"]) + skipped
    return tr("{rate:,.0f} texts/s", rate=row["texts_per_s"]) + skipped


def format_measures(row: MetricsRow) -> str:
    """All metrics of a row, by name and value."""
    return "  ".join(f"{tr(name)} {value:.3f}" for name, value in row.items() if name not in COUNTERS)


def _format_time_left(row: MetricsRow) -> str:
    if row["step"] == row["steps"]:
        return tr("evaluating ...")
    return tr("{time} left", time=format_seconds((row["steps"] - row["step"]) * row["ms_per_step"] / 1e3))


class EtaReporter(Reporters):
    """Adds the training time in seconds, without evaluations, to train rows; forwards to ``reporter``.

    On resume the count continues: ``previous_rows`` are the metrics of the ``n_done`` steps before.
    """

    def __init__(
        self,
        reporter: Reporter,
        previous_rows: Iterable[Mapping[str, Any]] = (),
        n_done: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(reporter)
        self.clock = clock
        step_times = [
            StepTime(row["step"], row["seconds"])
            for row in previous_rows
            if row["split"] == "train" and "seconds" in row
        ]
        self.train_seconds = interpolate_seconds(step_times, n_done)
        self.last_time, self.has_started = clock(), False

    def info(self, line: str) -> None:
        super().info(line)
        if not self.has_started:  # the last message before step 1 starts the clock
            self.last_time = self.clock()

    def log_train(self, row: MetricsRow) -> None:
        now = self.clock()
        self.train_seconds = self.train_seconds + now - self.last_time
        self.last_time = now
        self.has_started = True
        super().log_train({**row, "seconds": self.train_seconds})

    def log_valid(self, row: MetricsRow) -> None:
        self.last_time += row["seconds"]
        super().log_valid(row)


PROJECT = "polyhead"
MOST_PARAMETERS, LONGEST_PARAMETER = 100, 500  # parameters per request, and characters of one, of MLflow


def import_loggers(config: TrainConfig) -> None:
    """Import the libraries of the configured loggers, so that a missing one is an error before any work."""
    if config.tensorboard:
        _import_summary_writer()
    if config.log:
        import_module(str(config.log))


def open_loggers(recipe: Recipe, from_step: int, info: Callable[[str], None]) -> list[Reporter]:
    """Open metrics.jsonl and, if configured, TensorBoard and an experiment tracker."""
    loggers: list[Reporter] = [JsonlLogger(recipe.out / "metrics.jsonl", from_step)]
    if recipe.train.tensorboard:
        loggers.append(TensorBoardLogger(recipe.out / "tensorboard", from_step))
    if recipe.train.log:
        loggers.append(open_tracker(recipe, from_step > 0, info))
    return loggers


def open_tracker(recipe: Recipe, is_resumed: bool, info: Callable[[str], None]) -> Tracker:
    """Open the tracker ``train.log``. ImportError if its library is missing, UserError if it cannot start."""
    kind = {"wandb": WandB, "mlflow": MLflow}[str(recipe.train.log)]
    id_file = recipe.out / "tracker.json"
    ids = decode_json(id_file.read_bytes(), id_file) if is_resumed and id_file.is_file() else {}
    try:
        tracker: Tracker = kind(recipe, ids.get(recipe.train.log))
    except ImportError:
        raise
    except Exception as error:  # of the library, such as no network or no account
        raise UserError(f"train.log={recipe.train.log} does not start: {error}") from error
    recipe.out.mkdir(parents=True, exist_ok=True)
    replace_file(id_file, json.dumps(ids | {str(recipe.train.log): tracker.id}).encode())
    tracker.warn = info
    return tracker


class Tracker(Reporter, ABC):
    """A remote run with metrics by split and name (``train/loss``); a failed request is reported once."""

    id: str
    warn: Callable[[str], None]

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int) -> None: ...
    @abstractmethod
    def end(self) -> None: ...

    def log_train(self, row: MetricsRow) -> None:
        self._send_row("train", row)

    def log_valid(self, row: MetricsRow) -> None:
        self._send_row("valid", row)

    def close(self) -> None:
        self._try_or_warn(self.end)

    def _send_row(self, split: str, row: MetricsRow) -> None:
        values = {f"{split}/{name}": value for name, value in row.items() if name not in ("step", "steps")}
        self._try_or_warn(lambda: self.log(values, int(row["step"])))

    def _try_or_warn(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # a failing service must not end training
            self.warn(f"warning: {type(self).__name__} rejected the metrics: {error}")
            self.warn = lambda line: None


class WandB(Tracker):
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


class MLflow(Tracker):
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
