import pytest
from tests.serve.conftest import get_error

from polyhead.serve.strict_json import dump_json, dump_json_list

INVALID_BODIES = [
    *(b"", b"{", b"[]", b"7", b"null", b'"text"', b"\xff\xfe", b'\xef\xbb\xbf{"prompt": "x"}'),
    *(b'{"prompt": NaN}', b'{"temperature": Infinity, "prompt": ""}', b'{"prompt": "x", "top_p": 1e999}'),
    *(b'{"prompt": "x", "prompt": "y"}', b'{"prompt": "x"} trailing', b"[" * 10**5, b'{"a":' * 10**5),
    *(b'{"prompt": "\\ud800"}', b'{"prompt": "x", "\\udfff": 1}', b'{"prompt": "\xed\xa0\x80"}'),
    b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
]


@pytest.mark.acceptance("E5", "E7", "E11", "R6")
def test_invalid_json_is_refused(checked_client):
    for body in INVALID_BODIES:
        assert get_error(checked_client.post(body))["code"] == "invalid_json", body[:50]
    fields = {"object": "list", "usage": {"total": 3}}
    for items in ([], [{"index": 0, "text": "ä"}], [1.5, "x", None]):
        assert dump_json_list(fields, "data", iter(items)) == dump_json({**fields, "data": items})
