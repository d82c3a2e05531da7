import pytest
from tests.train.ranks import outputs_of

from polyhead.train.distributed.kv_store import CHUNK_CHARS


@pytest.mark.acceptance("G5", "A6")
def test_values_around_chunk_size_reach_all_ranks():
    """As the tokenizer of a published model, which is larger than one value of a store."""
    values = ["ä" + "x" * (CHUNK_CHARS + extra - 8) for extra in (-1, 0, 1, 9 * CHUNK_CHARS)]

    def work(ranks):
        return [ranks.on_rank0(lambda value=value: value) == value for value in values]

    assert outputs_of(2, work) == [[True] * 4] * 2
