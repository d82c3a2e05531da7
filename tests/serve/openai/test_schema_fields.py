"""Tests of serve/openai/schema_fields.py."""

from __future__ import annotations

import psutil
import pytest
from tests.serve.refusals_helpers import canary as canary
from tests.serve.refusals_helpers import refused

from polyhead.serve.http.limits import Limits


@pytest.mark.acceptance("E6")
@pytest.mark.parametrize("name", ["n", "max_tokens", "top_k", "beam_size", "min_tokens", "seed", "logprobs"])
def test_whole_numbers_are_bounded_before_anything_is_made_of_them(speaker, canary, name):
    limits = Limits()
    most = {"n": limits.max_n, "max_tokens": 2**31 - 1, "beam_size": limits.max_beams,
        "min_tokens": limits.max_tokens,
            "top_k": 2**31 - 1, "seed": 2**63 - 1, "logprobs": 20}[name]  # fmt: skip
    least = {"top_k": -1, "min_tokens": 0, "seed": 0, "logprobs": 0}.get(name, 1)
    before = psutil.Process().memory_info().rss
    for value in (
        min(-1, least - 1),
        least - 1,
        most + 1,
        2**63,
        2**64,
        -(2**63),
        1e308,
        1.0,
        "7",
        True,
        [1],
        {},
    ):
        error = refused(speaker.ask("/v1/completions", {"prompt": "a", name: value}))
        assert error["param"] == name, value
    assert psutil.Process().memory_info().rss - before < 10 * 2**20
    if name == "min_tokens":  # within bounds, and more than may be said
        error = refused(
            speaker.ask("/v1/completions", {"prompt": "a", name: most, "max_tokens": 2, "beam_size": 2})
        )
        assert error["param"] == name
        assert "more than the maximum of 2 tokens of this output" in error["message"]
        most = 2
    for value in {least, min(most, 2**53)} - {0}:
        fits = {"truncate": True, "stop": ["a"]} if name == "max_tokens" else {"max_tokens": 2}
        beams = {"beam_size": 2} if name == "min_tokens" else {}
        assert (
            speaker.ask("/v1/completions", {"prompt": "a", name: value, **fits, **beams}).status_code == 200
        ), value


@pytest.mark.acceptance("C9")
@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-38, 1e-6, 1, 1e3])
def test_every_temperature_that_is_one_can_be_drawn_with(speaker, canary, temperature):
    (wanted,) = speaker.run.generate(["dogs"], temperature=temperature, seed=1)
    answer = speaker.ask("/v1/completions", {"prompt": "dogs", "temperature": temperature, "seed": 1}).json()
    assert answer["choices"][0]["text"] == wanted
