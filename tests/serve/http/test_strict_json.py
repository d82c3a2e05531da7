"""Tests of serve/http/strict_json.py."""

from __future__ import annotations

import pytest
from tests.serve.refusals_helpers import canary as canary
from tests.serve.refusals_helpers import post, refused

from polyhead.serve.http.strict_json import dump_json, dump_json_list


def test_a_list_is_encoded_in_pieces_as_in_one():
    fields = {"object": "list", "usage": {"total": 3}}
    for items in ([], [{"index": 0, "text": "ä"}], [1.5, "x", None]):
        assert dump_json_list(fields, "data", iter(items)) == dump_json({**fields, "data": items})


NOT_OBJECTS = [
    b"", b"{", b"[]", b"7", b"null", b'"text"', b"\xff\xfe", b'\xef\xbb\xbf{"prompt": "x"}',
    b'{"prompt": NaN}', b'{"temperature": Infinity, "prompt": ""}',
    b'{"prompt": "x", "temperature": 1e999}', b'{"prompt": "x", "prompt": "y"}', b"[" * 10**5,
    b'{"a":' * 10**5, b'{"prompt": "\\ud800"}',
    b'{"prompt": "x", "\\udfff": 1}', b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "x"} trailing',
    b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
]  # fmt: skip


@pytest.mark.acceptance("E5", "E7", "E11", "R6")
@pytest.mark.parametrize("body", NOT_OBJECTS, ids=range(len(NOT_OBJECTS)))
def test_bodies_that_are_no_strict_json(speaker, canary, body):
    assert refused(post(speaker, body))["code"] == "invalid_json"
