"""Tests of generation/engine/request.py."""

import itertools

import pytest
from tests.generation.engine.engine_memory_helpers import Fan, Silent, until_idle

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.generation.engine.engine import Engine
from polyhead.generation.engine.request import Request


@pytest.mark.acceptance("D5")
@pytest.mark.parametrize(
    ("block", "max_len"), [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 5), (3, 5), (4, 8)]
)
def test_the_border_of_what_is_let_in_is_the_border_of_what_can_run(block, max_len):
    """One page less than suffices is refused, and would not have sufficed."""
    sizes = itertools.product(range(1, max_len + 1), (1, 2, 7, 13), (1, 3), (False, True))
    for length, most, width, fork in sizes:
        wish, prompt = (width, most, 1 if fork else width), list(range(length))
        wanted = (
            Engine(Silent(), max_len=max_len, cache=Choice("paged", block_size=block))
            .submit(prompt, Fan(*wish))
            .max_kv_tokens
            // block
        )
        engine = Engine(Silent(), max_len=max_len, cache=Choice("paged", block_size=block, max_blocks=wanted))
        engine.submit(prompt, Fan(*wish)).result()
        if wanted > 1:
            engine = Engine(
                Silent(), max_len=max_len, cache=Choice("paged", block_size=block, max_blocks=wanted - 1)
            )
            with pytest.raises(UserError, match="require a cache of"):
                engine.submit(prompt, Fan(*wish))
            forced = Request(engine, prompt, Fan(*wish), None, 0)
            engine.waiting_requests.append(forced)
            until_idle(engine)
            assert forced.finish_status.reason == "error", (prompt, wish, wanted)
