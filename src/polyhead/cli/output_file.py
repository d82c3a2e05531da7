"""Output of a verb: standard output, or a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from polyhead.cli.line_io import escape_terminal
from polyhead.cli.partial_file import PartialFile
from polyhead.core.output_paths import check_output_file, run_artifacts


class AddLines(Protocol):
    """Writes the output lines of further texts."""

    def __call__(self, lines: Iterable[str], texts: int) -> None: ...


def check_output_path(
    output: Path | None, inputs: Iterable[str | None], directory: Path, ensemble: Sequence[str] | None = None
) -> None:
    """Check that ``--output`` can be written and is neither an input nor a file of the runs."""
    if output is not None:
        runs: list[str | Path] = [directory, *(ensemble or [])]
        artifacts = [file for run in runs for file in run_artifacts(run)]
        check_output_file(output, "--output", [*filter(None, inputs), *artifacts])


@contextmanager
def open_output(output: Path | None, content_name: str) -> Iterator[AddLines]:
    """Open the output; yield a function that writes the lines of a chunk.

    ``content_name`` ("translations") is the content in the report of a partial file.
    """
    if output is None:

        def print_lines(lines: Iterable[str], texts: int) -> None:
            for line in lines:
                print(escape_terminal(line))
            print(end="", flush=True)

        yield print_lines
        return
    with PartialFile(output, content_name) as file:
        yield lambda lines, texts: file.add("".join(f"{line}\n" for line in lines).encode(), texts)
