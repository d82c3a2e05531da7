"""Batches against rows padded one by one, and the end of a sentence among the labels."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhead.core.choice import Choice
from polyhead.data.batching.collate import PairBatch, collate, collate_pairs
from polyhead.data.batching.length_bucketing import plan_epoch
from polyhead.data.readers.parallel_corpus import open_corpus
from polyhead.data.stores.pair_store import PairStore
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

Write = Callable[[str, bytes | str], Path]
Rows = list[list[int]]
BYTE = train_tokenizer(["a"], Choice("byte"), 261)
TWO = BYTE.with_template(
    [BYTE.mask_id], [BYTE.eos_id]
)  # on either side, as mBART and NLLB have a language there
TWO_AND_ONE = BYTE.with_template([], [BYTE.eos_id, BYTE.eos_id])


def padded(rows: Rows, padding: int) -> Rows:
    """Each row with padding up to the longest."""
    width = max(map(len, rows))
    return [row + [padding] * (width - len(row)) for row in rows]


def naive(sources: Rows, targets: Rows, t: Tokenizer) -> tuple[Rows, Rows, Rows, Rows]:
    """Source, positions, decoder input and labels, row by row."""
    return (
        padded([[*row, t.eos_id] for row in sources], t.pad_id),
        padded([[*range(len(row) + 1)] for row in sources], -1),
        padded([[t.bos_id, *row] for row in targets], t.pad_id),
        padded([[*row, t.eos_id] for row in targets], IGNORE_INDEX),
    )


def check(batch: PairBatch, sources: Rows, targets: Rows, t: Tokenizer) -> None:
    source, pos, target, labels = naive(sources, targets, t)
    assert batch.source.tolist() == source
    assert batch.target.tolist() == target
    assert batch.labels.tolist() == labels
    assert batch.n_tokens == sum(len(row) + 1 for row in targets) == int((batch.labels != IGNORE_INDEX).sum())
    if len({len(row) for row in sources}) == 1:
        assert batch.source_pos is None
    else:
        assert batch.source_pos is not None
        assert batch.source_pos.tolist() == pos
    assert {x.dtype for x in (batch.source, batch.target, batch.labels)} == {torch.int64}


ROW = st.lists(st.integers(5, 260), max_size=12)


@given(st.lists(st.tuples(ROW, ROW), min_size=1, max_size=12))
@settings(max_examples=150, deadline=None)
def test_a_batch_is_its_rows_padded_one_by_one(pairs: list[tuple[list[int], list[int]]]) -> None:
    sources, targets = [a for a, _ in pairs], [b for _, b in pairs]
    check(collate_pairs(sources, targets, BYTE), sources, targets, BYTE)


def test_rows_of_a_store_come_in_any_order(write: Write, tmp_path: Path) -> None:
    texts = ["one", "two two", "3", "four four four", "fünf"]
    corpus = open_corpus([write("a.en", "\n".join(texts)), write("a.de", "\n".join(reversed(texts)))])
    store = PairStore.open_or_build(corpus, BYTE, tmp_path / "cache", max_len=30)
    ids = BYTE.encode(texts)
    for rows in ([0], [4, 0, 2], [3, 3], np.array([1, 4]), range(5)):
        check(collate(store, list(rows), BYTE), [ids[i] for i in rows], [ids[4 - i] for i in rows], BYTE)


@pytest.mark.parametrize("tokenizer", [BYTE, TWO, TWO_AND_ONE], ids=["one", "two", "two and one"])
def test_the_planned_cost_is_the_shape_of_the_batch(
    write: Write, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    corpus = open_corpus(
        [
            write("a.en", "".join("x" * n + "\n" for n in range(1, 60))),
            write("a.de", "".join("y" * (60 - n) + "\n" for n in range(1, 60))),
        ]
    )
    store = PairStore.open_or_build(corpus, tokenizer, tmp_path / "cache", max_len=64)
    for rows in plan_epoch(store.source_lengths, store.target_lengths, max_tokens=300, seed=1, epoch=0):
        batch = collate(store, rows, tokenizer)
        assert max(batch.source.numel(), batch.target.numel()) <= 300
        assert batch.source.shape[1] == store.source_lengths[rows].max()
        assert batch.target.shape[1] == store.target_lengths[rows].max()


@pytest.mark.acceptance("A13")
def test_every_row_must_say_the_end_and_padding_is_not_the_end() -> None:
    batch = collate_pairs([[7, 8], [9]], [[10, 11, 12], [13]], BYTE)
    assert BYTE.pad_id != BYTE.eos_id
    assert (batch.labels == BYTE.eos_id).sum(-1).tolist() == [1, 1]
    assert (batch.labels == BYTE.pad_id).sum() == 0
    ends = [row[row != IGNORE_INDEX][-1].item() for row in batch.labels]
    assert ends == [BYTE.eos_id] * 2
    # the decoder reads the start where its label is the first token, and never the end
    assert batch.target[:, 0].tolist() == [BYTE.bos_id] * 2
    assert not (batch.target == BYTE.eos_id).any()


@pytest.mark.acceptance("A13")
def test_the_id_of_padding_comes_from_the_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer_config.json"
    BYTE.save(tmp_path)
    path.write_text(path.read_text().replace('"pad_token": "<pad>"', '"pad_token": "<mask>"'))
    other = Tokenizer.load(tmp_path)
    batch = collate_pairs([[7, 8], [9]], [[10, 11], [13]], other)
    assert other.pad_id == 4
    assert batch.source[1].tolist() == [9, other.eos_id, 4]
    assert batch.target[1].tolist() == [other.bos_id, 13, 4]
