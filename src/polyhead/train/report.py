"""report.html of a run: written at each evaluation and at the end, from what lies in the directory and new samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from polyhead.analysis.run_page import run_page
from polyhead.analysis.run_record import PAGE, REPORT, read_report, read_run
from polyhead.core.i18n import tr
from polyhead.files import replace_file
from polyhead.run import Run
from polyhead.train.distill import plain
from polyhead.train.samples import take_samples
from polyhead.train.tasks.base import RunTask

VERSION = 1  # of report.json


class RunReport:
    """The report of one training; on leaving its context by an error it says that the training failed.

    Nothing that goes wrong here ends a training: it is said once, and the page stays as it was.
    """

    def __init__(self, directory: Path, resumed: bool = False) -> None:
        self.directory, self.state = directory, "training"
        self.samples: dict[str, Any] = read_report(directory).get("samples") or {} if resumed else {}
        self.sample: Callable[[], dict[str, Any]] = dict
        self.say: Callable[[str], None] = lambda line: None

    @property
    def path(self) -> Path:
        """Where the page is."""
        return self.directory / PAGE

    def start(self, run: Run, task: RunTask, say: Callable[[str], None]) -> None:
        """Take samples of this run from now on."""

        def sample() -> dict[str, Any]:
            with torch.inference_mode():
                return take_samples(plain(task), run).to_json()

        self.sample, self.say = sample, say

    def update(self, row: Mapping[str, float] | None = None) -> None:
        """Take samples of the weights as they are and write the page; ``row`` is an evaluation that is not logged yet."""
        self._try(lambda: self.samples.update(self.sample()))
        self._try(lambda: self._write(row))

    def finish(self, how: str) -> None:
        """Write the page of a training that has ended: done, stopped early or interrupted."""
        self.state = how
        if how == "interrupted":
            self._try(self._write)
        else:
            self.update()

    def _write(self, row: Mapping[str, float] | None = None) -> None:
        saved = {"version": VERSION, "state": self.state, "samples": self.samples}
        replace_file(self.directory / REPORT, json.dumps(saved, ensure_ascii=False).encode())
        record = read_run(self.directory)
        if row:
            record.metrics.append({"split": "valid", **row})
        if record.metrics:
            training = self.state == "training"
            replace_file(self.path, run_page(record._replace(training=training)).encode())

    def _try(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except Exception as error:  # of whatever kind: no page is worth a training
            self.say(tr("warning: the report is not complete: {error}", error=error))
            self.say = lambda line: None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state == "training":
            self.state = "failed"
            self._try(self._write)
