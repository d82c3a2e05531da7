"""Line-based input and output of the verbs that work in a pipe."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from polyhead.core.errors import UserError, did_you_mean
from polyhead.data.readers import files
from polyhead.tokenizers.terminal_escapes import escape_controls

MAX_NAME_LENGTH = 255  # characters of a file name
NAME_SIMILARITY = 0.7  # minimum similarity of an argument and a file name for a hint


def read_lines(source: str) -> Iterator[str]:
    r"""Yield the lines of a file (gzip or not), a pipe, or standard input for ``-``; only "\n" ends a line.

    Invalid UTF-8 becomes U+FFFD and is reported, so that line n of the output stays line n of the input; a
    binary file is rejected.
    """
    path = Path(source)
    if source != "-" and not os.path.exists(path):
        names = [p.name for p in path.parent.glob("*")] if os.path.isdir(path.parent) else []
        hint = (
            "; to pass a text use a pipe: echo TEXT | polyhead ..." if any(map(str.isspace, source)) else ""
        )
        raise UserError(f"no file {source!r}{hint or did_you_mean(path.name, names)}")
    if source == "-":
        raw: Iterable[bytes | None] = sys.stdin.buffer
    elif path.is_dir():
        files.check_file(path)  # raises an error that describes the directory
        raise AssertionError("unreachable")
    elif path.is_file():
        if files.is_table(path):
            raise UserError(
                f"{source} is a table; expected lines of text: write one of its columns to a file"
            )
        files.reject_binary(path)
        raw = files.iter_lines(path)
    else:  # a named pipe cannot be rewound, as gzip detection requires
        raw = path.open("rb")
    return decode_lines(raw, "standard input" if source == "-" else source)


def read_lines_or_text(source: str) -> Iterator[str]:
    """Yield the lines of a file or of standard input, or ``source`` itself as a text.

    A note is printed if the text resembles the name of a file.
    """
    if source == "-" or is_file(source):
        return read_lines(source)
    if len(source) <= MAX_NAME_LENGTH and not any(map(str.isspace, source)):
        hint = did_you_mean(source, os.listdir(), NAME_SIMILARITY)
        if hint or "/" in source:
            print(f"polyhead: {source!r} is read as text, since no such file exists{hint}", file=sys.stderr)
    return iter([source])


def is_file(source: str) -> bool:
    """Whether an argument denotes a file: it exists, or it looks like a file name.

    An empty argument, or one with whitespace that is no existing file, is a text.
    """
    if not source or any(map(str.isspace, source)):
        return os.path.isfile(source)  # also False for a text that is longer than any file name
    if os.path.exists(source) or Path(source).suffix in (".txt", ".tsv", ".gz"):
        return True
    return "/" in source and (source[0] in "/." or os.path.isdir(os.path.dirname(source)))


def decode_lines(raw: Iterable[bytes | None], name: str) -> Iterator[str]:
    """Decode lines of bytes, without their line ends.

    The first line that is not UTF-8 is reported, further ones are counted. Compressed data and UTF-16 are
    rejected.
    """
    bad = 0
    for number, line in enumerate(raw, 1):
        if number == 1 and line:
            files.reject_compressed(name, line)
        if line is None:
            raise UserError(f"line {number} is longer than {files.MAX_LINE:,} bytes")
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        text = line.removeprefix(files.BOM).decode(errors="replace")
        if "\ufffd" in text and not files.is_text(line.replace(b"\0", b"")):
            if not bad:
                print(
                    f"polyhead: line {number} is not UTF-8; invalid bytes are replaced by U+FFFD",
                    file=sys.stderr,
                )
            bad += 1
        yield text
    if bad > 1:
        print(f"polyhead: {bad:,} lines in total are not UTF-8", file=sys.stderr)


def stdin_has_data() -> bool:
    """Whether standard input has unread data; False where this cannot be determined."""
    try:  # fails for pipes on Windows, and if standard input is closed or missing
        if sys.stdin.isatty() or not select.select([sys.stdin], [], [], 0)[0]:
            return False
        return bool(sys.stdin.buffer.peek(1))  # type: ignore[union-attr]
    except (OSError, ValueError, AttributeError):
        return False


def choose_read_batch(source: str, read_batch: int) -> int:
    """Return the number of lines processed together: 1 if the user types them in a terminal."""
    return 1 if source == "-" and sys.stdin.isatty() else read_batch


def to_one_line(text: str) -> str:
    """Replace line ends, so that one output stays one line."""
    return text.replace("\r", " ").replace("\n", " ")


def to_one_column(text: str) -> str:
    """Replace line ends and tabs, so that the text stays one column of one line."""
    return to_one_line(text).replace("\t", " ")


def escape_terminal(text: str) -> str:
    """Escape terminal control sequences, but only if standard output is a terminal."""
    return escape_controls(text) if sys.stdout.isatty() else text


class LineCounter:
    """Progress in lines and lines per second on standard error.

    It is shown only in a terminal to which nothing else is written.
    """

    def __init__(self, prints_to_stdout: bool = True) -> None:
        self.is_visible = sys.stderr.isatty() and not (prints_to_stdout and sys.stdout.isatty())
        self.start_time, self.lines = time.perf_counter(), 0

    def show_progress(self, num_in_chunk: int) -> None:
        """Show the completed lines plus those of the current chunk."""
        if self.is_visible:
            done = self.lines + num_in_chunk
            speed = done / max(time.perf_counter() - self.start_time, 1e-9)
            print(f"\r{done:,} lines, {speed:,.1f}/s ", end="", file=sys.stderr, flush=True)

    @contextmanager
    def renumber_errors(self) -> Iterator[None]:
        """Replace the number of a text or pair in a chunk, in a UserError, by its line number."""
        try:
            yield
        except UserError as error:
            line = re.sub(r"^(text|pair) (\d+)\b", lambda m: f"line {self.lines + int(m[2]):,}", str(error))
            raise UserError(line) from None

    def add(self, lines: int) -> None:
        """Add the lines of a completed chunk."""
        self.lines += lines
        self.show_progress(0)

    def close(self) -> None:
        """Move the terminal to a new line."""
        if self.is_visible and self.lines:
            print(file=sys.stderr)
