"""Keys and values in pages: what each row holds, what it costs, and that every decoder says what it says
without pages.
"""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cache.paged_helpers import SHAPE, build, feed, feed_tokens, held

from polyhead.cache.block_manager import OutOfBlocksError
from polyhead.cache.paged import PagedCache
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.generation.decoding.greedy import greedy_search
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine import engine as decoding
from polyhead.generation.engine.batching import pad_rows
from polyhead.generation.generate import generate
from polyhead.models import build as build_model
from polyhead.nn.kv import visible

MAX_LEN, ROWS = 40, 3
PAD, BOS, EOS = 0, 1, 2


step = st.lists(
    st.tuples(st.integers(0, ROWS - 1), st.integers(0, 3)),
    min_size=1,
    max_size=ROWS,
    unique_by=lambda r: r[0],
)
action = st.one_of(
    st.tuples(st.just("step"), step),
    st.tuples(st.just("together"), st.integers(1, 3)),
    st.tuples(st.just("select"), st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS)),
    st.tuples(st.just("fork"), st.tuples(st.integers(0, ROWS - 1), st.integers(0, ROWS - 1))),
    st.tuples(st.just("release"), st.integers(0, ROWS - 1)),
    st.tuples(st.just("rewrite"), st.tuples(st.integers(0, ROWS - 1), st.integers(0, MAX_LEN))),
)


def chunks(lists, block):
    """Pages that rows need if pages of one origin are one: no two tokens have the same stamp."""
    return {tuple(row[i : i + block]) for row in lists for i in range(0, len(row), block)}


@pytest.mark.acceptance("D1")
@settings(max_examples=120, deadline=None)
@given(st.lists(action, max_size=16), st.sampled_from([1, 2, 3, 16]))
def test_any_history_equals_plain_lists_and_takes_as_many_pages_as_there_are_different_ones(actions, block):
    cache, lists, stamp = build(ROWS, block_size=block), [[] for _ in range(ROWS)], 0
    for name, what in actions:
        if name == "select":
            what = [row % len(lists) for row in what]
            cache.select(what)
            lists = [list(lists[row]) for row in what]
        elif name == "fork":
            src, dst = (row % len(lists) for row in what)
            cache.fork(src, dst)
            lists[dst] = list(lists[src])
        elif name == "release":
            cache.release(what % len(lists))
            lists[what % len(lists)] = []
        else:
            if name == "step":
                new = [(row, len(lists[row]), n) for row, n in what if row < len(lists)] or [
                    (0, len(lists[0]), 1)
                ]
            elif name == "rewrite":
                row = what[0] % len(lists)
                new = [(row, what[1] % (len(lists[row]) + 1), 2)]
            else:
                new = [(row, len(lists[row]), what) for row in range(len(lists))]
            new = [(row, at, min(n, MAX_LEN - at)) for row, at, n in new]
            width = max(1, *(n for _, _, n in new), 1)
            pos, stamps = torch.full((len(new), width), -1), torch.zeros(len(new), width)
            for i, (row, at, n) in enumerate(new):
                said = range(stamp + 1, stamp + 1 + n)
                lists[row][at : at + n] = said
                pos[i, :n] = torch.arange(at, at + n)
                stamps[i, :n] = torch.tensor(said)
                stamp += n
            kvs = feed(cache, [row for row, _, _ in new], pos, stamps)
            for i, (row, _, _) in enumerate(new):
                assert held(kvs, i) == dict(enumerate(lists[row]))
        usage = cache.block_stats()
        cache.block_manager.check_invariants()
        assert usage.used_blocks == len(chunks(lists, block))
        assert usage.unshared_blocks == sum(math.ceil(len(row) / block) for row in lists)
        assert usage.n_tokens == sum(map(len, chunks(lists, block)))
    for row in range(len(cache.seq_ids)):
        cache.release(row)
    assert cache.block_manager.n_available == cache.block_manager.n_blocks


@pytest.mark.parametrize("block", [1, 3, 16])
def test_what_a_step_sees_lies_at_its_position_in_whole_pages(block):
    cache = build(3, block_size=block)
    pos = torch.tensor([[0, 1, 2, 3], [0, -1, -1, -1], [-1, -1, 0, 1]])
    kvs = feed(cache, range(3), pos, torch.ones(3, 4))
    slots = math.ceil(4 / block) * block
    assert kvs[0].pos is kvs[1].pos
    assert kvs[0].mask is kvs[1].mask
    wanted = [[p if p < n else -1 for p in range(slots)] for n in (4, 1, 2)]
    assert kvs[0].pos[:, 0].tolist() == wanted
    assert torch.equal(kvs[0].mask, visible(pos, kvs[0].pos, causal=True))
    for kv in kvs:
        assert kv.k.shape == (3, 2, slots, 3)
        assert kv.v.shape == (3, 2, slots, 5)
        assert (kv.v.masked_select((kv.pos < 0)[..., None]) == 0).all()


def test_a_position_in_a_shared_page_may_be_written_over():
    cache = build(2, block_size=4)
    feed_tokens(cache, [0], 0, [[1.0, 2, 3]])
    cache.fork(0, 1)
    assert held(feed_tokens(cache, [1], 1, [[9.0]]), 0) == {0: 1, 1: 9, 2: 3}
    assert held(feed_tokens(cache, [0], 3, [[4.0]]), 0) == {0: 1, 1: 2, 2: 3, 3: 4}


@pytest.mark.acceptance("C5")
@pytest.mark.parametrize("max_len", [1, 31, 32, 33])
def test_the_last_position_fits_and_the_next_is_refused(max_len):
    cache = build(1, max_len=max_len, block_size=16)
    kvs = feed_tokens(cache, [0], 0, [list(range(1, max_len + 1))])
    assert held(kvs, 0) == dict(enumerate(range(1, max_len + 1)))
    assert cache.free_tokens() == 0
    with pytest.raises(
        UserError, match=f"position {max_len} does not fit into a cache of {max_len} positions"
    ):
        cache.prepare_step([0], torch.tensor([[max_len]]))


@pytest.mark.acceptance("D5")
def test_a_step_without_pages_is_refused_and_leaves_the_cache_as_it_was():
    cache = build(2, block_size=2, max_blocks=3)
    feed_tokens(cache, range(2), 0, [[1.0, 2], [3, 4]])
    assert cache.free_tokens() == 2
    with pytest.raises(OutOfBlocksError, match="1 pages of 2 tokens more than the 3 of this cache"):
        cache.prepare_step(range(2), torch.tensor([[2], [2]]))
    assert held(feed_tokens(cache, [1], 2, [[5.0]]), 0) == {0: 3, 1: 4, 2: 5}
    cache.release(0)
    assert cache.free_tokens() == 2
    assert held(feed_tokens(cache, [1], 3, [[6.0, 7]]), 0) == {0: 3, 1: 4, 2: 5, 3: 6, 4: 7}
    assert cache.free_tokens() == 0


def test_memory_is_told_in_bytes():
    cache, slot = build(2, block_size=4), 2 * 2 * (3 + 5) * 4
    feed_tokens(cache, [0], 0, [[1.0, 2, 3, 4, 5]])
    assert cache.memory_usage() == (3 * 4 * slot, 5 * slot, 3 * 4 * slot, 0)
    cache.fork(0, 1)
    assert cache.memory_usage() == (3 * 4 * slot, 5 * slot, 3 * 4 * slot, 2 * 4 * slot)


@pytest.mark.acceptance("D3")
def test_pages_of_a_known_beginning_are_read_and_not_written_again():
    cache, prompt = build(2, block_size=2), [7, 8, 9, 7, 5]
    feed_tokens(cache, [0], 0, [prompt])
    cache.insert_prefix(0, prompt)
    cache.release(0)
    assert cache.match_prefix(1, [7, 8, 9, 7, 6]) == 4
    assert held(feed_tokens(cache, [1], 4, [[6.0]]), 0) == dict(enumerate([7, 8, 9, 7, 6]))
    assert cache.match_prefix(0, [8, 8]) == 0
    with pytest.raises(AssertionError, match="row 1 is not empty"):
        cache.match_prefix(1, prompt)


def test_a_copy_of_the_cache_is_independent():
    cache = build(1)
    feed_tokens(cache, [0], 0, [[1.0]])
    other = copy.deepcopy(cache)
    feed_tokens(other, [0], 0, [[2.0]])
    assert held(feed_tokens(cache, [0], 1, [[3.0]]), 0) == {0: 1, 1: 3}


def test_values_keep_the_type_of_the_cache():
    cache = CACHE.build(Choice("paged"), SHAPE._replace(dtype=torch.bfloat16), 1, 8)
    kv = feed_tokens(cache, [0], 0, [[1.0]])[0]
    assert (kv.k.dtype, kv.v.dtype) == (torch.bfloat16, torch.bfloat16)


@pytest.mark.parametrize("option", ["block_size", "expected_len", "max_blocks"])
def test_options_below_1_are_refused(option):
    with pytest.raises(UserError, match=f"{option} is 0, expected at least 1"):
        build(1, **{option: 0})


def test_a_model_that_keeps_a_state_is_refused_with_the_reason():
    with pytest.raises(UserError, match="but this model has a recurrent state: use cache 'state'"):
        CACHE.build(Choice("paged"), SHAPE._replace(states=(((2, 3),),) * 2), 1, 8)


def test_positions_that_leave_a_gap_are_a_bug():
    cache = build(1)
    with pytest.raises(AssertionError, match="would leave a gap"):
        cache.prepare_step([0], torch.tensor([[5]]))
    with pytest.raises(AssertionError, match="2 positions from 0 to 2"):
        cache.prepare_step([0], torch.tensor([[0, 2]]))


DESIGNS = {
    "mha, sinusoidal": {},
    "gqa, rope": {"n_kv_heads": 2, "position": "rope"},
    "mqa, alibi": {"n_kv_heads": 1, "position": "alibi"},
    "mha, t5": {"position": "t5"},
    "mha, shaw": {"position": "shaw"},
    "mha, learned": {"position": "learned"},
    "window": {"position": "rope", "attention": {"name": "softmax", "window": 3, "sink": 1}},
    "kernel": {"attention": "kernel"},
}


def model_of(kind, design):
    config = ModelConfig(kind=kind, vocab_size=40, d_model=32, n_heads=4, n_layers=2, d_ff=48, max_len=40,
                         tie_embeddings="none", **DESIGNS[design])  # fmt: skip
    model = build_model(config, seed=3).eval()
    with torch.no_grad():
        model.head.weight.mul_(4)  # outputs of many lengths, far from ties
    return model


def inputs():
    torch.manual_seed(1)
    return [torch.randint(5, 40, (n,)).tolist() for n in (3, 9, 1, 12, 5, 9)]


@pytest.mark.parametrize("block", [1, 3, 16])
@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_greedy_beam_and_sampling_say_what_they_say_with_the_static_cache(kind, design, block):
    model, texts = model_of(kind, design), inputs()
    caches = (Choice("static"), Choice("paged", block_size=block))
    given = {"eos_id": EOS, "max_new_tokens": [14, 6, 20, 9, 1, 20]}
    if kind == "encoder-decoder":
        given["bos_id"] = BOS
    tokens, pos = pad_rows(texts, PAD, torch.device("cpu"))
    a, b = (greedy_search(model, tokens, pos, cache=cache, **given) for cache in caches)
    assert [h.tokens for h in a] == [h.tokens for h in b]
    a, b = (beam_search(model, tokens, pos, beam_size=4, n_best=4, cache=cache, **given) for cache in caches)
    assert [[h.tokens for h in best] for best in a] == [[h.tokens for h in best] for best in b]
    assert [h.score for best in a for h in best] == pytest.approx(
        [h.score for best in b for h in best], abs=1e-5
    )
    if kind == "decoder":
        rules = {
            "sampling": Sampling(temperature=0.9),
            "eos_id": EOS,
            "max_new_tokens": 15,
            "n": 3,
            "seed": 5,
        }
        a, b = (list(generate(model, texts, cache=cache, max_len=40, **rules)) for cache in caches)
        assert [t[:2] for t in a] == [t[:2] for t in b]
        assert len({t.row for t in a if t.is_last}) == 18


class Watched(PagedCache):
    """A paged cache that says after each step how many pages are held, and how many different ones there
    should be.
    """

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.stamps, self.lists, self.seen = 0, [[] for _ in self.seq_ids], []

    def prepare_step(self, rows, pos):
        super().prepare_step(rows, pos)
        for row, at in zip(rows, pos.tolist(), strict=True):
            n = sum(p >= 0 for p in at)
            self.lists[row] += range(self.stamps, self.stamps + n)
            self.stamps += n
        usage = self.block_stats()
        apart = sum(math.ceil(len(row) / self.block_size) for row in self.lists)
        assert (usage.used_blocks, usage.unshared_blocks) == (len(chunks(self.lists, self.block_size)), apart)
        self.seen.append((usage.used_blocks, apart))

    def append_rows(self, n):
        super().append_rows(n)
        self.lists += [[] for _ in range(n)]

    def select(self, rows):
        super().select(rows)
        self.lists = [list(self.lists[row]) for row in rows]


@pytest.fixture
def watched(monkeypatch):
    made = []

    def make(choice, shape, n_rows, max_len):
        made.append(Watched(shape, n_rows, max_len, **choice.options))
        return made[-1]

    monkeypatch.setattr(decoding, "make_cache", make)
    return made


@pytest.mark.parametrize(("n", "block"), [(4, 4), (8, 4), (8, 3), (4, 16)])
def test_parallel_samples_hold_their_prompt_once(watched, n, block):
    model, prompt, new = model_of("decoder", "gqa, rope"), inputs()[3] + inputs()[1], 10
    tokens = list(generate(model, [prompt], sampling=Sampling(), eos_id=-1, max_new_tokens=new, n=n,
                           cache=Choice("paged", block_size=block)))  # fmt: skip
    assert len(tokens) == n * new
    shared, apart = watched[-1].seen[-1]
    first, whole = len(prompt) // block, math.ceil((len(prompt) + new - 1) / block)
    assert apart == n * whole
    assert shared == first + n * (whole - first)
    assert watched[-1].block_stats().peak_blocks == shared


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_beams_hold_what_they_share_once(watched, kind):
    model, texts = model_of(kind, "gqa, rope"), inputs()[:4]
    tokens, pos = pad_rows(texts, PAD, torch.device("cpu"))
    beam_search(model, tokens, pos, bos_id=BOS if kind == "encoder-decoder" else None, eos_id=EOS,
        beam_size=5,
                max_new_tokens=[20] * 4, cache=Choice("paged", block_size=2))  # fmt: skip
    used, apart = (max(side) for side in zip(*watched[-1].seen, strict=True))
    assert watched[-1].block_stats().peak_blocks == used
    assert used < 0.8 * apart
    cache = watched[-1]
    cache.select([])
    assert cache.block_manager.n_available == cache.block_manager.n_blocks
