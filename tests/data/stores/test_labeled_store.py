"""Tests of data/stores/labeled_store.py."""

from pathlib import Path

import numpy as np
from tests.data.conftest import Write

from polyhead.data.readers.labeled import open_labeled
from polyhead.data.stores.labeled_store import LabeledStore
from polyhead.tokenizers.tokenizer import Tokenizer


def test_a_store_holds_the_rows_as_they_are_read(write: Write, tokenizer: Tokenizer, tmp_path: Path) -> None:
    found = open_labeled([write("a.tsv", "b\tab\tc\na\tdefgh\tijklmnop\n?\tq\tr\n")], text=[1, 2], label=0)
    store = LabeledStore.open_or_build(found, ["a", "b"], tokenizer, tmp_path, max_len=11)
    again = LabeledStore.open_or_build(found, ["a", "b"], tokenizer, tmp_path, max_len=11)
    s, e = tokenizer.bos_id, tokenizer.eos_id
    ab, c, defg, ijkl = tokenizer.encode(["ab", "c", "defg", "ijkl"])
    for one in (store, again):
        assert one.row_tokens(0).tolist() == [s, *ab, e, *c, e]
        assert one.row_tokens(1).tolist() == [s, *defg, e, *ijkl, e]
        assert (one.second_starts.tolist(), one.labels.tolist(), one.line_numbers.tolist()) == (
            [4, 6],
            [1, 0],
            [1, 2],
        )
        assert (one.report.truncated, one.report.unknown_label) == (1, 1)
        assert str(one.report).endswith("; truncated 1 (first: line 2)")
    assert (
        LabeledStore.open_or_build(found, ["a", "b"], tokenizer, tmp_path, max_len=20).directory
        != store.directory
    )
    given, labels = store.collate(np.array([1, 0]), tokenizer.pad_id)
    assert labels.tolist() == [0, 1]
    assert given.tokens[1].tolist() == [s, *ab, e, *c, e] + [tokenizer.pad_id] * 5
    assert given.pos is not None and given.pos.tolist() == [list(range(11)), [0, 1, 2, 3, 4, 5] + [-1] * 5]
    assert given.segments is not None and given.segments.tolist() == [
        [0] * 6 + [1] * 5,
        [0] * 4 + [1] * 2 + [0] * 5,
    ]
    assert given.model_args(0)[2] is None and given.model_args(2)[2] is given.segments
