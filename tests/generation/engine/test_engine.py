import threading
import weakref
from collections import Counter

import numpy as np
import pytest
import torch
from tests.generation.engine.engine_helpers import (
    BOS,
    DESIGNS,
    EOS,
    MAX_LEN,
    PAGED_CACHE,
    WARM,
    V,
    all_blocks_are_free,
    make,
    outputs,
    run_alone,
    sample,
    search,
)
from tests.generation.helpers import GREEDY, ids_by_row

from polyhead.cache.recurrent_state import StateCache
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.generation.decoding.beam_search import BeamRequest, BeamSearchStrategy, BeamState, beam_search
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.engine.engine import Engine
from polyhead.generation.generate import generate


class RandomRequest:
    def __init__(self, rng, kind, number):
        self.kind, self.number = kind, number
        self.text = rng.integers(3, V, rng.integers(1, 12)).tolist()
        self.method = rng.choice(["greedy", "samples", "beams"] if kind == "decoder" else ["beams", "greedy"])
        self.limit, self.n = int(rng.integers(1, 14)), int(rng.integers(1, 4))
        self.is_search = self.method == "beams" or kind != "decoder"
        size = int(rng.integers(2, 5)) if self.method == "beams" else 1
        self.beams = {"beam_size": size, "n_best": size, "early_stopping": self.method == "greedy"}
        self.sampling = GREEDY if self.method == "greedy" else WARM

    def submit(self, engine):
        if self.is_search:
            state = BeamState(BeamSearchStrategy(eos_id=EOS, **self.beams), BeamRequest(self.limit))
        else:
            strategy = SamplingStrategy(self.sampling, EOS)
            state = SampledSequences(strategy, self.text, self.limit, self.n, 7, 10 * self.number)
        if self.kind == "decoder":
            return engine.submit(self.text, state)
        return engine.submit([BOS], state, source=[*self.text, EOS])

    def expected(self, model):
        if self.is_search:
            text, bos_id = (self.text, None) if self.kind == "decoder" else ([*self.text, EOS], BOS)
            options = {"bos_id": bos_id, "eos_id": EOS, "max_new_tokens": [self.limit]} | self.beams
            return [h.tokens for h in beam_search(model, torch.tensor([text]), None, **options)[0]]
        options = {"n": self.n, "seed": 7, "row_offset": 10 * self.number, "max_len": MAX_LEN}
        options |= {"sampling": self.sampling, "eos_id": EOS, "max_new_tokens": self.limit}
        events = generate(model, [self.text], **options)
        return ids_by_row((e for e in events if e.id != EOS), self.n, 10 * self.number)


def random_requests(kind, n, seed=0):
    rng = np.random.default_rng(seed)
    return [RandomRequest(rng, kind, i) for i in range(n)]


def run(engine, descriptions, per_step=2):
    waiting, requests = list(descriptions), []
    for _ in range(10_000):
        requests += [description.submit(engine) for description in waiting[:per_step]]
        waiting = waiting[per_step:]
        if not waiting and engine.idle:
            return requests
        engine.step()
    raise AssertionError("the engine does not come to an end")


H2O = Choice("h2o", budget=64)
PAGED_DESIGNS = [design for design in DESIGNS if design not in ("linear", "lstm")]
CASES = [*((design, None) for design in DESIGNS), *((design, PAGED_CACHE) for design in PAGED_DESIGNS)]
CASES += [("rope", cache) for cache in (Choice("growing"), Choice("window", window=64), H2O)]
CASES += [("rope+alibi", cache) for cache in (None, PAGED_CACHE, H2O)]
CASES += [("lstm+rope", None), ("lstm+rope", PAGED_CACHE), ("hybrids", PAGED_CACHE)]
CASES += [("hybrid", Choice("growing")), ("hybrid", H2O)]


@pytest.mark.acceptance("C1", "C2")
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize(("design", "cache"), CASES, ids=str)
def test_continuous_batching_equals_single_requests(kind, design, cache, deterministic):
    model, descriptions = make(kind, design), random_requests(kind, 9)
    options = {"max_num_seqs": 11, "prefill_chunk": 3, "deterministic": deterministic}
    engine = Engine(model, max_len=MAX_LEN, cache=cache, **options)
    for description, request in zip(descriptions, run(engine, descriptions), strict=True):
        assert outputs(request) == description.expected(model) and request.finish_status.reason == "done"
    assert engine.running_members == [] and not engine.waiting_requests


@pytest.mark.acceptance("C1")
@pytest.mark.parametrize(
    ("kind", "design", "blocks"),
    [
        ("decoder", "rope", 30),
        ("encoder-decoder", "rope", 60),
        ("decoder", "rope+alibi", 60),
        ("encoder-decoder", "lstm+rope", 30),
        ("decoder", "hybrid", 30),
    ],
)
def test_preempted_requests_give_the_same_tokens(kind, design, blocks):
    model, descriptions = make(kind, design), random_requests(kind, 25, seed=blocks)
    cache = Choice("paged", block_size=2, max_blocks=blocks)
    engine = Engine(model, max_len=MAX_LEN, cache=cache, prefill_chunk=6)
    for description, request in zip(descriptions, run(engine, descriptions, per_step=25), strict=True):
        assert outputs(request) == description.expected(model)
    assert engine.preemptions > 0
    for batch in engine.batches:
        for part in getattr(batch.cache, "leaves", [batch.cache]):
            assert isinstance(part, StateCache) or all_blocks_are_free(part.block_manager)


@pytest.mark.acceptance("D5")
def test_requests_larger_than_the_cache_are_refused():
    cache = Choice("paged", block_size=4, max_blocks=5)
    engine, prompt = Engine(make(), max_len=MAX_LEN, cache=cache, max_num_seqs=3), [5, 6, 7, 8, 9]
    for arguments, message in (
        (
            (prompt, 17),
            "5 tokens and up to 17 new ones in 1 sequence require a cache of 24 tokens; the cache has 20",
        ),
        ((prompt, 2, GREEDY, 4), "4 sequences were requested; the engine runs at most 3"),
        (([5] * 41, 2), "the prompt has 41 tokens; the model's maximum is 40"),
        (([], 2), "a prompt has no token"),
        # three sequences share a page of the prompt and need five slots each beyond it: 4 + 3 x 8
        ((prompt, 5, GREEDY, 3), "require a cache of 28 tokens"),
    ):
        with pytest.raises(UserError, match=message):
            sample(engine, *arguments)
        assert engine.idle
    for name in ("max_num_seqs", "prefill_chunk", "max_batch_tokens"):
        with pytest.raises(UserError, match=f"{name} is 0; expected an integer, 1 or more"):
            Engine(make(), max_len=MAX_LEN, **{name: 0})
    assert [len(tokens) for tokens in outputs(sample(engine, prompt, 16))] == [16]
    assert [len(tokens) for tokens in outputs(sample(engine, prompt, 4, n=3))] == [4, 4, 4]
    assert all_blocks_are_free(engine.batches[0].cache.block_manager)


@pytest.mark.acceptance("D6")
def test_long_prefill_shares_steps_with_other_requests():
    engine = Engine(make(max_len=2000), max_len=2000, cache=PAGED_CACHE, prefill_chunk=100)
    long = sample(engine, [5] * 1500, 3)
    engine.step()
    short = [sample(engine, [i % 20 + 3] * 8, 3) for i in range(50)]
    steps = 0
    while any(request.finish_status is None for request in short):
        engine.step()
        steps += 1
    # 51 readers share 100 tokens, one each a step, so a prompt of 8 is read in at most 7 steps; then 3 tokens
    assert steps <= 12 and long.finish_status is None
    while long.finish_status is None:
        engine.step()
        steps += 1
    assert steps <= 12 + 1500 // 100 + 4


@pytest.mark.acceptance("D7", "R9")
def test_hundreds_of_requests_with_random_cancellations():
    model, rng = make(n_layers=1), np.random.default_rng(1)
    descriptions = random_requests("decoder", 15)
    expected = [description.expected(model) for description in descriptions]
    cache = Choice("paged", block_size=4, max_blocks=40)  # too few for all
    engine = Engine(model, max_len=MAX_LEN, cache=cache, prefill_chunk=40, max_num_seqs=90)
    requests, to_cancel = [], []
    while len(requests) < 500 or not engine.idle:
        for _ in range(int(rng.integers(0, 60)) if len(requests) < 500 else 0):
            requests.append(descriptions[len(requests) % 15].submit(engine))
            if rng.random() < 0.5:
                to_cancel.append(requests[-1])
        for request in [request for request in to_cancel if rng.random() < 0.2]:
            request.cancel()
            request.cancel()
            to_cancel.remove(request)
            assert all(member.request is not request for member in engine.running_members)
        engine.step()
    assert all_blocks_are_free(engine.batches[0].cache.block_manager)
    assert engine.batches[0].cache.seq_ids == []
    reasons = Counter(request.finish_status.reason for request in requests)
    for i, request in enumerate(requests):
        if request.finish_status.reason == "done":
            assert outputs(request) == expected[i % 15]
    assert reasons["done"] + reasons["cancelled"] == len(requests) and reasons["cancelled"] > 100
    assert engine.preemptions > 0


@pytest.mark.acceptance("C11", "R12")
@pytest.mark.parametrize(
    ("kind", "design", "cache"),
    [
        ("decoder", "rope", None),
        ("encoder-decoder", "rope", PAGED_CACHE),
        ("decoder", "rope+alibi", PAGED_CACHE),
    ],
    ids=str,
)
def test_deterministic_engine_is_bitwise_reproducible(kind, design, cache):
    model, rng, descriptions = make(kind, design), np.random.default_rng(0), random_requests(kind, 10)
    engine = Engine(model, max_len=MAX_LEN, cache=cache, prefill_chunk=4, deterministic=True)
    expected = []
    for description in descriptions:
        request = description.submit(engine)
        expected.append((list(request), request.result()))
    requests = [description.submit(engine) for description in descriptions]
    events = [[] for _ in requests]
    while not engine.idle:
        engine.step()
        if rng.random() < 0.3:
            noise = random_requests(kind, 1, seed=int(rng.integers(1000)))[0].submit(engine)
            if rng.random() < 0.5:
                noise.cancel()
        for request, new in zip(requests, events, strict=True):
            new += request.state.new_tokens
            request.state.new_tokens.clear()
        if len(engine.running_members) > 100:
            break
    for request, new, (expected_events, result) in zip(requests, events, expected, strict=True):
        assert request.result() == result  # scores included
        assert new == expected_events


def test_nan_fails_one_request_a_model_all_running(monkeypatch):
    model, prompts = make(), [[4, 5, 3], [4, 5, 6], [4, 5, 7]]
    expected = [run_alone(model, lambda engine, p=p: sample(engine, p, 6)) for p in prompts]
    nan_id = next(i for i in range(8, V) if not any(i in tokens for (tokens,) in expected))
    with torch.no_grad():
        model.embedding.token.weight[nan_id] = float("nan")
    engine = Engine(model, max_len=MAX_LEN, cache=PAGED_CACHE)
    good = [sample(engine, prompt, 6) for prompt in prompts[:2]]
    bad = [sample(engine, [4, nan_id], 6), search(engine, [nan_id, 3], 6, 3)]
    good.append(sample(engine, prompts[2], 6))
    for request in bad:
        with pytest.raises(UserError, match="output is NaN"):
            request.result()
        assert request.finish_status.reason == "error"
    assert [outputs(request) for request in good] == expected
    engine = Engine(model, max_len=MAX_LEN)
    expected, request = outputs(sample(engine, [4, 5], 5)), sample(engine, [4, 5], 5)
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(model, "decode_features", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            request.result()
    assert request.finish_status.reason == "error" and engine.idle
    assert outputs(sample(engine, [4, 5], 5)) == expected


@pytest.mark.parametrize("place", ["model", "engine"])
def test_stored_error_holds_no_cache(monkeypatch, gc_disabled, place):
    """Its traceback has the frames of the step, and whoever asked for the text may store it for long."""
    model = make()
    engine = Engine(model, max_len=MAX_LEN, cache=PAGED_CACHE)
    request = sample(engine, [4, 5], 5)
    engine.step()
    layers = weakref.WeakSet(engine.batches[0].cache.layers)
    if place == "model":
        monkeypatch.setattr(model, "decode_features", lambda tokens, pos, cache, memory: cache / 0)
        engine.step()
    else:
        monkeypatch.setattr(engine, "_step_batch", lambda batch: batch.cache / 0)
        monkeypatch.setattr(engine, "_isolate_failure", lambda batch, work: work())
        with pytest.raises(TypeError) as error:
            engine.step()
        engine.fail_all(error.value)
    assert isinstance(request.finish_status.error, TypeError) and request.finish_status.error.__traceback__
    assert not layers and engine.idle


@pytest.mark.parametrize("name", [name for name in CACHE.names() if name != "state"])
def test_cache_is_freed_with_its_last_request(gc_disabled, name):
    """Without a run of the garbage collector."""
    engine = Engine(make(), max_len=MAX_LEN, cache=Choice(name), deterministic=True)
    for _ in range(2):
        request = sample(engine, [4, 5], 5)
        engine.step()
        (batch,) = engine.batches
        objects = weakref.WeakSet([batch, batch.cache, *batch.cache.layers])
        del batch
        request.result()
        engine.step()
        assert not objects


def test_threads_wait_for_their_own_requests():
    model, descriptions = make(), random_requests("decoder", 12)
    engine, results = Engine(model, max_len=MAX_LEN, cache=PAGED_CACHE, max_num_seqs=9), {}

    def work(i):
        request = descriptions[i].submit(engine)
        list(request)
        results[i] = outputs(request)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert [results[i] for i in range(12)] == [description.expected(model) for description in descriptions]
