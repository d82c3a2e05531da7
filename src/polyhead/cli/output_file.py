"""Output of a verb: standard output, or a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from polyhead.cli.line_io import escape_terminal, print_warning
from polyhead.core.atomic_io import name_in_oserror
from polyhead.core.i18n import tr
from polyhead.core.output_paths import check_output_file, ensure_parent, run_artifacts


class PartialFile:
    """Output file that is renamed to its final name when complete; a partial file is kept and reported.

    ``content_name`` is the content in messages ("vectors"); ``make_header`` returns the header of a file of
    so many texts, always of the same length. A symbolic link stays a link, and a device or a pipe is written
    to directly.
    """

    def __init__(
        self, path: Path, content_name: str, make_header: Callable[[int], bytes] | None = None
    ) -> None:
        self.content_name, self.make_header, self.num_texts = content_name, make_header, 0
        self.is_direct = make_header is None and path.exists() and not path.is_file()
        self.path = path.resolve() if path.is_symlink() and not self.is_direct else path
        self.partial_path = path if self.is_direct else self.path.with_name(f"{self.path.name}.part")

    def __enter__(self) -> PartialFile:
        # unbuffered: counted content is in the file
        self.file = ensure_parent(self.partial_path).open("wb", buffering=0)
        self._write_header()
        self.end_offset = 0 if self.is_direct else self.file.tell()
        return self

    def add(self, content: bytes, num_texts: int) -> None:
        """Append the content of ``num_texts`` further texts."""
        self._write(content)
        self.num_texts += num_texts
        self.end_offset += len(content)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self.file:
            if self.is_direct:
                return
            self.file.truncate(self.end_offset)  # remove incomplete content
            self._write_header()
        if kind is None:
            self.partial_path.replace(self.path)
            print_warning(tr("wrote {path}", path=self.path))
        elif self.num_texts:
            print(
                f"the {self.content_name} of the first {self.num_texts:,} texts are in {self.partial_path}",
                file=sys.stderr,
            )
        else:
            self.partial_path.unlink()

    def _write_header(self) -> None:
        if self.make_header is not None:
            self.file.seek(0)
            self._write(self.make_header(self.num_texts))

    def _write(self, content: bytes) -> None:
        """Write all of the content; an OSError names the file, also for a full disk."""
        remaining = memoryview(content)
        with name_in_oserror(self.partial_path):
            while remaining:
                remaining = remaining[self.file.write(remaining) :]


AddLines = Callable[[Iterable[str], int], None]
"""Writes the output lines of a number of further texts."""


def check_output_path(
    output: Path | None, inputs: Iterable[str | None], directory: Path, ensemble: Sequence[str] | None = None
) -> None:
    """Check that ``--output`` can be written and is neither an input nor a file of the runs."""
    if output is not None:
        runs: list[str | Path] = [directory, *(ensemble or [])]
        artifacts = [file for run in runs for file in run_artifacts(run)]
        files = filter(os.path.exists, filter(None, inputs))  # others are texts, of any length
        check_output_file(output, "--output", [*files, *artifacts])


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
