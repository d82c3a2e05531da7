import io

import pytest

from polyhead.data.readers.line_stream import LineStream

CHUNKS = [b"a", b"bc\nd", b"\n", b"e" * 5000 + b"\n", "犬\n".encode(), b"the last"]


@pytest.mark.parametrize("size", [1, 3, 8192])
def test_chunks_are_read_as_one_file(size):
    source = io.BytesIO()
    with io.BufferedReader(LineStream(iter(CHUNKS), source), size) as stream:
        assert list(stream) == io.BytesIO(b"".join(CHUNKS)).readlines()
    assert source.closed
