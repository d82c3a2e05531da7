"""``polyhead report``: the page of a training, or of several in one chart."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyhead.core.i18n import tr
from polyhead.places import file_place, own_files


def run(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="directories of runs, finished or not")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="where the page goes",
            show_default="RUN/report.html; report.html for several runs",
        ),
    ] = None,
) -> None:
    """Write the page of a training: curves, speed, examples, errors by group, attention.

    It needs no model: all of it lies in the run's directory. Several runs share one chart, beside their final measures
    and what differs in their recipes.

    \b
    polyhead report runs/multi30k
    polyhead report runs/rope runs/sinusoidal --output rope-or-sinusoidal.html
    """
    from polyhead.analysis.page import write
    from polyhead.analysis.run_page import run_page
    from polyhead.analysis.run_record import PAGE, read_run
    from polyhead.analysis.runs_page import runs_page

    default = runs[0] / PAGE if len(runs) == 1 else Path(PAGE)
    records = [read_run(one) for one in runs]
    place = file_place(output or default, "--output", [file for one in runs for file in own_files(one)])
    page = run_page(records[0]) if len(records) == 1 else runs_page(records)
    print(tr("report: {path}", path=write(place, page)))
