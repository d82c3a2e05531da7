"""Lines in and lines out of the verbs that work in a pipe."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from polyhead.data import files
from polyhead.errors import UserError, nearest
from polyhead.text.control import spelled

LONGEST_NAME = 255  # characters of a file's name
ALIKE = 0.7  # how like a word and a file's name are for one to be meant by the other


def read_lines(source: str) -> Iterator[str]:
    """The lines of a file (gzip or not), a pipe, or standard input for ``-``; only "\\n" ends a line.

    Bytes that are not UTF-8 become U+FFFD and are reported, so that line n of the output stays line n of the input; a
    file that is binary is refused.
    """
    path = Path(source)
    if source != "-" and not os.path.exists(path):
        there = [p.name for p in path.parent.glob("*")] if os.path.isdir(path.parent) else []
        way = "; a text itself is piped in: echo TEXT | polyhead ..." if any(map(str.isspace, source)) else ""
        raise UserError(f"no file {source!r}{way or nearest(path.name, there)}")
    if source == "-":
        raw: Iterable[bytes | None] = sys.stdin.buffer
    elif path.is_dir():
        files.check_file(path)  # says what is in it
        raise AssertionError("unreachable")
    elif path.is_file():
        if files.is_table(path):
            raise UserError(
                f"{source} is a table; lines of text are wanted here, so write one of its columns to a file"
            )
        files.refuse_binary(path)
        raw = files.lines(path)
    else:  # a named pipe cannot be rewound, which looking for gzip needs
        raw = path.open("rb")
    return decoded(raw, "standard input" if source == "-" else source)


def lines_or_text(source: str) -> Iterator[str]:
    """The lines of a file or of standard input, or a text itself; that a word so like a file's name is one is told."""
    if source == "-" or is_file(source):
        return read_lines(source)
    if len(source) <= LONGEST_NAME and not any(map(str.isspace, source)):
        alike = nearest(source, os.listdir(), ALIKE)
        if alike or "/" in source:
            print(f"polyhead: {source!r} is read as a text, for no file is there{alike}", file=sys.stderr)
    return iter([source])


def is_file(source: str) -> bool:
    """Whether a word is meant as a file: one that is there, or that looks like one; nothing, or what has blanks in it, is a text."""
    if not source or any(map(str.isspace, source)):
        return os.path.isfile(source)  # False too for a text that is longer than any name
    if os.path.exists(source) or Path(source).suffix in (".txt", ".tsv", ".gz"):
        return True
    return "/" in source and (source[0] in "/." or os.path.isdir(os.path.dirname(source)))


def decoded(raw: Iterable[bytes | None], name: str) -> Iterator[str]:
    """Lines of bytes as text, without their line ends; of those that are not UTF-8 the first is named, the others counted.

    What is packed, or UTF-16, has no such lines, and is refused.
    """
    bad = 0
    for number, line in enumerate(raw, 1):
        if number == 1 and line:
            files.refuse_packed(name, line)
        if line is None:
            raise UserError(f"line {number} is longer than {files.MAX_LINE:,} bytes")
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        text = line.removeprefix(files.BOM if number == 1 else b"").decode(errors="replace")
        if "\ufffd" in text and not files.is_text(line.replace(b"\0", b"")):
            if not bad:
                print(
                    f"polyhead: line {number} is not UTF-8; its bad bytes are read as U+FFFD", file=sys.stderr
                )
            bad += 1
        yield text
    if bad > 1:
        print(f"polyhead: {bad:,} lines in all are not UTF-8", file=sys.stderr)


def waiting() -> bool:
    """Whether text is piped in that nobody has read yet; on systems that cannot tell, no."""
    try:  # fails for pipes of Windows, and where standard input is closed, or none
        if sys.stdin.isatty() or not select.select([sys.stdin], [], [], 0)[0]:
            return False
        return bool(sys.stdin.buffer.peek(1))  # type: ignore[union-attr]
    except (OSError, ValueError, AttributeError):
        return False


def chunk_size(source: str, wanted: int) -> int:
    """Lines handled together: one where a person types them and waits for the answer."""
    return 1 if source == "-" and sys.stdin.isatty() else wanted


def one_line(text: str) -> str:
    """The text without line ends, so that one output stays one line."""
    return text.replace("\r", " ").replace("\n", " ")


def one_column(text: str) -> str:
    """The text without line ends and tabs, so that it stays one column of one line."""
    return one_line(text).replace("\t", " ")


def harmless(text: str) -> str:
    """What a model or a file says, for standard output: no command to a terminal; a pipe and a file get it as it is."""
    return spelled(text) if sys.stdout.isatty() else text


class Counter:
    """Lines done and lines a second on standard error, only where that is a terminal to which nothing else goes."""

    def __init__(self, prints: bool = True) -> None:
        self.shown = sys.stderr.isatty() and not (prints and sys.stdout.isatty())
        self.start, self.lines = time.perf_counter(), 0

    def at(self, within: int) -> None:
        """Show the lines done before plus those of the chunk that is being worked on."""
        if self.shown:
            done = self.lines + within
            speed = done / max(time.perf_counter() - self.start, 1e-9)
            print(f"\r{done:,} lines, {speed:,.1f}/s ", end="", file=sys.stderr, flush=True)

    @contextmanager
    def place(self) -> Iterator[None]:
        """A mistake that names a text or a pair of a chunk by its number in it names its line instead."""
        try:
            yield
        except UserError as error:
            line = re.sub(r"^(text|pair) (\d+)\b", lambda m: f"line {self.lines + int(m[2]):,}", str(error))
            raise UserError(line) from None

    def add(self, lines: int) -> None:
        """A chunk is finished."""
        self.lines += lines
        self.at(0)

    def close(self) -> None:
        """Leave the terminal on a new line."""
        if self.shown and self.lines:
            print(file=sys.stderr)
