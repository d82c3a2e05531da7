import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.cache.cache_helpers import (
    MAX_LEN,
    ROWS,
    actions,
    build_paged,
    check_invariants,
    feed,
    feed_tokens,
    play,
    rewrites,
    stamps_of,
)

from polyhead import Choice, ModelConfig, build
from polyhead.cache.block_manager import OutOfBlocksError
from polyhead.cache.paged import PagedCache
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine import engine as engine_module
from polyhead.generation.engine.request import pad_rows
from polyhead.generation.generate import generate
from polyhead.nn.kv import visible


def distinct_pages(lists, block):
    """Pages that rows need if pages of one origin are one: no two tokens have the same stamp."""
    return {tuple(row[i : i + block]) for row in lists for i in range(0, len(row), block)}


def count_pages(lists, block):
    return sum(math.ceil(len(row) / block) for row in lists)


@pytest.mark.acceptance("D1")
@given(st.lists(st.one_of(actions, rewrites), max_size=16), st.sampled_from([1, 2, 3, 16]))
def test_any_history_equals_lists_and_minimal_pages(history, block):
    cache = build_paged(ROWS, block_size=block)

    def check(lists):
        stats, pages = cache.block_stats(), distinct_pages(lists, block)
        check_invariants(cache.block_manager)
        assert (stats.used_blocks, stats.unshared_blocks) == (len(pages), count_pages(lists, block))
        assert stats.n_tokens == sum(map(len, pages))

    play(cache, history, check)
    for row in range(len(cache.seq_ids)):
        cache.release(row)
    assert cache.block_manager.n_available == cache.block_manager.n_blocks


@pytest.mark.parametrize("block", [1, 3, 16])
def test_steps_see_full_pages_with_positions(block):
    cache = build_paged(3, block_size=block)
    pos = torch.tensor([[0, 1, 2, 3], [0, -1, -1, -1], [-1, -1, 0, 1]])
    kvs = feed(cache, range(3), pos, torch.ones(3, 4))
    slots = math.ceil(4 / block) * block
    assert kvs[0].pos is kvs[1].pos and kvs[0].mask is kvs[1].mask
    assert kvs[0].pos[:, 0].tolist() == [[p if p < n else -1 for p in range(slots)] for n in (4, 1, 2)]
    assert torch.equal(kvs[0].mask, visible(pos, kvs[0].pos, causal=True))
    for kv in kvs:
        assert kv.k.shape == (3, 2, slots, 3) and kv.v.shape == (3, 2, slots, 5)
        assert (kv.v.masked_select((kv.pos < 0)[..., None]) == 0).all()


@pytest.mark.acceptance("D5")
@pytest.mark.acceptance("D3")
def test_pages_and_bytes_of_steps():
    cache, slot = build_paged(2, block_size=4), 2 * 2 * (3 + 5) * 4
    assert cache.free_tokens() == 2 * MAX_LEN
    feed_tokens(cache, [0], 0, [[1.0, 2, 3, 4, 5]])
    assert cache.memory_usage() == (3 * 4 * slot, 5 * slot, 3 * 4 * slot, 0)
    cache.fork(0, 1)
    assert cache.memory_usage() == (3 * 4 * slot, 5 * slot, 3 * 4 * slot, 2 * 4 * slot)
    cache = build_paged(1)
    with pytest.raises(AssertionError, match="would leave a gap"):
        cache.prepare_step([0], torch.tensor([[5]]))
    with pytest.raises(AssertionError, match="2 positions from 0 to 2"):
        cache.prepare_step([0], torch.tensor([[0, 2]]))
    cache = build_paged(2, block_size=2, max_blocks=3)
    feed_tokens(cache, range(2), 0, [[1.0, 2], [3, 4]])
    assert cache.free_tokens() == 2
    with pytest.raises(OutOfBlocksError, match="1 pages of 2 tokens more than the 3 of this cache"):
        cache.prepare_step(range(2), torch.tensor([[2], [2]]))
    assert stamps_of(feed_tokens(cache, [1], 2, [[5.0]]), 0) == {0: 3, 1: 4, 2: 5}
    cache.release(0)
    assert cache.free_tokens() == 2
    assert stamps_of(feed_tokens(cache, [1], 3, [[6.0, 7]]), 0) == {0: 3, 1: 4, 2: 5, 3: 6, 4: 7}
    assert cache.free_tokens() == 0
    cache, prompt = build_paged(2, block_size=2), [7, 8, 9, 7, 5]
    feed_tokens(cache, [0], 0, [prompt])
    cache.insert_prefix(0, prompt)
    cache.release(0)
    assert cache.match_prefix(1, [7, 8, 9, 7, 6]) == 4
    assert stamps_of(feed_tokens(cache, [1], 4, [[6.0]]), 0) == dict(enumerate([7, 8, 9, 7, 6]))
    assert cache.match_prefix(0, [8, 8]) == 0
    with pytest.raises(AssertionError, match="sequence 1 already exists"):
        cache.match_prefix(1, prompt)


class CountingCache(PagedCache):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.stamp, self.lists, self.counts = 0, [[] for _ in self.seq_ids], []

    def prepare_step(self, rows, pos):
        super().prepare_step(rows, pos)
        for row, positions in zip(rows, pos.tolist(), strict=True):
            n = sum(p >= 0 for p in positions)
            self.lists[row] += range(self.stamp, self.stamp + n)
            self.stamp += n
        stats = self.block_stats()
        self.counts.append((stats.used_blocks, stats.unshared_blocks))
        pages = len(distinct_pages(self.lists, self.block_size)), count_pages(self.lists, self.block_size)
        assert self.counts[-1] == pages

    def append_rows(self, n):
        super().append_rows(n)
        self.lists += [[] for _ in range(n)]

    def select(self, rows):
        super().select(rows)
        self.lists = [list(self.lists[row]) for row in rows]


@pytest.fixture
def caches(monkeypatch):
    created_caches = []

    def make_cache(choice, shape, n_rows, max_len):
        created_caches.append(CountingCache(shape, n_rows, max_len, **choice.options))
        return created_caches[-1]

    monkeypatch.setattr(engine_module, "make_cache", make_cache)
    return created_caches


def make_model(kind):
    sizes = {"vocab_size": 40, "d_model": 32, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2, "d_ff": 48}
    config = ModelConfig(kind=kind, max_len=MAX_LEN, position="rope", tie_embeddings="none", **sizes)
    model = build(config, seed=3).eval()
    with torch.no_grad():
        model.head.weight.mul_(4)  # outputs of many lengths, far from ties
    return model


@pytest.mark.parametrize(("n", "block"), [(4, 4), (8, 4), (8, 3), (4, 16)])
def test_parallel_samples_share_their_prompt(caches, n, block):
    prompt, limit = torch.randint(5, 40, (21,)).tolist(), 10
    options = {"eos_id": -1, "max_new_tokens": limit, "n": n, "cache": Choice("paged", block_size=block)}
    tokens = list(generate(make_model("decoder"), [prompt], sampling=Sampling(), **options))
    assert len(tokens) == n * limit
    n_used, n_unshared = caches[-1].counts[-1]
    n_common, n_pages = len(prompt) // block, math.ceil((len(prompt) + limit - 1) / block)
    assert n_unshared == n * n_pages and n_used == n_common + n * (n_pages - n_common)
    assert caches[-1].block_stats().peak_blocks == n_used


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_beams_share_their_common_prefixes(caches, kind):
    texts = [torch.randint(5, 40, (n,)).tolist() for n in (3, 9, 1, 12)]
    tokens, pos = pad_rows(texts, 0, torch.device("cpu"))
    bos_id, cache = 1 if kind == "encoder-decoder" else None, Choice("paged", block_size=2)
    options = {"bos_id": bos_id, "eos_id": 2, "beam_size": 5, "max_new_tokens": [20] * 4}
    beam_search(make_model(kind), tokens, pos, cache=cache, **options)
    n_used, n_unshared = (max(side) for side in zip(*caches[-1].counts, strict=True))
    cache = caches[-1]
    assert cache.block_stats().peak_blocks == n_used < 0.8 * n_unshared
    cache.select([])
    assert cache.block_manager.n_available == cache.block_manager.n_blocks
