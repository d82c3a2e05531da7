"""Rows of equal width from texts of any length: every token once, nothing cut that fits, little left over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
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
from polyhead.tokenizers.tokenizer import Tokenizer


def best_fit(sizes: list[int], width: int) -> list[list[int]]:
    """Best-fit decreasing by looking at every row; the sizes in each."""
    rows: list[list[int]] = []
    for size in sorted(sizes, reverse=True):
        fitting = [row for row in rows if sum(row) + size <= width]
        if fitting:
            max(fitting, key=sum).append(size)
        else:
            rows.append([size])
    return rows


@given(st.lists(st.integers(1, 20), max_size=60), st.integers(20, 40), st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
def test_packing_is_best_fit_decreasing(sizes: list[int], width: int, seed: int) -> None:
    rows = pack_segments(np.array(sizes, dtype=np.int64), width, row_rng([seed]))
    assert sorted(piece for row in rows for piece in row) == list(range(len(sizes)))
    found = sorted(sum(sizes[piece] for piece in row) for row in rows)
    assert found == sorted(map(sum, best_fit(sizes, width)))
    assert all(total <= width for total in found)


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=12),
    st.integers(1, 20),
    st.one_of(st.none(), st.integers(0, 10**6)),
)
@settings(max_examples=200, deadline=None)
def test_cutting_keeps_every_token_once(lengths: list[int], room: int, seed: int | None) -> None:
    starts = np.cumsum([0, *lengths[:-1]])
    pieces = cut_segments(
        Segments(starts, np.array(lengths)), room, None if seed is None else row_rng([seed])
    )
    places = [i for start, length in zip(*pieces, strict=True) for i in range(start, start + length)]
    assert places == list(range(sum(lengths)))
    assert ((pieces.lengths > 0) & (pieces.lengths <= room)).all()
    for start, length in zip(starts.tolist(), lengths, strict=True):
        inside = [n for s, n in zip(*pieces, strict=True) if start <= s < start + length]
        if 0 < length <= room:
            assert inside == [length]  # a text that fits is whole
        assert all(n == room for n in inside[1:-1])


def test_long_texts_are_cut_elsewhere_in_every_epoch() -> None:
    whole = Segments(np.array([0]), np.array([1000]))
    firsts = {int(cut_segments(whole, 10, row_rng([epoch])).lengths[0]) for epoch in range(200)}
    assert firsts == set(range(1, 11))
    assert cut_segments(whole, 10, None).lengths.tolist() == [10] * 100


@pytest.mark.parametrize("kind", ["line", "file", "blank"])
def test_packed_rows_hold_framed_documents(kind: str, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Beside rows put together by hand."""
    lines = ["one", "two two", "", "three and more", "x" * 30]
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    text = open_text([tmp_path / "a.txt"], kind)  # type: ignore[arg-type]
    store = TokenStore.open_or_build(text, tokenizer, tmp_path / "cache")
    found = split_documents(store, tokenizer.eos_id)
    read = [tokenizer.decode([store.ids[s : s + n].tolist()])[0] for s, n in zip(*found, strict=True)]
    wanted = {
        "line": [line for line in lines if line],
        "file": ["".join(f"{line}\n" for line in lines)],
        "blank": ["one\ntwo two", "\n".join(lines[3:])],
    }[kind]
    assert read == wanted
    width, seen = 16, []
    for packed in plan_packed_rows(
        cut_segments(found, width - SPECIAL_PER_SEGMENT, None), width, 2, 0, row_rng([1])
    ):
        tokens, pos = collate_packed_rows(store, packed, tokenizer)
        assert len(tokens) == len(packed.rows) <= 2 and tokens.shape == pos.shape and tokens.shape[1] <= width
        by_hand: list[list[int]] = [[] for _ in packed.rows]
        places: list[list[int]] = [[] for _ in packed.rows]
        for row, start, length in zip(packed.row_of_segment, *packed.segments, strict=True):
            ids = store.ids[start : start + length].tolist()
            by_hand[row] += [tokenizer.bos_id, *ids, tokenizer.eos_id]
            places[row] += range(length + 2)
            seen += ids
        longest = max(map(len, by_hand))
        assert tokens.tolist() == [row + [tokenizer.pad_id] * (longest - len(row)) for row in by_hand]
        assert pos.tolist() == [row + [-1] * (longest - len(row)) for row in places]
    assert sorted(seen) == sorted(store.ids[store.ids != tokenizer.eos_id].tolist())
