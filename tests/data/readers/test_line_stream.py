import io

import pytest

from polyhead.data.readers.line_stream import LineStream

CHUNKS = [b"a", b"bc\nd", b"\n", b"e" * 5000 + b"\n", "犬\n".encode(), b"the last"]


@pytest.mark.parametrize("size", [1, 3, 8192])
def test_chunks_are_read_as_one_file(size):
    with io.BufferedReader(LineStream(iter(CHUNKS), io.BytesIO()), size) as stream:
        assert list(stream) == io.BytesIO(b"".join(CHUNKS)).readlines()


def test_closing_the_stream_closes_its_source():
    source = io.BytesIO()
    stream = LineStream(iter(CHUNKS), source)
    assert stream.read(2) == b"a"
    stream.close()
    assert source.closed and stream.closed
