"""Tests of serve/openai/schemas.py."""

from __future__ import annotations

from typing import Any, get_args

from openai.types.responses import ResponseIncludable
from tests.serve.openai.responses_helpers import live as live

from polyhead.serve.openai.schemas import IncludeValue


def test_the_description_says_what_may_be_sent(live: Any) -> None:
    told = live.ask("/openapi.json").json()
    fields = told["components"]["schemas"]["ResponseBody"]["properties"]
    assert {
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "text",
        "max_output_tokens",
        "include",
    } <= fields.keys()
    assert "responses" in live.ask("/v1/models").json()["data"][0]["polyhead"]["tasks"]


def test_all_that_a_client_may_want_told_besides_is_known() -> None:
    assert set(get_args(IncludeValue)) >= set(get_args(ResponseIncludable))
