import itertools

import pytest
import torch
from tests.generation.engine.engine_helpers import Fan, SilentModel, step_until_idle

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.generation.engine.engine import Engine
from polyhead.generation.engine.request import Request, pad_rows


@pytest.mark.acceptance("D5")
@pytest.mark.parametrize(("block", "max_len"), [(1, 1), (1, 4), (2, 1), (2, 5), (3, 5), (4, 8)])
def test_admission_limit_is_exact(block, max_len):
    """One page less than needed is refused, and would not have been enough."""

    def make_engine(max_blocks=None):
        options = {"max_blocks": max_blocks} if max_blocks else {}
        return Engine(SilentModel(), max_len=max_len, cache=Choice("paged", block_size=block, **options))

    sizes = itertools.product(range(1, max_len + 1), (1, 2, 7, 13), (1, 3), (False, True))
    for length, limit, width, fork in sizes:
        shape, prompt = (width, limit, 1 if fork else width), list(range(length))
        n_blocks = make_engine().submit(prompt, Fan(*shape)).max_kv_tokens // block
        make_engine(n_blocks).submit(prompt, Fan(*shape)).result()
        if n_blocks > 1:
            engine = make_engine(n_blocks - 1)
            with pytest.raises(UserError, match="require a cache of"):
                engine.submit(prompt, Fan(*shape))
            request = Request(engine, prompt, Fan(*shape), None, 0)
            engine.waiting_requests.append(request)
            step_until_idle(engine)
            assert request.finish_status.reason == "error", (prompt, shape, n_blocks)


def test_pad_rows_marks_padding_in_positions():
    tokens, pos = pad_rows([[5, 6, 7], [8]], 1, torch.device("cpu"))
    assert tokens.tolist() == [[5, 6, 7], [8, 1, 1]] and pos.tolist() == [[0, 1, 2], [0, -1, -1]]
    assert pad_rows([[5], [8]], 1, torch.device("cpu"))[1] is None
