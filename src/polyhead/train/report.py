"""report.html of a run, written at each evaluation and at the end from the run directory and new samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import torch

from polyhead.core.atomic_io import replace_file
from polyhead.core.i18n import tr
from polyhead.run.run import Run
from polyhead.train.distill import without_teacher
from polyhead.train.samples import take_samples
from polyhead.train.tasks.base import Task
from polyhead.viz.run_page import render_run_page
from polyhead.viz.run_record import PAGE, REPORT, read_report, read_run

VERSION = 1  # of report.json


class RunReport:
    """The report of one training. If its context ends by an error, the page shows that training failed; it
    stays as it was if a run is not resumed, because of an error before ``start``.

    Errors in the report never end training: the first one is reported, and the page stays as it was.
    """

    def __init__(self, directory: Path, is_resumed: bool = False) -> None:
        self.directory, self.state, self.is_started = directory, "training", not is_resumed
        self.samples: dict[str, Any] = read_report(directory).get("samples") or {} if is_resumed else {}
        self.take_sample: Callable[[], dict[str, Any]] = dict
        self.info: Callable[[str], None] = lambda line: None

    @property
    def path(self) -> Path:
        """Path of the page."""
        return self.directory / PAGE

    def start(self, run: Run, task: Task, info: Callable[[str], None]) -> None:
        """Set the run and the task that samples are taken of."""

        def take_sample() -> dict[str, Any]:
            with torch.inference_mode():
                return take_samples(without_teacher(task), run).to_json()

        self.take_sample, self.info, self.is_started = take_sample, info, True

    def update(self, row: Mapping[str, float] | None = None) -> None:
        """Take samples of the current weights and write the page; ``row`` is an evaluation not logged yet."""
        self._try_or_warn(lambda: self.samples.update(self.take_sample()))
        self._try_or_warn(lambda: self._write_page(row))

    def finish(self, status: str) -> None:
        """Write the page of a training that has ended: done, stopped early or interrupted."""
        self.state = status
        if status == "interrupted":
            self._try_or_warn(self._write_page)
        else:
            self.update()

    def _write_page(self, row: Mapping[str, float] | None = None) -> None:
        content = {"version": VERSION, "state": self.state, "samples": self.samples}
        replace_file(self.directory / REPORT, json.dumps(content, ensure_ascii=False).encode())
        record = read_run(self.directory)
        if row:
            record.metrics.append({"split": "valid", **row})
        if record.metrics:
            training = self.state == "training"
            replace_file(self.path, render_run_page(record._replace(is_training=training)).encode())

    def _try_or_warn(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except Exception as error:  # any error: the report must not end training
            self.info(tr("warning: the report is incomplete: {error}", error=error))
            self.info = lambda line: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.is_started and self.state == "training":
            self.state = "failed"
            self._try_or_warn(self._write_page)
