"""``polyhead verify``: verify the files of a run with their digests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyhead.core.errors import UserError
from polyhead.core.i18n import tr, translate_message


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="path of a run, finished or not")],
) -> None:
    """Verify the files of a run with the digests written when training ended.

    Prints one line per file and checkpoint: ok; changed, a text file that was edited since; missing; or
    damaged. The exit code is 2 if anything is missing or damaged, or if the run does not load.

    \b
    polyhead verify runs/multi30k
    """
    from polyhead.run.verify_run import verify_run

    files = []
    for file in verify_run(directory):
        files.append(file)
        reason = f": {translate_message(file.reason)}" if file.reason else ""
        print(f"{tr(file.status):<8} {file.name}{reason}", flush=True)
    if invalid := [file.name for file in files if not file.is_valid]:
        raise UserError(f"{directory}: damaged or missing: {', '.join(invalid)}")
    if not (directory / "manifest.json").exists():
        print(tr("{run} has no manifest.json: its weights have no digest", run=directory))
