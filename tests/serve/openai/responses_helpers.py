"""Shared by the tests of responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.serve.conftest import living
from tests.serve.tool_calls import make

from polyhead.serve.http.limits import Limits

TALK = [
    {"role": "user", "content": "ein hund bellt . 犬"},
    {"role": "assistant", "content": "a dog barks ."},
    {
        "role": "user",
        "content": [{"type": "input_text", "text": "zwei "}, {"type": "input_text", "text": "hunde"}],
    },
]


@pytest.fixture(scope="module", params=[("chatml", None), ("llama3", None), ("mistral", True)], ids=str)
def live(request: Any) -> Iterator[Any]:
    with living(make(*request.param), limits=Limits(max_chars=2000)) as found:
        yield found
