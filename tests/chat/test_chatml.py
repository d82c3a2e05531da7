"""Tests of chat/chatml.py."""

from __future__ import annotations

import random

import pytest
from tests.chat.tool_calls_helpers import heard

VALID = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"a\n{VALID}\n", ("a", 1)),
        (f"\n\n{VALID}", ("", 1)),
        (f"{VALID}{VALID}\n{VALID}", ("", 3)),
        (f"a {VALID} b\n{VALID} \n ", ("a  b", 2)),
        (f"<tool_call>\nno\n</tool_call>\n{VALID}", ("<tool_call>\nno\n</tool_call>", 1)),
        (f"<tool_call> {VALID}", ("<tool_call> ", 1)),
        (VALID.removesuffix("\n</tool_call>"), ("", 1)),
        (VALID.replace("\n", " ").replace(" ", "  "), ("", 1)),
        (VALID.replace("arguments", "parameters"), ("", 1)),
    ],
)
def test_calls_and_text_about_them(text: str, wanted: tuple[str, int]) -> None:
    for cuts in (None, *map(random.Random, range(10))):
        assert heard("chatml", text, cuts) == (wanted[0], [("now", "{}")] * wanted[1])
        said, calls = heard("chatml", text, cuts, parallel_tool_calls=False)
        assert calls == [("now", "{}")] and wanted[0].startswith(said)
