"""``polyhead report``: write the page of a training run, or of several in one chart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from polyhead.cli.options import page_option
from polyhead.core.i18n import tr
from polyhead.core.output_paths import check_output_file, run_artifacts


def run(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="paths of runs, finished or not")],
    output: Annotated[Path | None, page_option("RUN/report.html; report.html for several runs")] = None,
) -> None:
    """Write the report page of a training run: curves, speed, examples, errors by group, attention.

    No model is loaded: everything is read from the run directory. Several runs share one chart, with their
    final metrics and the differences between their recipes.

    \b
    polyhead report runs/multi30k
    polyhead report runs/rope runs/sinusoidal --output rope-or-sinusoidal.html
    """
    from polyhead.viz.html_page import link_run_pages, save_page
    from polyhead.viz.run_page import render_run_page, render_runs_page
    from polyhead.viz.run_record import PAGE, read_run

    default = runs[0] / PAGE if len(runs) == 1 else Path(PAGE)
    records = [read_run(directory) for directory in runs]
    path = check_output_file(
        output or default, "--output", [file for directory in runs for file in run_artifacts(directory)]
    )
    prefix = os.path.relpath(runs[0], path.parent).replace(os.sep, "/") + "/"
    prefix = "" if path.parent == runs[0] else prefix
    page = render_run_page(records[0], prefix=prefix) if len(records) == 1 else render_runs_page(records)
    print(tr("report: {path}", path=save_page(path, page)))
    for directory in runs:
        link_run_pages(directory)
