"""Tests of data/readers/line_stream.py."""

from __future__ import annotations

import io

import pytest

from polyhead.data.readers.line_stream import LineStream

PIECES = [b"a", b"bc\nd", b"\n", b"e" * 5000 + b"\n", "犬\n".encode(), b"the last"]


@pytest.mark.parametrize("size", [1, 3, 8192])
def test_pieces_are_read_as_one_file_whatever_the_buffer(size: int) -> None:
    whole = io.BytesIO(b"".join(PIECES))
    with io.BufferedReader(LineStream(iter(PIECES), io.BytesIO()), size) as stream:
        assert list(stream) == whole.readlines()


def test_closing_it_closes_the_source_of_the_pieces() -> None:
    source = io.BytesIO()
    stream = LineStream(iter(PIECES), source)
    assert stream.read(2) == b"a"
    stream.close()
    assert source.closed and stream.closed
