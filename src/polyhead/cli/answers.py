"""Where the answers of a verb go: to standard output, or into a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from polyhead.cli.lines import harmless
from polyhead.cli.part_file import PartFile
from polyhead.places import file_place, own_files


class Add(Protocol):
    """Takes the lines that answer so many texts more."""

    def __call__(self, lines: Iterable[str], texts: int) -> None: ...


def output_place(
    output: Path | None, read: Iterable[str | None], directory: Path, others: Sequence[str] | None = None
) -> None:
    """Where ``--output`` is given, a file may be written there, and it is none of what is read or of the runs."""
    if output is not None:
        runs: list[str | Path] = [directory, *(others or [])]
        own = [file for run in runs for file in own_files(run)]
        file_place(output, "--output", [*filter(None, read), *own])


@contextmanager
def answers(output: Path | None, what: str) -> Iterator[Add]:
    """What takes the answers, a chunk of texts at a time; ``what`` they are ("translations") is told of a file that was not ended."""
    if output is None:

        def shown(lines: Iterable[str], texts: int) -> None:
            for line in lines:
                print(harmless(line))
            print(end="", flush=True)

        yield shown
        return
    with PartFile(output, what) as file:
        yield lambda lines, texts: file.add("".join(f"{line}\n" for line in lines).encode(), texts)
