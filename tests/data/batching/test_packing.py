import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhead.data.batching.masking import row_rng
from polyhead.data.batching.packing import (
    SPECIAL_PER_SEGMENT,
    Segments,
    collate_packed_rows,
    cut_segments,
    pack_segments,
    plan_packed_rows,
    split_documents,
)
from polyhead.data.readers.plain_text import open_text
from polyhead.data.stores.token_store import TokenStore


def best_fit(sizes, width):
    rows = []
    for size in sorted(sizes, reverse=True):
        fitting = [row for row in rows if sum(row) + size <= width]
        if fitting:
            max(fitting, key=sum).append(size)
        else:
            rows.append([size])
    return rows


@given(st.lists(st.integers(1, 20), max_size=60), st.integers(20, 40), st.integers(0, 10**6))
def test_packing_is_best_fit_decreasing(sizes, width, seed):
    rows = pack_segments(np.array(sizes, dtype=np.int64), width, row_rng([seed]))
    assert sorted(segment for row in rows for segment in row) == list(range(len(sizes)))
    totals = sorted(sum(sizes[segment] for segment in row) for row in rows)
    assert totals == sorted(map(sum, best_fit(sizes, width)))
    assert all(total <= width for total in totals)


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=12),
    st.integers(1, 20),
    st.one_of(st.none(), st.integers(0, 10**6)),
)
def test_cutting_keeps_every_token_once(lengths, room, seed):
    starts, rng = np.cumsum([0, *lengths[:-1]]), None if seed is None else row_rng([seed])
    segments = cut_segments(Segments(starts, np.array(lengths)), room, rng)
    tokens = [i for start, length in zip(*segments, strict=True) for i in range(start, start + length)]
    assert tokens == list(range(sum(lengths)))
    assert ((segments.lengths > 0) & (segments.lengths <= room)).all()
    for start, length in zip(starts.tolist(), lengths, strict=True):
        cuts = [n for s, n in zip(*segments, strict=True) if start <= s < start + length]
        if 0 < length <= room:
            assert cuts == [length]
        assert all(n == room for n in cuts[1:-1])


def test_long_texts_are_cut_differently_in_every_epoch():
    text = Segments(np.array([0]), np.array([1000]))
    firsts = {int(cut_segments(text, 10, row_rng([epoch])).lengths[0]) for epoch in range(200)}
    assert firsts == set(range(1, 11))
    assert cut_segments(text, 10, None).lengths.tolist() == [10] * 100


@pytest.mark.parametrize("kind", ["line", "file", "blank"])
def test_packed_rows_hold_documents_with_special_tokens(kind, tmp_path, tokenizer):
    lines = ["one", "two two", "", "three and more", "x" * 30]
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    store = TokenStore.open_or_build(open_text([tmp_path / "a.txt"], kind), tokenizer, tmp_path / "cache")
    documents = split_documents(store, tokenizer.eos_id)
    texts = [tokenizer.decode([store.ids[s : s + n].tolist()])[0] for s, n in zip(*documents, strict=True)]
    paragraphs = ["one\ntwo two", "\n".join(lines[3:])]
    expected = {"line": [*filter(None, lines)], "file": ["\n".join(lines) + "\n"], "blank": paragraphs}
    assert texts == expected[kind]
    width, packed_ids = 16, []
    segments = cut_segments(documents, width - SPECIAL_PER_SEGMENT, None)
    for packed in plan_packed_rows(segments, width, 2, 0, row_rng([1])):
        tokens, pos = collate_packed_rows(store, packed, tokenizer)
        assert len(tokens) == len(packed.rows) <= 2 and tokens.shape == pos.shape and tokens.shape[1] <= width
        expected, positions = ([[] for _ in packed.rows] for _ in range(2))
        for row, start, length in zip(packed.row_of_segment, *packed.segments, strict=True):
            ids = store.ids[start : start + length].tolist()
            expected[row] += [tokenizer.bos_id, *ids, tokenizer.eos_id]
            positions[row] += range(length + 2)
            packed_ids += ids
        longest = max(map(len, expected))
        assert tokens.tolist() == [row + [tokenizer.pad_id] * (longest - len(row)) for row in expected]
        assert pos.tolist() == [row + [-1] * (longest - len(row)) for row in positions]
    assert sorted(packed_ids) == sorted(store.ids[store.ids != tokenizer.eos_id].tolist())
