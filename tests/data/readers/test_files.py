"""Tests of data/readers/files.py."""

from __future__ import annotations

import gc
import gzip
import hashlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow.parquet import write_table
from tests.data.plain_text_helpers import documents
from tests.data.readers.parquet_helpers import ROWS
from tests.data.readers.parquet_helpers import both as both

from polyhead.data.readers import files, plain_text
from polyhead.data.readers.files import MAX_LINE, check_file, fingerprint, iter_lines
from polyhead.data.readers.parallel_corpus import CorpusReport, ParallelFiles, open_corpus, read_pairs
from polyhead.data.readers.plain_text import open_text

Write = Callable[[str, bytes | str], Path]


def parallel(write: Write, source: bytes | str, target: bytes | str) -> ParallelFiles:
    return open_corpus([write("a.en", source), write("a.de", target)])


def read(corpus: ParallelFiles) -> tuple[list[str], list[str], CorpusReport]:
    sources, targets, report = read_pairs(corpus)
    assert report.total == report.used + report.empty + report.too_long + report.malformed
    assert report.used == len(sources) == len(targets)
    assert "\n" not in str(report)
    return sources, targets, report


def test_gzip_is_known_by_its_content(write: Write) -> None:
    corpus = open_corpus(
        [write("a.en.gz", gzip.compress(b"one\ntwo\n")), write("a.de", gzip.compress(b"eins\nzwei\n"))]
    )
    assert read(corpus)[:2] == (["one", "two"], ["eins", "zwei"])
    assert fingerprint(corpus.files[0]) == hashlib.sha256(b"one\ntwo\n").hexdigest()


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.csv", "a.csv.gz", "a.parquet"])
def test_every_file_that_is_read_is_closed(name: str, write: Write) -> None:
    content = b"text\none\n"
    if name.endswith(".parquet"):
        write_table(pyarrow.table({"text": ["one"]}), packed := io.BytesIO())
        content = packed.getvalue()
    path = write(name, gzip.compress(content) if name.endswith(".gz") else content)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert check_file(path) == path and len(fingerprint(path)) == 64
        assert next(iter_lines(path)) in list(iter_lines(path))
        gc.collect()
    assert [str(one.message) for one in told] == []


def test_a_line_longer_than_the_limit_is_skipped_whole(write: Write) -> None:
    for size, kept in ((MAX_LINE, 3), (MAX_LINE + 1, 2), (3 * MAX_LINE, 2), (10 * MAX_LINE + 7, 2)):
        _, _, report = read(parallel(write, b"1\n" + b"x" * size + b"\n3\n", "a\nb\nc\n"))
        assert (report.used, report.too_long) == (kept, 3 - kept)


def test_the_same_rows_have_the_same_fingerprint(both: tuple[Path, Path], tmp_path: Path) -> None:
    write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "b.parquet", compression="gzip")
    assert fingerprint(both[0]) == fingerprint(tmp_path / "b.parquet")
    write_table(pyarrow.Table.from_pylist(ROWS[1:]), tmp_path / "b.parquet")
    assert fingerprint(both[0]) != fingerprint(tmp_path / "b.parquet")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.text(alphabet="ab é你\n\r", max_size=40), min_size=1, max_size=4),
    size=st.integers(9, 30),
    piece=st.integers(1, 30),
)
def test_nothing_is_lost_where_long_lines_and_pieces_are_cut(write, monkeypatch, parts, size, piece) -> None:
    content = "x\n" + "".join(parts)
    path = write("long", content)
    spans = list(files.iter_spans(path, size))
    assert b"".join(spans).decode() == content.replace("\r\n", "\n")
    assert all(len(span) <= size and span.count(b"\n") <= 1 for span in spans)
    for span in spans:
        span.decode()  # no character is cut
    whole = {kind: documents(open_text([path], kind)) for kind in ("file", "line", "blank")}
    with monkeypatch.context() as patch:
        patch.setattr(plain_text, "_CHUNK_CHARS", piece)
        for kind, (found, report) in whole.items():
            assert documents(open_text([path], kind)) == (found, report)
        patch.setattr(plain_text, "iter_spans", lambda path: files.iter_spans(path, size))
        assert documents(open_text([path], "line"))[0] == whole["line"][0]
        assert documents(open_text([path], "file"))[0] == whole["file"][0]
