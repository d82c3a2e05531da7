"""Requests that come and go at every step say what they say alone, hold what they need, and end exactly
once.
"""

import threading
import weakref
from collections import Counter

import numpy as np
import pytest
import torch

from polyhead.cache.recurrent_state import StateCache
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.generation.decoding.beam_search import BeamRequest, BeamSearchStrategy, BeamState, beam_search
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.engine import Engine
from polyhead.generation.generate import generate
from polyhead.models import Ensemble, build

EOS, BOS, V, MAX_LEN = 2, 1, 23, 40
DESIGNS = {
    "rope": {"position": "rope", "norm": "rmsnorm", "norm_first": True, "n_kv_heads": 2},
    "learned": {"position": "learned", "norm_first": True},
    "alibi": {"position": "alibi"},
    "linear": {"attention": "linear"},
    "lstm": {"block": "lstm", "position": "none"},
    "hybrid": {
        "position": "rope",
        "n_layers": 4,
        "layer_pattern": [
            {"attention": "linear"},
            {},
            {"block": "gru"},
            {"attention": {"name": "softmax", "window": 5}},
        ],
    },
}
GREEDY, WARM = (
    Sampling(temperature=0.0),
    Sampling(temperature=1.2, top_k=9, repetition_penalty=1.1, no_repeat_ngram_size=2),
)
PAGED = Choice("paged", block_size=4)


TOGETHER = {
    "both": ("rope", "alibi"),
    "with a state": ("lstm", "rope"),
    "hybrids": ("hybrid", "hybrid"),
}


def make(kind="decoder", design="rope", seed=3, **sizes):
    if design in TOGETHER:
        first, other = TOGETHER[design]
        return Ensemble(
            [make(kind, first), make(kind, other, seed=5, d_model=24, n_heads=2, n_layers=2)]
        ).eval()
    own = {"d_model": 16, "n_heads": 4, "n_layers": 2, "d_ff": 24, "max_len": MAX_LEN} | DESIGNS[design]
    model = build(ModelConfig(kind=kind, vocab_size=V, tie_embeddings="none", **own | sizes), seed=seed)
    torch.manual_seed(4)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
        model.head.weight.mul_(3)  # far from ties
    return model.eval()


class Asked:
    """A request as a test describes it: how it is put to an engine, and what it says alone."""

    def __init__(self, rng, kind, number):
        self.kind, self.number = kind, number
        self.text = rng.integers(3, V, rng.integers(1, 12)).tolist()
        self.way = rng.choice(["greedy", "drawn", "beams"] if kind == "decoder" else ["beams", "greedy"])
        self.limit, self.n = int(rng.integers(1, 14)), int(rng.integers(1, 4))
        self.size = int(rng.integers(2, 5))

    def search(self):
        if self.way == "beams" or self.kind != "decoder":
            size = self.size if self.way == "beams" else 1
            return BeamState(
                BeamSearchStrategy(size, EOS, n_best=size, early_stopping=self.way == "greedy"),
                BeamRequest(self.limit),
            )
        sampling = GREEDY if self.way == "greedy" else WARM
        return SampledSequences(
            SamplingStrategy(sampling, EOS), self.text, self.limit, self.n, 7, 10 * self.number
        )

    def put(self, engine):
        if self.kind == "decoder":
            return engine.submit(self.text, self.search())
        return engine.submit([BOS], self.search(), source=[*self.text, EOS])

    def alone(self, model, cache=None):
        """By the functions that the other tests hold to plain references."""
        if self.way == "beams" or self.kind != "decoder":
            size = self.size if self.way == "beams" else 1
            given = [*self.text, EOS] if self.kind != "decoder" else self.text
            (found,) = beam_search(
                model, torch.tensor([given]), None, bos_id=BOS if self.kind != "decoder" else None,
                    eos_id=EOS, beam_size=size,
                n_best=size, max_new_tokens=[self.limit], early_stopping=self.way == "greedy", cache=cache,
            )  # fmt: skip
            return [h.tokens for h in found]
        sampling = GREEDY if self.way == "greedy" else WARM
        rest = {"n": self.n, "seed": 7, "row_offset": 10 * self.number, "max_len": MAX_LEN, "cache": cache}
        rows = [[] for _ in range(self.n)]
        for token in generate(
            model, [self.text], sampling=sampling, eos_id=EOS, max_new_tokens=self.limit, **rest
        ):
            if token.id != EOS:
                rows[token.row - 10 * self.number].append(token.id)
        return rows


def tokens(request):
    return [h.tokens for h in request.state.best_hypotheses()]


def some(kind, n, seed=0):
    rng = np.random.default_rng(seed)
    return [Asked(rng, kind, i) for i in range(n)]


def run(engine, asked, per_step=2):
    """Put requests while others run, until all have ended."""
    waiting, requests = list(asked), []
    for _ in range(10_000):
        requests += [one.put(engine) for one in waiting[:per_step]]
        waiting = waiting[per_step:]
        if not waiting and engine.idle:
            return requests
        engine.step()
    raise AssertionError("the engine does not come to an end")


@pytest.mark.acceptance("C1", "C2")
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize(
    ("design", "cache"),
    [(d, c) for d in DESIGNS for c in (None, PAGED) if c is None or d not in ("linear", "lstm")]
    + [
        ("rope", Choice("growing")),
        ("rope", Choice("window", window=64)),
        ("rope", Choice("h2o", budget=64)),
        ("both", None),
        ("both", PAGED),
        ("both", Choice("h2o", budget=64)),
        ("with a state", None),
        ("with a state", PAGED),
        ("hybrid", Choice("growing")),
        ("hybrid", Choice("h2o", budget=64)),
        ("hybrids", PAGED),
    ],
    ids=str,
)
def test_whoever_comes_and_goes_says_what_it_says_alone(kind, design, cache, deterministic):
    """Draws, beams of several widths and greedy search together, two new requests a step, three tokens read
    a step.
    """
    model, asked = make(kind, design), some(kind, 14)
    engine = Engine(
        model, max_len=MAX_LEN, cache=cache, max_num_seqs=11, prefill_chunk=3, deterministic=deterministic
    )
    for one, request in zip(asked, run(engine, asked), strict=True):
        assert tokens(request) == one.alone(model)
        assert request.finish_status.reason == "done"
    assert engine.running_members == [] and not engine.waiting_requests


@pytest.mark.acceptance("C1")
@pytest.mark.parametrize(
    ("design", "blocks"),
    [
        *(("rope", 30), ("rope", 40), ("rope", 60), ("both", 30), ("both", 60)),
        *(("hybrid", 30), ("hybrid", 60), ("with a state", 30), ("hybrids", 40)),
    ],
)
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_who_gives_way_where_pages_run_out_says_the_same_later(kind, design, blocks):
    model, asked = make(kind, design), some(kind, 25, seed=blocks)
    engine = Engine(
        model, max_len=MAX_LEN, cache=Choice("paged", block_size=2, max_blocks=blocks), prefill_chunk=6
    )
    for one, request in zip(asked, run(engine, asked, per_step=25), strict=True):
        assert tokens(request) == one.alone(model)
    assert engine.preemptions > 0
    caches = [batch.cache for batch in engine.batches]
    parts = [part for cache in caches for part in getattr(cache, "leaves", [cache])]
    assert all(nothing_is_held(part.block_manager) for part in parts if not isinstance(part, StateCache))


def nothing_is_held(table):
    """Whether every page is free, and the table in order."""
    table.check_invariants()
    return table.n_available == table.n_blocks > 0


@pytest.mark.acceptance("D5")
def test_what_can_never_fit_is_refused_at_once_and_what_just_fits_is_served():
    model, rule = make(), SamplingStrategy(GREEDY, -1)
    engine = Engine(model, max_len=MAX_LEN, cache=Choice("paged", block_size=4, max_blocks=5), max_num_seqs=3)
    prompt = [5, 6, 7, 8, 9]
    with pytest.raises(
        UserError,
        match=r"5 tokens and up to 17 new ones in 1 sequence require a cache of 24 tokens; the cache has 20",
    ):
        engine.submit(prompt, SampledSequences(rule, prompt, 17))
    with pytest.raises(UserError, match="4 sequences were requested; the engine runs at most 3"):
        engine.submit(prompt, SampledSequences(rule, prompt, 2, n=4))
    with pytest.raises(UserError, match="the prompt has 41 tokens; the model's maximum is 40"):
        engine.submit([5] * 41, SampledSequences(rule, [5] * 41, 2))
    with pytest.raises(UserError, match="a prompt has no token"):
        engine.submit([], SampledSequences(rule, [], 2))
    assert engine.idle
    just = engine.submit(prompt, SampledSequences(rule, prompt, 16))
    assert len(just.result()[0].tokens) == 16
    # three sequences share one whole page of the prompt and need five slots each beyond it: 4 + 3 x 8 are too
    # many
    with pytest.raises(UserError, match="require a cache of 28 tokens"):
        engine.submit(prompt, SampledSequences(rule, prompt, 5, n=3))
    shared = engine.submit(prompt, SampledSequences(rule, prompt, 4, n=3))
    assert [len(h.tokens) for h in shared.result()] == [4, 4, 4]
    assert nothing_is_held(engine.batches[0].cache.block_manager)


@pytest.mark.acceptance("D6")
def test_a_huge_prompt_keeps_nobody_waiting_and_is_not_kept_waiting():
    model = make(max_len=2000)
    engine = Engine(model, max_len=2000, cache=PAGED, prefill_chunk=100)
    huge = engine.submit([5] * 1500, SampledSequences(SamplingStrategy(GREEDY, -1), [5] * 1500, 3))
    engine.step()
    small = [
        engine.submit([i % 20 + 3] * 8, SampledSequences(SamplingStrategy(GREEDY, -1), [i % 20 + 3] * 8, 3))
        for i in range(50)
    ]
    steps = 0
    while any(request.finish_status is None for request in small):
        engine.step()
        steps += 1
    # 51 readers share 100 tokens, one each a step, so a prompt of 8 is read in at most 7 steps; then 3 tokens
    assert steps <= 12
    assert huge.finish_status is None
    while huge.finish_status is None:
        engine.step()
        steps += 1
    assert steps <= 12 + 1500 // 100 + 4


@pytest.mark.acceptance("D7", "R9")
def test_five_thousand_requests_half_of_them_cancelled_at_random_moments():
    model, rng = make(n_layers=1), np.random.default_rng(1)
    kinds = some("decoder", 40)
    wanted = [one.alone(model) for one in kinds]
    engine = Engine(
        model,
        max_len=MAX_LEN,
        cache=Choice("paged", block_size=4, max_blocks=100),
        prefill_chunk=40,
        max_num_seqs=90,
    )
    requests, doomed, ends = [], set(), Counter()
    while len(requests) < 5000 or not engine.idle:
        for _ in range(int(rng.integers(0, 60)) if len(requests) < 5000 else 0):
            request = kinds[len(requests) % 40].put(engine)
            if rng.random() < 0.5:
                doomed.add(request)
            requests.append(request)
        for request in [r for r in doomed if rng.random() < 0.2]:
            request.cancel()
            request.cancel()
            doomed.remove(request)
            assert all(member.request is not request for member in engine.running_members)
        engine.step()
    assert nothing_is_held(engine.batches[0].cache.block_manager)
    assert engine.batches[0].cache.seq_ids == []
    for i, request in enumerate(requests):
        ends[request.finish_status.reason] += 1
        if request.finish_status.reason == "done":
            assert tokens(request) == wanted[i % 40]
    assert ends["done"] + ends["cancelled"] == len(requests) and ends["cancelled"] > 1000
    assert engine.preemptions > 0


@pytest.mark.acceptance("C11", "R12")
@pytest.mark.parametrize(
    ("design", "cache"), [("rope", None), ("rope", PAGED), ("both", None), ("both", PAGED)], ids=str
)
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_deterministic_is_to_the_last_bit_whatever_else_runs(kind, design, cache):
    model, rng = make(kind, design), np.random.default_rng(0)
    asked = some(kind, 30)
    engine = Engine(model, max_len=MAX_LEN, cache=cache, prefill_chunk=4, deterministic=True)
    alone = []
    for one in asked:
        request = one.put(engine)
        alone.append((list(request), request.result()))
    requests, heard = [one.put(engine) for one in asked], {}
    while not engine.idle:
        engine.step()
        if rng.random() < 0.3:
            (extra,) = some(kind, 1, seed=int(rng.integers(1000)))
            noise = extra.put(engine)
            if rng.random() < 0.5:
                noise.cancel()
        for request in requests:
            heard.setdefault(request, []).extend(request.events)
            request.events.clear()
        if len(engine.running_members) > 200:
            break
    for request, (said, found) in zip(requests, alone, strict=True):
        assert request.result() == found  # scores and all
        assert heard[request] == said


def test_not_a_number_is_the_affair_of_one_request():
    model, rule = make(), SamplingStrategy(GREEDY, -1)
    prompts = [[4, 5, 3], [4, 5, 6], [4, 5, 7]]
    plain = Engine(model, max_len=MAX_LEN)
    said = [plain.submit(prompt, SampledSequences(rule, prompt, 6)).result()[0].tokens for prompt in prompts]
    hole = next(i for i in range(8, V) if not any(i in tokens for tokens in said))
    with torch.no_grad():
        model.embedding.token.weight[hole] = float("nan")
    engine = Engine(model, max_len=MAX_LEN, cache=PAGED)
    good = [engine.submit(prompt, SampledSequences(rule, prompt, 6)) for prompt in prompts[:2]]
    bad = [
        engine.submit([4, hole], SampledSequences(rule, [4, hole], 6)),
        engine.submit([hole, 3], BeamState(BeamSearchStrategy(3, EOS), BeamRequest(6))),
    ]
    good.append(engine.submit(prompts[2], SampledSequences(rule, prompts[2], 6)))
    for request in bad:
        with pytest.raises(UserError, match="output is NaN"):
            request.result()
        assert request.finish_status.reason == "error"
    assert [request.result()[0].tokens for request in good] == said


def test_a_model_that_breaks_ends_who_was_in_it_and_the_engine_goes_on(monkeypatch):
    model, rule = make(), SamplingStrategy(GREEDY, -1)
    engine = Engine(model, max_len=MAX_LEN)
    wanted = engine.submit([4, 5], SampledSequences(rule, [4, 5], 5)).result()
    first = engine.submit([4, 5], SampledSequences(rule, [4, 5], 5))
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(model, "decode", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            first.result()
    assert first.finish_status.reason == "error" and engine.idle
    assert engine.submit([4, 5], SampledSequences(rule, [4, 5], 5)).result() == wanted


@pytest.mark.parametrize("where", ["model", "engine"])
def test_an_error_that_is_kept_keeps_no_cache(monkeypatch, unsearched, where):
    """It knows the frames it went through, and whoever asked for the text may hold it for long."""
    model = make()
    engine = Engine(model, max_len=MAX_LEN, cache=PAGED)
    request = engine.submit([4, 5], SampledSequences(SamplingStrategy(GREEDY, -1), [4, 5], 5))
    engine.step()
    held = weakref.WeakSet(engine.batches[0].cache.layers)
    if where == "model":
        monkeypatch.setattr(model, "decode", lambda tokens, pos, cache, memory: cache / 0)
        engine.step()
    else:
        monkeypatch.setattr(engine, "_step_batch", lambda batch: batch.cache / 0)
        monkeypatch.setattr(engine, "_isolate_failure", lambda batch, work: work())
        with pytest.raises(TypeError) as caught:
            engine.step()
        engine.fail_all(caught.value)
    assert isinstance(request.finish_status.error, TypeError) and request.finish_status.error.__traceback__
    assert not held and engine.idle


@pytest.mark.parametrize("name", [name for name in CACHE.names() if name != "state"])
def test_a_cache_goes_with_its_last_request(unsearched, name):
    """Not when Python next searches for what only knows itself: until then there may be many of them."""
    engine = Engine(make(), max_len=MAX_LEN, cache=Choice(name), deterministic=True)
    for _ in range(2):
        request = engine.submit([4, 5], SampledSequences(SamplingStrategy(GREEDY, -1), [4, 5], 5))
        engine.step()
        (batch,) = engine.batches
        held = weakref.WeakSet([batch, batch.cache, *batch.cache.layers])
        del batch
        request.result()
        engine.step()
        assert not held


@pytest.mark.acceptance("D3")
def test_what_others_have_read_is_not_read_again_and_changes_nothing(monkeypatch):
    model, rule, counted = make(), SamplingStrategy(GREEDY, -1), []
    read = model.decode_features

    def counting(fed, pos, cache, memory=None):
        counted.append(int((pos >= 0).sum()))
        return read(fed, pos, cache, memory)

    monkeypatch.setattr(model, "decode_features", counting)
    engine = Engine(model, max_len=MAX_LEN, cache=Choice("paged", block_size=4, max_blocks=30))
    prompt = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    said = engine.submit(prompt, SampledSequences(rule, prompt, 7)).result()
    assert sum(counted) == 10 + 7  # all but the newest, then a token a step (decode reads, too)
    counted.clear()
    assert [h.tokens for h in engine.submit(prompt, SampledSequences(rule, prompt, 7)).result()] == [
        h.tokens for h in said
    ]
    assert sum(counted) == 2 + 7  # two pages of four are known
    longer = [*prompt, *said[0].tokens[:6], 3]
    counted.clear()
    again = engine.submit(longer, SampledSequences(rule, longer, 4)).result()
    assert sum(counted) == 1 + 4  # what was said is known as well: 16 of 17
    fresh = Engine(model, max_len=MAX_LEN)
    assert [h.tokens for h in again] == [
        h.tokens for h in fresh.submit(longer, SampledSequences(rule, longer, 4)).result()
    ]


def test_one_sequence_of_several_may_be_stopped_at_any_time():
    model, rule, prompt = make(), SamplingStrategy(WARM, -1), [4, 5, 6, 7, 8, 9]
    whole = (
        Engine(model, max_len=MAX_LEN).submit(prompt, SampledSequences(rule, prompt, 9, n=3, seed=1)).result()
    )
    for when in range(8):
        engine = Engine(model, max_len=MAX_LEN, cache=PAGED, prefill_chunk=2)
        request = engine.submit(prompt, SampledSequences(rule, prompt, 9, n=3, seed=1))
        for _ in range(when):
            engine.step()
        request.stop(1)
        found = request.result()
        assert [found[0].tokens, found[2].tokens] == [whole[0].tokens, whole[2].tokens]
        assert found[1].tokens == whole[1].tokens[: len(found[1].tokens)]
        for number in (0, 2):
            request.stop(number)
        assert request.finish_status.reason == "done"
    engine = Engine(model, max_len=MAX_LEN)
    request = engine.submit(prompt, SampledSequences(rule, prompt, 9, n=2))
    request.stop(0)
    request.stop(1)
    assert request.finish_status.reason == "done" and engine.idle


def test_several_threads_may_wait_for_their_own():
    model, asked = make(), some("decoder", 24)
    engine, found = Engine(model, max_len=MAX_LEN, cache=PAGED, max_num_seqs=9), {}

    def one(i):
        request = asked[i].put(engine)
        list(request)
        found[i] = tokens(request)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[i] for i in range(24)] == [one.alone(model) for one in asked]


@pytest.mark.parametrize("cache", [None, PAGED], ids=str)
def test_a_text_longer_than_the_model_goes_on_from_its_last_half_beside_others(cache):
    model, rule = make(), SamplingStrategy(GREEDY, -1)
    engine = Engine(model, max_len=8, cache=cache)
    long = engine.submit([4, 5, 6], SampledSequences(rule, [4, 5, 6], 30, n=2))
    others = [engine.submit([7, i], SampledSequences(rule, [7, i], 5)) for i in (3, 4)]
    text = [4, 5, 6]
    since = 0
    while len(text) < 33:
        since = len(text) - 4 if len(text) - since > 8 else since
        with torch.no_grad():
            text.append(int(model(torch.tensor([text[since:]]))[0, -1].argmax()))
    assert [h.tokens for h in long.result()] == [text[3:]] * 2
    assert all(len(request.result()[0].tokens) == 5 for request in others)


@pytest.mark.parametrize("wrong", [{"max_num_seqs": 0}, {"prefill_chunk": 0}, {"max_batch_tokens": 0}])
def test_an_engine_for_nothing_is_refused(wrong):
    (name,) = wrong
    with pytest.raises(UserError, match=f"{name} is 0; expected an integer, 1 or more"):
        Engine(make(), max_len=MAX_LEN, **wrong)


def test_a_source_that_cannot_be_read_ends_its_own_request_alone():
    """Others run on as if it had not come."""
    model = make("encoder-decoder")
    engine, encode = Engine(model, max_len=40), model.encode

    def failing(tokens, pos):
        if tokens.size(1) > 9:
            raise RuntimeError("can't allocate memory")
        return encode(tokens, pos)

    object.__setattr__(model, "encode", failing)
    alone = Engine(make("encoder-decoder"), max_len=40)
    wanted = alone.submit([1], BeamState(BeamSearchStrategy(2, EOS), BeamRequest(6)), source=[5, 6, 7])
    while not alone.idle:
        alone.step()
    first = engine.submit([1], BeamState(BeamSearchStrategy(2, EOS), BeamRequest(6)), source=[5, 6, 7])
    engine.step()
    second = engine.submit([1], BeamState(BeamSearchStrategy(2, EOS), BeamRequest(6)), source=[8] * 12)
    engine.step()
    assert second.finish_status is not None and "can't allocate memory" in str(second.finish_status.error)
    while not engine.idle:
        engine.step()
    assert [found.tokens for found in first.result()] == [found.tokens for found in wanted.result()]
