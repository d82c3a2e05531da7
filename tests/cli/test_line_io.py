"""Lines that come in: what is no text is told by its first bytes, and is not read as if it were."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
import zipfile
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from polyhead.cli.line_io import read_lines, stdin_has_data
from polyhead.core.errors import UserError

TEXT = "the dog\na cat\n"


def zipped() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("a.txt", TEXT)
    return made.getvalue()


def table() -> bytes:
    made = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": TEXT.splitlines()}), made)
    return made.getvalue()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lzma.compress(TEXT.encode()), "compressed with xz.*unxz"),
        (bz2.compress(TEXT.encode()), "compressed with bzip2.*bunzip2"),
        (zipped(), "compressed with zip.*unzip"),
        (b"\x28\xb5\x2f\xfd\x04\x00\n", "compressed with zstd.*unzstd"),
        (TEXT.encode("utf-16"), "UTF-16, expected UTF-8"),
        (table(), "table"),
    ],
    ids=["xz", "bzip2", "zip", "zstd", "utf-16", "parquet"],
)
def test_what_is_packed_is_no_line(
    given: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_bytes(given)
    for source, name in ((str(tmp_path / "text"), "text"), ("-", "standard input")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
        with pytest.raises(UserError, match=f"{name} is .*{said}"):
            list(read_lines(source))


def test_a_binary_file_is_refused_before_its_first_line(tmp_path: Path) -> None:
    binary, latin = tmp_path / "model.bin", tmp_path / "latin.txt"
    binary.write_bytes(bytes(range(256)) * 4)
    with pytest.raises(UserError, match=r"model.bin is not text: 4 of its first 4 lines are not UTF-8"):
        read_lines(str(binary))
    latin.write_bytes("Öl\nÄrger\n".encode("latin-1"))
    assert list(read_lines(str(latin))) == ["\ufffdl", "\ufffdrger"]
    latin.write_bytes(b"a\0b\n")
    assert list(read_lines(str(latin))) == ["a\0b"]


def test_gzip_is_unpacked_where_it_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_bytes(gzip.compress(TEXT.encode()))
    assert list(read_lines(str(tmp_path / "text"))) == TEXT.splitlines()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(TEXT.encode()))))
    with pytest.raises(UserError, match="standard input is compressed with gzip; decompress it: gunzip"):
        list(read_lines("-"))


def test_a_text_where_a_file_is_wanted_is_told_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for source, way in (("the dog", "; to pass a text use a pipe: echo TEXT | polyhead ..."), ("dog", "")):
        with pytest.raises(UserError) as told:
            read_lines(source)
        assert str(told.value) == f"no file {source!r}{way}"


@pytest.mark.skipif(sys.platform == "win32", reason="pipes there cannot be asked")
def test_what_is_piped_in_and_nobody_reads_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, seen in ((b"the dog\n", True), (b"", False)):
        read, write = os.pipe()
        with os.fdopen(read) as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            assert not stdin_has_data(), "nothing came yet, and nobody waits for it"
            os.write(write, given)
            os.close(write)
            assert stdin_has_data() is seen
            assert stdin.read() == given.decode(), "it is still there"
    monkeypatch.setattr("sys.stdin", None)
    assert not stdin_has_data()
