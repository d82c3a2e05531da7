"""Read text files as lines of bytes: plain or gzip, CSV and Parquet as JSONL.

Only "\\n" ends a line. At most a bounded part of a file is in memory.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from polyhead.core.errors import UserError
from polyhead.core.output_paths import did_you_mean_path
from polyhead.data.readers import csv, parquet
from polyhead.data.readers.detect_encoding import detect_encoding

MAX_LINE = 1024 * 1024  # bytes; a longer line is skipped without being kept in memory
SAMPLE_BYTES = 64 * 1024  # bytes examined to distinguish text from other files
_FEW_BAD_LINES = 2  # that are no evidence of another encoding
_MAX_BAD_SHARE = 0.1  # of the lines of a text that are skipped because they are in another encoding
BOM = b"\xef\xbb\xbf"
# text shrinks to a tenth, logs to a hundredth; one repeated byte to a thousandth
_MAX_RATIO, _BUFFER_BYTES = 300, 1 << 17  # unpacked / packed bytes; packed bytes that are read ahead
READ_ERRORS = (EOFError, zlib.error, OSError)  # raised while reading a damaged or deleted file
OTHER_FORMATS = {
    b"\x1f\x8b": "compressed with gzip; decompress it: gunzip",  # only streams: gzip files are read
    parquet.PARQUET_MAGIC: "Parquet, a table; expected text: write one of its columns to a file",
    b"BZh": "compressed with bzip2, expected text or gzip; decompress it: bunzip2",
    b"\xfd7zXZ": "compressed with xz, expected text or gzip; decompress it: unxz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd, expected text or gzip; decompress it: unzstd",
    b"PK\x03\x04": "compressed with zip, expected text or gzip; decompress it: unzip",
    b"7z\xbc\xaf\x27\x1c": "compressed with 7-Zip, expected text or gzip; decompress it: 7z x",
    b"Rar!\x1a\x07": "compressed with RAR, expected text or gzip; decompress it: unrar x",
    b"\x04\x22\x4d\x18": "compressed with lz4, expected text or gzip; decompress it: unlz4",
    **dict.fromkeys(
        (b"\x89PNG", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"II*\x00", b"MM\x00*"),
        "a picture, expected text; recognize its text: tesseract",
    ),
}
"""First bytes of other formats, and how to convert them."""

# byte order marks, and the escape sequences of encodings whose bytes are ASCII
_ENCODING_MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"\x1b$B": "ISO-2022-JP",
    b"\x1b$)C": "ISO-2022-KR",
}
# office workbooks and documents: the old binary formats and those in zip archives
_OFFICE_MAGIC = re.compile(
    rb"\{\\rtf|\xd0\xcf\x11\xe0|PK\x03\x04.{26}(\[Content_Types\]|_rels/|docProps/|xl/|word/|ppt/|mimetypeapplication/vnd"
    rb"\.oasis)",
    re.S,
)
_PATTERNS = [
    (re.compile(rb"\s*%PDF-"), "a PDF", "pdftotext"),
    (re.compile(rb"PK\x03\x04.{26}mimetypeapplication/epub", re.S), "an e-book", "pandoc -f epub -t plain"),
    (re.compile(rb"RIFF.{4}WEBP|BM.{4}\0{4}|.{4}ftyp(hei|mif|avif)", re.S), "a picture", "tesseract"),
    (
        re.compile(
            rb"RIFF.{4}(WAVE|AVI )|ID3[\2-\4]\0|fLaC\0|OggS\0|\xff[\xfb\xf3\xf1]|\x1aE\xdf\xa3|.{4}ftyp", re.S
        ),
        "sound or a film",
        "whisper",
    ),
    (
        re.compile(rb"(?is)\s*(<\?xml[^>]*>\s*)?(?><!--.*?-->\s*)*+<(!doctype html|html|head|body|div)\b"),
        "HTML",
        "pandoc -f html -t plain",
    ),
    (re.compile(rb"(?i)\s*<(\?xml|tmx|xliff|svg|srcset|refset|tstset)\b"), "XML", "sed 's/<[^>]*>//g'"),
    (
        re.compile(rb'\s*\{\s*"(cells|metadata|nbformat)".*?"cell_type"', re.S),
        "a notebook",
        "jq -r '.cells[].source | add'",
    ),
    (re.compile(rb'\s*\[[^\S\n]*\n\s*["\[{]'), "one JSON list", "jq -c '.[]'"),
    (re.compile(rb'\s*\{[^\S\n]*\n\s*"[^"\n]*"\s*:'), "JSON on several lines", "jq -c ."),
    (
        re.compile(rb"WEBVTT|\[INFORMATION\]|\s*(\d+\r?\n)?\d+:\d\d:\d\d[,.]\d{2,3}( --> |,\d+:\d\d:)"),
        "subtitles",
        "grep -vE '^[0-9:.,[:space:]]*$|-->|^WEBVTT|^\\[[A-Z]'",
    ),
    (re.compile(rb"\s*\[Script Info\]"), "subtitles", "sed -nE 's/^Dialogue:([^,]*,){9}//p'"),
    (re.compile(rb"\s*\{\d+\}\{\d+\}"), "subtitles", "sed -E 's/\\{[^}]*\\}//g'"),
    (
        re.compile(rb"\s*(\[[a-z]+:[^]\n]*\]\s*)*(\[\d+:\d\d[.:]\d{2,3}\][^\n]*\n\s*){2}"),
        "lyrics with times",
        "sed -E 's/\\[[^]]*\\]//g'",
    ),
]
"""First bytes of other formats that a pattern finds, their names, and the command that makes plain text."""


class EmptyFileError(UserError):
    """A file without text."""


def check_files(paths: Iterable[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """(text files, empty files) of paths; a UserError if one is something else, or if all are empty."""
    checked, empty, error = list[Path](), list[Path](), None
    for path in paths:
        try:
            checked.append(check_file(path))
        except EmptyFileError as problem:
            empty.append(path)
            error = error or problem
    if error is not None and not checked:
        raise error
    return tuple(checked), tuple(empty)


def check_file(path: Path) -> Path:
    """Return the path of a text file, or raise a UserError that describes what is there instead."""
    if path.is_dir():
        raise UserError(f"{path} is a directory; expected a text file (it contains: {_list_folder(path)})")
    if not path.exists():
        if not path.parent.is_dir():
            raise UserError(f"no file {path}: no directory {path.parent}")
        hint = did_you_mean_path(path, root=path.parent) or ";"
        raise UserError(f"no file {path.name!r} in {path.parent}{hint} there: {_list_folder(path.parent)}")
    if not path.is_file():
        raise UserError(
            f"{path} is not a regular file; text is read more than once, so save it to a file first"
        )
    with open_lines(path) as file:
        if isinstance(file, parquet.LineReader) and path.suffix.lower() != parquet.PARQUET_SUFFIX:
            raise UserError(
                f"{path} is Parquet, which is detected by file name; rename it to "
                f"{path.name}{parquet.PARQUET_SUFFIX}"
            )
        _require_text(path, file)
    return path


def iter_lines(
    path: Path, max_line: int = MAX_LINE, *, keep_bom: bool = False, keep_beginnings: bool = False
) -> Iterator[bytes | None]:
    """Yield the lines of a file without their "\\n"; None for a line of more than ``max_line`` bytes.

    With ``keep_beginnings``, such a line is cut after ``max_line`` + 1 bytes instead.

    Only "\\n" ends a line: "\\x0b", "\\x1c", U+0085, U+2028 and a "\\r" inside stay in it. A "\\r"
    before the "\\n" is removed, and so is a byte order mark at the start of a line, because files are often
    joined. With ``keep_bom`` only that of the first line is removed.
    """
    with open_lines(path) as file:
        read_line, n_lines = file.readline, 0
        try:
            while line := read_line(max_line + 1):
                if line.startswith(BOM) and not (keep_bom and n_lines):
                    line = line[len(BOM) :]
                is_complete = line.endswith(b"\n")
                if not is_complete and len(line) > max_line:
                    while (rest := read_line(MAX_LINE)) and not rest.endswith(b"\n"):
                        pass
                    yield line if keep_beginnings else None
                else:
                    yield line.removesuffix(b"\n").removesuffix(b"\r")
                n_lines += 1
        except READ_ERRORS as error:
            raise UserError(f"{path}: damaged or unreadable after line {n_lines}: {error}") from None


def iter_spans(path: Path, size: int = MAX_LINE) -> Iterator[bytes]:
    """Yield the text of a file in order, as lines with their ends.

    A line longer than ``size`` bytes comes in several spans. A span ends after a space or, if there is none,
    between two characters. A "\\r" before the "\\n" is removed, and so is a byte order mark at the
    start of the file; at the start of another line it is a span of its own.
    """
    with open_lines(path) as file:
        rest, done, at_line_start = b"", 0, True
        try:
            while new := file.readline(size - len(rest)):
                if at_line_start and new.startswith(BOM):
                    if done:
                        yield BOM
                    new, done = new.removeprefix(BOM), done + len(BOM)
                text, rest = rest + new, b""
                done, at_line_start = done + len(new), new.endswith(b"\n")
                if text.endswith(b"\r\n"):
                    text = text[:-2] + b"\n"
                elif not text.endswith(b"\n") and len(text) > size - 4:
                    # before the last character, which may be incomplete
                    within = next((i for i in range(len(text) - 1, 0, -1) if text[i] & 0xC0 != 0x80), 0)
                    cut = text.rfind(b" ", len(text) // 2, within) + 1 or within or len(text)
                    text, rest = text[:cut], text[cut:]
                if text:
                    yield text
            if rest:
                yield rest
        except READ_ERRORS as error:
            raise UserError(f"{path}: damaged or unreadable after byte {done:,}: {error}") from None


def fingerprint(path: Path) -> str:
    """SHA-256 of the text of a file, uncompressed."""
    digest = hashlib.sha256()
    with open_lines(path) as file:
        try:
            while block := file.read(1 << 20):
                digest.update(block)
        except READ_ERRORS as error:
            raise UserError(f"{path}: damaged or unreadable: {error}") from None
    return digest.hexdigest()


def is_text(line: bytes) -> bool:
    """Whether bytes are UTF-8 without NUL."""
    if b"\x00" in line:
        return False
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def open_lines(path: Path) -> BinaryIO:
    """Open a file for reading.

    It is unpacked if its first bytes are those of gzip, regardless of its name; CSV and Parquet are read as
    lines of JSON.
    """
    file = _open_unpacked(path)
    if isinstance(file, parquet.LineReader) or not csv.is_csv(path):
        return file
    return csv.open_csv(file, partial(reject_other_formats, path))


class _LimitedGzip(gzip.GzipFile):
    """A gzip file for reading; an OSError if it unpacks to far more than any text does."""

    n_unpacked, next_check = 0, _BUFFER_BYTES

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        packed = self._packed_file
        size = packed.seek(0, io.SEEK_END)
        packed.seek(-min(4, size), io.SEEK_END)
        unpacked_size = int.from_bytes(packed.read(), "little")  # unless the file is damaged
        packed.seek(0)
        if self._is_too_much(unpacked_size, size):
            with suppress(EOFError, zlib.error, gzip.BadGzipFile):  # reported when the file is read
                while self.read(MAX_LINE):
                    pass
            self.seek(0)
            self.n_unpacked, self.next_check = 0, _BUFFER_BYTES

    @property
    def _packed_file(self) -> BinaryIO:
        return cast(BinaryIO, self.fileobj)

    def read(self, size: int | None = -1) -> bytes:
        return self._count(super().read(size))

    def read1(self, size: int = -1) -> bytes:
        return self._count(super().read1(size))

    def readline(self, size: int | None = -1) -> bytes:
        return self._count(super().readline(size))

    def _count(self, data: bytes) -> bytes:
        self.n_unpacked += len(data)
        if self.n_unpacked > self.next_check:
            if self._is_too_much(self.n_unpacked, self._packed_file.tell()):
                self.close()
                raise OSError(f"it unpacks to more than {_MAX_RATIO} times its size")
            self.next_check = self.n_unpacked + _BUFFER_BYTES
        return data

    @staticmethod
    def _is_too_much(n_unpacked: int, n_packed: int) -> bool:
        return n_unpacked > _MAX_RATIO * max(_BUFFER_BYTES, n_packed)


def _open_unpacked(path: Path) -> BinaryIO:
    """Open a file as it is, unpacked if it is gzip; Parquet as lines of JSON."""
    try:
        if not path.stat().st_size:  # files of /proc have no size, and reading some of them waits forever
            return io.BytesIO()
        file: BinaryIO = path.open("rb")
        first = file.read(len(parquet.PARQUET_MAGIC))
        file.seek(0)
        if first[:2] == b"\x1f\x8b":  # open by path: GzipFile does not close a file object passed to it
            file.close()
            file = cast(BinaryIO, _LimitedGzip(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    if first == parquet.PARQUET_MAGIC:
        file.close()
        return parquet.open_parquet(path)
    return file


def read_column_names(path: Path) -> list[str]:
    """The names of the columns of a CSV or Parquet file, in order; empty for other files."""
    file = _open_unpacked(path)
    if isinstance(file, parquet.LineReader):
        file.close()
        return parquet.read_parquet_names(path)
    try:
        return csv.read_csv_header(file) if csv.is_csv(path) else []
    finally:
        file.close()


def is_table(path: Path) -> bool:
    """Whether a file is CSV or Parquet, by its name or its first bytes."""
    if csv.is_csv(path) or path.suffix.lower() == parquet.PARQUET_SUFFIX:
        return True
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        return file.read(len(parquet.PARQUET_MAGIC)) == parquet.PARQUET_MAGIC


def reject_other_formats(name: object, header: bytes) -> None:
    """Raise a UserError with the way to plain text if ``header`` is of another known format."""
    for mark, encoding in _ENCODING_MARKS.items():
        if header.startswith(mark) or (mark[0] == 27 and mark in header):
            raise UserError(f"{name} is {encoding}, expected UTF-8; convert it: iconv -f {encoding} -t UTF-8")
    if header.isascii() and (encoding := detect_encoding(header)):
        raise UserError(f"{name} does not look like UTF-8 text; {describe_encoding(encoding)}")
    if _OFFICE_MAGIC.match(header):
        raise UserError(
            f"{name} is an office document, expected text: export it as CSV in UTF-8, or as plain text"
        )
    for pattern, format, command in _PATTERNS:
        if pattern.match(header.removeprefix(BOM)):
            raise UserError(f"{name} is {format}, expected plain text; convert it: {command}")
    for mark, what in OTHER_FORMATS.items():
        if header.startswith(mark):
            raise UserError(f"{name} is {what}")
    if header[257:262] == b"ustar":
        raise UserError(f"{name} is a tar archive, expected text; unpack it: tar -xf")


def reject_binary(path: Path) -> None:
    """Raise a UserError if the first lines are of another format or encoding, or contain zero bytes."""
    try:
        with open_lines(path) as file:
            sample = file.read(SAMPLE_BYTES)
    except READ_ERRORS:  # reported when the file is read
        return
    reject_other_formats(path, sample)
    if not is_text(sample) and detect_encoding(sample):
        _require_utf8(path, sample)
    lines = _complete_lines(sample)
    if any(b"\0" in line and not is_text(line.replace(b"\0", b"")) for line in lines):
        bad = sum(not is_text(line) for line in lines)
        raise UserError(f"{path} is not text: {bad} of its first {len(lines)} lines are not UTF-8")


def _require_text(path: Path, file: BinaryIO) -> None:
    try:
        sample = file.read(SAMPLE_BYTES)
    except READ_ERRORS as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not sample:
        raise EmptyFileError(f"{path} is empty")
    reject_other_formats(path, sample)
    _require_utf8(path, sample, _MAX_BAD_SHARE)
    if b"\n" not in sample and sample.rstrip(b"\r").count(b"\r") > 1:
        raise UserError(f"{path} ends its lines with a bare \\r; convert it: tr '\\r' '\\n'")


def _require_utf8(path: Path, sample: bytes, max_bad_share: float = 0.5) -> None:
    """Raise a UserError that names the encoding if most lines are not UTF-8.

    Also for more than ``max_bad_share`` of the lines, if the encoding is known and only ASCII is UTF-8.
    """
    lines = _complete_lines(sample)
    bad = sum(not is_text(line) for line in lines)
    encoding = detect_encoding(sample) if bad else ""
    if len(lines) == 1 and len(sample) == SAMPLE_BYTES:  # one long line, cut perhaps inside a character
        bad = int(b"\x00" in sample or bool(encoding) or not sample.decode(errors="ignore"))
    is_ascii_or_bad = all(line.isascii() or not is_text(line) for line in lines)
    share = bad / max(sum(map(bool, lines)), 1)
    if share > (max_bad_share if encoding and is_ascii_or_bad and bad > _FEW_BAD_LINES else 0.5):
        raise UserError(
            f"{path} does not look like UTF-8 text: {bad} of its first {len(lines)} lines are not; "
            + (describe_encoding(encoding) or "nor like text in another encoding")
        )


def describe_encoding(encoding: str) -> str:
    """What text in an encoding looks like, and the command that converts it; "" without an encoding."""
    command = f"iconv -f {encoding} -t UTF-8"
    if encoding == "HZ":  # which iconv of Linux does not have
        command = """python3 -c 'import sys; sys.stdout.write(sys.stdin.buffer.read().decode("hz"))'"""
    return encoding and f"it looks like {encoding}; convert it: {command}"


def _complete_lines(sample: bytes) -> list[bytes]:
    """The lines of a sample; if it may be cut, without the last of several."""
    lines = sample.split(b"\n")
    return lines[:-1] if len(sample) == SAMPLE_BYTES and len(lines) > 1 else lines


def _list_folder(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir())
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (", ".join(names[:8]) or "nothing") + more
