import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyhead import Choice
from polyhead.data.batching.collate import collate, collate_pairs
from polyhead.data.batching.length_bucketing import plan_epoch
from polyhead.data.readers.parallel_corpus import open_corpus
from polyhead.data.stores.pair_store import PairStore
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

BYTE = train_tokenizer(["a"], Choice("byte"), 261)
# two special tokens per side, where mBART and NLLB have a language
TWO = BYTE.with_template([BYTE.mask_id], [BYTE.eos_id])
TWO_AND_ONE = BYTE.with_template([], [BYTE.eos_id, BYTE.eos_id])


def pad(rows, value):
    width = max(map(len, rows))
    return [row + [value] * (width - len(row)) for row in rows]


def assert_padded(batch, sources, targets, t):
    assert batch.source.tolist() == pad([[*row, t.eos_id] for row in sources], t.pad_id)
    assert batch.target.tolist() == pad([[t.bos_id, *row] for row in targets], t.pad_id)
    assert batch.labels.tolist() == pad([[*row, t.eos_id] for row in targets], IGNORE_INDEX)
    assert batch.target_pos.tolist() == pad([[*range(len(row) + 1)] for row in targets], -1)
    pos = pad([[*range(len(row) + 1)] for row in sources], -1)
    assert (batch.source_pos is None) == (len({len(row) for row in sources}) == 1)
    assert batch.source_pos is None or batch.source_pos.tolist() == pos
    assert batch.n_tokens == sum(len(row) + 1 for row in targets)
    assert {x.dtype for x in (batch.source, batch.target, batch.labels)} == {torch.int64}


ROW = st.lists(st.integers(5, 260), max_size=12)


@given(st.lists(st.tuples(ROW, ROW), min_size=1, max_size=12))
def test_batch_has_padded_rows(pairs):
    sources, targets = ([list(pair[side]) for pair in pairs] for side in (0, 1))
    assert_padded(collate_pairs(sources, targets, BYTE), sources, targets, BYTE)


def test_store_rows_are_collated_in_any_order(write_file, tmp_path):
    texts = ["one", "two two", "3", "four four four", "fünf"]
    corpus = open_corpus(
        [write_file("a.en", "\n".join(texts)), write_file("a.de", "\n".join(reversed(texts)))]
    )
    store, ids = PairStore.open_or_build(corpus, BYTE, tmp_path / "cache", max_len=30), BYTE.encode(texts)
    for rows in ([0], [4, 0, 2], [3, 3], np.array([1, 4]), range(5)):
        batch = collate(store, list(rows), BYTE)
        assert_padded(batch, [ids[i] for i in rows], [ids[4 - i] for i in rows], BYTE)


@pytest.mark.parametrize("tokenizer", [BYTE, TWO, TWO_AND_ONE], ids=["one", "two", "two and one"])
def test_planned_cost_is_the_shape_of_the_batch(write_file, tmp_path, tokenizer):
    sources, targets = (
        "".join(letter * n + "\n" for n in lengths)
        for letter, lengths in (("x", range(1, 60)), ("y", range(59, 0, -1)))
    )
    corpus = open_corpus([write_file("a.en", sources), write_file("a.de", targets)])
    store = PairStore.open_or_build(corpus, tokenizer, tmp_path / "cache", max_len=64)
    for rows in plan_epoch(store.source_lengths, store.target_lengths, max_tokens=300, seed=1, epoch=0):
        batch = collate(store, rows, tokenizer)
        assert max(batch.source.numel(), batch.target.numel()) <= 300
        assert batch.source.shape[1] == store.source_lengths[rows].max()
        assert batch.target.shape[1] == store.target_lengths[rows].max()


def test_token_split_leaves_room_for_the_end(write_file, tmp_path):
    """Splitters may fill a row up to max_len with its end of sentence."""
    corpus = open_corpus([write_file("a.en", "ab\n"), write_file("a.de", "cde\n")])
    store, rooms = PairStore.open_or_build(corpus, BYTE, tmp_path / "cache", max_len=9), []

    def repeat_tokens(ids, lengths, max_len):
        rooms.append(max_len)
        return np.repeat(ids, 2), 2 * lengths

    batch = collate(store, np.array([0]), BYTE, [repeat_tokens, repeat_tokens])
    assert rooms == [9 - 1, 9 - 1]
    sources, targets = (np.repeat(BYTE.encode([text])[0], 2).tolist() for text in ("ab", "cde"))
    assert_padded(batch, [sources], [targets], BYTE)


@pytest.mark.acceptance("A13")
def test_padding_id_is_that_of_the_tokenizer(tmp_path):
    path = tmp_path / "tokenizer_config.json"
    BYTE.save(tmp_path)
    path.write_text(path.read_text().replace('"pad_token": "<pad>"', '"pad_token": "<mask>"'))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.pad_id == 4
    assert_padded(
        collate_pairs([[7, 8], [9]], [[10, 11], [13]], tokenizer), [[7, 8], [9]], [[10, 11], [13]], tokenizer
    )
