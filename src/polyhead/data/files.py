"""Text files as lines of bytes: gzip or not, CSV and Parquet as JSONL; one "\\n" a line, never more than a bounded piece in memory."""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from polyhead.data import comma, parquet
from polyhead.errors import UserError, nearest

MAX_LINE = 1024 * 1024  # bytes; a longer line is skipped whole without being held in memory
SAMPLE = 64 * 1024  # bytes looked at to tell text from anything else
BOM = b"\xef\xbb\xbf"
UNREADABLE = (EOFError, zlib.error, OSError)  # what a damaged or vanished file raises while it is read
PACKED = {
    b"\x1f\x8b": "packed by gzip; unpack it: gunzip",  # what is no file that could be read from its beginning again
    parquet.MARK: "Parquet, a table; wanted text: write one of its columns to a file",
    b"BZh": "packed by bzip2, wanted text or gzip; unpack it: bunzip2",
    b"\xfd7zXZ": "packed by xz, wanted text or gzip; unpack it: unxz",
    b"\x28\xb5\x2f\xfd": "packed by zstd, wanted text or gzip; unpack it: unzstd",
    b"PK\x03\x04": "packed by zip, wanted text or gzip; unpack it: unzip",
}
"""What else files begin with, and what to do."""

# workbooks and documents, of old days and, packed by zip, of today
OFFICE = re.compile(
    rb"\xd0\xcf\x11\xe0|PK\x03\x04.{26}(\[Content_Types\]|_rels/|docProps/|xl/|word/|mimetypeapplication/vnd\.oasis)",
    re.S,
)


def check_file(path: Path) -> Path:
    """The path of a text file, or a UserError that says what is there instead."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; wanted a text file (there: {_there(path)})")
    if not path.exists():
        if not path.parent.is_dir():
            raise UserError(f"no file {path}: there is no folder {path.parent}")
        hint = nearest(path.name, [p.name for p in path.parent.iterdir()]) or ";"
        raise UserError(f"no file {path.name!r} in {path.parent}{hint} there: {_there(path.parent)}")
    if not path.is_file():
        raise UserError(
            f"{path} is not a regular file; a text is read more than once, so write it to one first"
        )
    with opened(path) as file:
        if isinstance(file, parquet.Rows) and path.suffix.lower() != parquet.SUFFIX:
            raise UserError(
                f"{path} is Parquet, which is told by its name; call it {path.name}{parquet.SUFFIX}"
            )
        _refuse_other_than_text(path, file)
    return path


def lines(path: Path, longest: int = MAX_LINE) -> Iterator[bytes | None]:
    """The lines of a file without their "\\n"; None stands for a line of more than ``longest`` bytes.

    Only "\\n" ends a line: "\\x0b", "\\x1c", U+0085, U+2028 and a "\\r" inside stay in it. A byte order mark at
    the start and the "\\r" of a "\\r\\n" are dropped.
    """
    with opened(path) as file:
        read, done = file.readline, 0
        try:
            while line := read(longest + 1):
                if not done and line.startswith(BOM):
                    line = line[len(BOM) :]
                whole = line.endswith(b"\n")
                if not whole and len(line) > longest:
                    while (rest := read(MAX_LINE)) and not rest.endswith(b"\n"):
                        pass
                    yield None
                else:
                    yield line.removesuffix(b"\n").removesuffix(b"\r")
                done += 1
        except UNREADABLE as error:
            raise UserError(f"{path}: damaged or unreadable after line {done}: {error}") from None


def spans(path: Path, size: int = MAX_LINE) -> Iterator[bytes]:
    """The text of a file in order: lines with their ends, and those longer than ``size`` bytes in several spans.

    A span ends after a blank, or where there is none between two characters. A byte order mark at the start and the
    "\\r" of a "\\r\\n" are dropped.
    """
    with opened(path) as file:
        rest, done = b"", 0
        try:
            while new := file.readline(size - len(rest)):
                text, rest = rest + (new if done else new.removeprefix(BOM)), b""
                done += len(new)
                if text.endswith(b"\r\n"):
                    text = text[:-2] + b"\n"
                elif not text.endswith(b"\n") and len(text) > size - 4:
                    # before the last character, which may not be whole yet
                    within = next((i for i in range(len(text) - 1, 0, -1) if text[i] & 0xC0 != 0x80), 0)
                    cut = text.rfind(b" ", len(text) // 2, within) + 1 or within or len(text)
                    text, rest = text[:cut], text[cut:]
                if text:
                    yield text
            if rest:
                yield rest
        except UNREADABLE as error:
            raise UserError(f"{path}: damaged or unreadable after byte {done:,}: {error}") from None


def fingerprint(path: Path) -> str:
    """SHA-256 of a file's text, uncompressed."""
    digest = hashlib.sha256()
    with opened(path) as file:
        try:
            while block := file.read(1 << 20):
                digest.update(block)
        except UNREADABLE as error:
            raise UserError(f"{path}: damaged or unreadable: {error}") from None
    return digest.hexdigest()


def is_text(line: bytes) -> bool:
    """Whether bytes are UTF-8 without a NUL."""
    if b"\x00" in line:
        return False
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def opened(path: Path) -> BinaryIO:
    """The file for reading: unpacked if its first bytes say gzip, whatever its name says; CSV and Parquet as lines of JSON."""
    try:
        file: BinaryIO = path.open("rb")
        first = file.read(len(parquet.MARK))
        file.seek(0)
        if first[:2] == b"\x1f\x8b":  # by its name, for gzip closes no file that it is given
            file.close()
            file = cast(BinaryIO, gzip.GzipFile(path, "rb"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if first == parquet.MARK:
        file.close()
        return parquet.opened(path)
    return comma.opened(path, file, partial(refuse_packed, path)) if comma.is_csv(path) else file


def is_table(path: Path) -> bool:
    """Whether a file is CSV or Parquet, by its name or by how it begins."""
    if comma.is_csv(path) or path.suffix.lower() == parquet.SUFFIX:
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(parquet.MARK)) == parquet.MARK


def refuse_packed(name: object, begin: bytes) -> None:
    """What begins as no UTF-8 text does, but could be made one, is a UserError that says how."""
    if begin[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UserError(f"{name} is UTF-16, wanted UTF-8; convert it: iconv -f UTF-16 -t UTF-8")
    if OFFICE.match(begin):
        raise UserError(
            f"{name} is a file of an office program, wanted text: save it there as CSV in UTF-8, or as plain text"
        )
    for mark, what in PACKED.items():
        if begin.startswith(mark):
            raise UserError(f"{name} is {what}")


def refuse_binary(path: Path) -> None:
    """A UserError if the file begins with lines that are not UTF-8 and have zero bytes, as text in no encoding has."""
    try:
        with opened(path) as file:
            sample = file.read(SAMPLE)
    except UNREADABLE:  # which is said where it is read
        return
    refuse_packed(path, sample)
    found = sample.split(b"\n")
    complete = found[:-1] or found  # the last may be cut inside a character
    bad = sum(not is_text(line) for line in complete)
    if any(b"\0" in line and not is_text(line.replace(b"\0", b"")) for line in complete):
        raise UserError(f"{path} is not text: {bad} of its first {len(complete)} lines are not UTF-8")


def _refuse_other_than_text(path: Path, file: BinaryIO) -> None:
    try:
        sample = file.read(SAMPLE)
    except UNREADABLE as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not sample:
        raise UserError(f"{path} is empty")
    refuse_packed(path, sample)
    found = sample.split(b"\n")
    complete = found[:-1] if len(sample) == SAMPLE and len(found) > 1 else found
    bad = sum(not is_text(line) for line in complete)
    if len(found) == 1 and len(sample) == SAMPLE:  # one long line, cut perhaps inside a character
        bad = int(b"\x00" in sample or not sample.decode(errors="ignore"))
    if 2 * bad > len([line for line in complete if line]):
        raise UserError(
            f"{path} does not look like UTF-8 text: {bad} of its first {len(complete)} lines are not; "
            "if it is text in another encoding, convert it: iconv -f LATIN1 -t UTF-8"
        )
    if b"\n" not in sample and sample.rstrip(b"\r").count(b"\r") > 1:
        raise UserError(f"{path} ends its lines with a bare \\r; convert it: tr '\\r' '\\n'")


def _there(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir())
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (", ".join(names[:8]) or "nothing") + more
