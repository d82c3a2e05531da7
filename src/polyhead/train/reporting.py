"""Who is told how a training goes: a file of JSON lines, TensorBoard, a person at a terminal."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from polyhead.analysis.forecast import duration
from polyhead.analysis.run_record import COUNTERS, read_metrics
from polyhead.core.extras import install_command
from polyhead.core.i18n import tr
from polyhead.errors import UserError
from polyhead.files import replace_file

Row = Mapping[str, float]


class Reporter(Protocol):
    """Is told of every logged step, every evaluation, and of what else happens."""

    def train(self, row: Row) -> None: ...
    def valid(self, row: Row) -> None: ...
    def say(self, line: str) -> None: ...
    def close(self) -> None: ...


class Reporters:
    """Several reporters as one."""

    def __init__(self, *several: Reporter) -> None:
        self.several = several

    def train(self, row: Row) -> None:
        for one in self.several:
            one.train(row)

    def valid(self, row: Row) -> None:
        for one in self.several:
            one.valid(row)

    def say(self, line: str) -> None:
        for one in self.several:
            one.say(line)

    def close(self) -> None:
        for one in self.several:
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Metrics:
    """metrics.jsonl: a row a report. On resume, rows past the checkpoint are dropped, for they will come again."""

    def __init__(self, path: Path, from_step: int = 0) -> None:
        kept = [row for row in read_metrics(path) if row["step"] <= from_step] if from_step else []
        replace_file(path, "".join(map(_line, kept)).encode())
        self.file = path.open("a", encoding="utf-8")

    def train(self, row: Row) -> None:
        self._write({"split": "train", **row})

    def valid(self, row: Row) -> None:
        self._write({"split": "valid", **row})

    def say(self, line: str) -> None:
        pass

    def close(self) -> None:
        self.file.close()

    def _write(self, row: Mapping[str, Any]) -> None:
        self.file.write(_line(row))
        self.file.flush()


def _line(row: Mapping[str, Any]) -> str:
    """A row as strict JSON: eight digits, and null for what is not finite."""
    return json.dumps({name: _number(value) for name, value in row.items()}) + "\n"


def _number(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.8g}") if math.isfinite(value) else None


class TensorBoard:
    """The same numbers for TensorBoard (extra ``board``)."""

    def __init__(self, directory: Path, from_step: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                f"train.tensorboard needs the extra 'board': {install_command('board')}"
            ) from None
        self.writer = SummaryWriter(str(directory), purge_step=from_step + 1)

    def train(self, row: Row) -> None:
        self._add("train", row)

    def valid(self, row: Row) -> None:
        self._add("valid", row)

    def say(self, line: str) -> None:
        pass

    def close(self) -> None:
        self.writer.close()

    def _add(self, split: str, row: Row) -> None:
        for name, value in row.items():
            if name not in ("step", "steps", "seconds"):
                self.writer.add_scalar(f"{split}/{name}", value, int(row["step"]))


class Lines:
    """Sparse lines on stderr: for logs, pipes and the impatient."""

    def train(self, row: Row) -> None:
        line = tr(
            "step {step:>6}/{steps}  {facts}  {left}",
            step=row["step"],
            steps=row["steps"],
            facts=facts(row),
            left=_left(row),
        )
        print(line, file=sys.stderr, flush=True)

    def valid(self, row: Row) -> None:
        star = f"  {tr('best so far')}" if row.get("best") else ""
        line = tr("step {step:>6}  valid  {measures}", step=row["step"], measures=measures(row))
        print(f"{line}{star}", file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class Bar:
    """A progress bar at a terminal, with loss, speed and time left; evaluations scroll by above it."""

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

    def train(self, row: Row) -> None:
        if self.task is None:
            self.progress.start()
            self.task = self.progress.add_task("training", total=row["steps"], facts="")
        loss = tr("loss {loss:.3f}", loss=row["loss"])
        short = f"{loss}  {_speed(row)}  {_left(row)}"  # fits beside the bar in 80 columns
        self.progress.update(self.task, completed=row["step"], facts=short)

    def valid(self, row: Row) -> None:
        star = f"  [green]{tr('best so far')}[/green]" if row.get("best") else ""
        line = tr("step {step:>6}  {measures}", step=row["step"], measures=measures(row))
        self.console.print(f"{line}{star}")

    def say(self, line: str) -> None:
        self.console.print(line, markup=False)

    def close(self) -> None:
        self.progress.stop()


def at_terminal() -> Reporter:
    """A bar where stderr is a terminal, sparse lines elsewhere."""
    return Bar() if sys.stderr.isatty() else Lines()


def facts(row: Row) -> str:
    """Loss, rate and speed in one line, and how many steps were skipped if any."""
    loss, rate = tr("loss {loss:.3f}", loss=row["loss"]), tr("lr {lr:.2e}", lr=row["lr"])
    return f"{loss}  {rate}  {_speed(row)}"


def _speed(row: Row) -> str:
    skipped = f"  {tr('{count:.0f} skipped', count=row['skipped'])}" if row["skipped"] else ""
    if "tokens_per_s" in row:
        return tr("{rate:,.0f} tokens/s", rate=row["tokens_per_s"]) + skipped
    return tr("{rate:,.0f} texts/s", rate=row["texts_per_s"]) + skipped


def measures(row: Row) -> str:
    """Everything that was measured, name and number."""
    return "  ".join(f"{tr(name)} {value:.3f}" for name, value in row.items() if name not in COUNTERS)


def _left(row: Row) -> str:
    return tr("{time} left", time=duration((row["steps"] - row["step"]) * row["ms_per_step"] / 1e3))
