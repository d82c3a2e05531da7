import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.plain_text_helpers import PARAGRAPHS, PLAY, build_store

from polyhead.core.errors import UserError
from polyhead.data.batching.token_windows import collate_windows, plan_windows
from polyhead.data.readers.plain_text import open_text
from polyhead.data.stores.token_store import TokenStore
from polyhead.nn.loss import IGNORE_INDEX


def test_documents_with_a_prefix_are_separate(write_file, tokenizer, tmp_path):
    """The end of a document has no label: it would be the prefix of the next."""
    text, cache = open_text([write_file("play", PLAY)], "blank"), tmp_path / "cache"
    prefix, end, ids = [tokenizer.bos_id], tokenizer.eos_id, tokenizer.encode(PARAGRAPHS)
    store = TokenStore.open_or_build(text, tokenizer, cache, prefix)
    assert store.ids.tolist() == [token for row in ids for token in (*prefix, *row, end)]
    assert store.document_starts.tolist() == [0, len(ids[0]) + 2, len(ids[0]) + len(ids[1]) + 4]
    rows = collate_windows(store, np.array([0]), len(store), has_documents=True)
    assert rows.labels[0].tolist() == [token for row in ids for token in (*row, end, IGNORE_INDEX)]
    assert rows.pos[0].tolist() == [i for row in ids for i in range(len(row) + 2)]
    plain, default = (TokenStore.open_or_build(text, tokenizer, cache, *args) for args in ((), ([end],)))
    assert plain.directory != store.directory
    assert (default.directory, default.has_document_prefix) == (plain.directory, False)


@given(length=st.integers(2, 300), width=st.integers(1, 40), rows=st.integers(1, 9), epoch=st.integers(0, 50))
def test_windows_of_an_epoch_do_not_overlap(length, width, rows, epoch):
    if (length - 1) // width < 2:
        with pytest.raises(UserError, match=f"{length} tokens of text are fewer than two rows of {width}"):
            plan_windows(length, width, rows, seed=3, epoch=epoch)
        return
    batches, repeats = (plan_windows(length, width, rows, seed=3, epoch=epoch) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(batches, repeats, strict=True))
    starts = np.sort(np.concatenate(batches))
    n = (length - 1) // width - 1
    assert len({len(batch) for batch in batches}) == 1 and len(batches[0]) == min(rows, n)
    assert len(starts) == max(n - n % rows, n % rows if n < rows else 0)
    assert starts[0] >= 0 and starts[-1] + width < length  # with the last label
    assert len(set(starts % width)) == 1 and (np.diff(starts) >= width).all()


def test_order_depends_on_seed_and_epoch():
    plans = {
        tuple(np.concatenate(plan_windows(50, 7, 2, seed=seed, epoch=epoch)).tolist())
        for seed in (0, 1)
        for epoch in range(40)
    }
    assert len(plans) > 70
    assert {start for plan in plans for start in plan} == set(range(50 - 7))


@pytest.mark.parametrize("kind", ["file", "line", "blank"])
@pytest.mark.parametrize("width", [1, 3, 10, 1000])
def test_adjacent_windows_have_each_label_once(write_file, tokenizer, tmp_path, kind, width):
    store = build_store(tmp_path, tokenizer, [write_file("play", PLAY)], kind)
    starts = np.arange(0, len(store) - 1, width)
    rows = collate_windows(store, starts, width, has_documents=kind != "file")
    is_label = rows.labels >= 0
    assert rows.labels[is_label].tolist() == store.ids[1:].tolist()
    assert rows.tokens[is_label].tolist() == store.ids[:-1].tolist()
    if kind == "file":
        assert rows.pos is None
        return
    document_starts = set(store.document_starts.tolist())
    for start, tokens, positions in zip(starts.tolist(), rows.tokens, rows.pos.tolist(), strict=True):
        expected = -1
        for i, position in enumerate(positions):
            expected = 0 if start + i in document_starts else expected + 1
            assert position == expected
            assert i == 0 or position or tokens[i] == tokenizer.eos_id
