"""Tests of data/batching/token_windows.py."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.plain_text_helpers import build

from polyhead.core.errors import UserError
from polyhead.data.batching.token_windows import collate_windows, plan_windows
from polyhead.data.readers.plain_text import open_text
from polyhead.data.stores.token_store import TokenStore
from polyhead.nn.loss import IGNORE_INDEX

PLAY = "ROMEO:\nBut soft!\n\n\nJULIET:\nAy me.\n \nROMEO:\nShe speaks."


def test_documents_that_begin_with_tokens_of_their_own_stand_apart(write, tokenizer, tmp_path) -> None:
    """No end of one is asked for how the next begins."""
    text, end = open_text([write("play", PLAY)], "blank"), tokenizer.eos_id
    begin = [tokenizer.bos_id]
    assert begin != [end]
    store = TokenStore.open_or_build(text, tokenizer, tmp_path / "cache", begin)
    read = tokenizer.encode(["ROMEO:\nBut soft!", "JULIET:\nAy me.", "ROMEO:\nShe speaks."])
    assert store.ids.tolist() == [token for ids in read for token in (*begin, *ids, end)]
    assert store.document_starts.tolist() == [0, len(read[0]) + 2, len(read[0]) + len(read[1]) + 4]
    rows = collate_windows(store, np.array([0]), len(store), has_documents=True)
    wanted = [token for ids in read for token in (*ids, end, IGNORE_INDEX)]
    assert rows.labels[0].tolist() == wanted
    assert rows.pos[0].tolist() == [i for ids in read for i in range(len(ids) + 2)]
    plain = TokenStore.open_or_build(text, tokenizer, tmp_path / "cache")
    assert plain.directory != store.directory
    same = TokenStore.open_or_build(text, tokenizer, tmp_path / "cache", [end])
    assert (same.directory, same.has_document_prefix) == (plain.directory, False)


@settings(max_examples=100, deadline=None)
@given(length=st.integers(2, 300), width=st.integers(1, 40), rows=st.integers(1, 9), epoch=st.integers(0, 50))
def test_rows_of_an_epoch_lie_side_by_side_and_fit(length, width, rows, epoch) -> None:
    if (length - 1) // width < 2:
        with pytest.raises(UserError, match=f"{length} tokens of text are fewer than two rows of {width}"):
            plan_windows(length, width, rows, seed=3, epoch=epoch)
        return
    batches = plan_windows(length, width, rows, seed=3, epoch=epoch)
    again = plan_windows(length, width, rows, seed=3, epoch=epoch)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))
    starts = np.sort(np.concatenate(batches))
    n = (length - 1) // width - 1
    assert len({len(batch) for batch in batches}) == 1 and len(batches[0]) == min(rows, n)
    assert len(starts) == max(n - n % rows, n % rows if n < rows else 0)
    assert starts[0] >= 0 and starts[-1] + width < length  # the last label is there
    assert len(set(starts % width)) == 1 and (np.diff(starts) >= width).all()


def test_the_order_is_of_seed_and_epoch_and_every_place_begins_a_row_some_day() -> None:
    plans = [
        np.concatenate(plan_windows(50, 7, 2, seed=seed, epoch=epoch)).tolist()
        for seed in (0, 1)
        for epoch in range(40)
    ]
    assert len({tuple(plan) for plan in plans}) > 70
    assert {start for plan in plans for start in plan} == set(range(50 - 7))


@pytest.mark.parametrize("kind", ["file", "line", "blank"])
@pytest.mark.parametrize("width", [1, 3, 10, 1000])
def test_rows_side_by_side_ask_for_each_token_once_and_count_positions_in_documents(
    write, tokenizer, tmp_path, kind, width
) -> None:
    store = build(tmp_path, tokenizer, [write("play", PLAY)], kind)
    starts = np.arange(0, len(store) - 1, width)
    rows = collate_windows(store, starts, width, has_documents=kind != "file")
    asked = rows.labels >= 0
    assert rows.labels[asked].tolist() == store.ids[1:].tolist()
    assert rows.tokens[asked].tolist() == store.ids[:-1].tolist()
    if kind == "file":
        assert rows.pos is None
        return
    assert rows.pos is not None
    begins = set(store.document_starts.tolist())
    for start, tokens, pos in zip(starts.tolist(), rows.tokens.tolist(), rows.pos.tolist(), strict=True):
        at = -1
        for i, p in enumerate(pos):
            at = 0 if start + i in begins else at + 1
            assert p == at
            if p == 0 and i:
                assert tokens[i] == tokenizer.eos_id
