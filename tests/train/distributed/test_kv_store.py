"""Tests of train/distributed/kv_store.py."""

from __future__ import annotations

import pytest
from tests.train.several import together

from polyhead.train.distributed.kv_store import CHUNK_CHARS
from polyhead.train.distributed.process_group import ProcessGroup

pytestmark = [pytest.mark.usefixtures("unsynced"), pytest.mark.acceptance("G5", "A6")]


@pytest.mark.parametrize("more", [-1, 0, 1, 9 * CHUNK_CHARS])
def test_what_is_told_may_be_of_any_size(more: int) -> None:
    """As the tokenizer of a published model, which has more than a store takes at once."""

    def work(ranks: ProcessGroup) -> bool:
        return bool(
            ranks.on_rank0(lambda: "ä" + "x" * (CHUNK_CHARS + more - 8))
            == "ä" + "x" * (CHUNK_CHARS + more - 8)
        )

    assert [end.said for end in together(2, work)] == [True, True]
