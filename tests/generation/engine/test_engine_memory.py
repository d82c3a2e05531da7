import itertools
import threading
from collections import deque

import numpy as np
import pytest
from tests.cache.cache_helpers import check_invariants
from tests.generation.engine.engine_helpers import (
    BOS,
    EOS,
    MAX_LEN,
    PAGED_CACHE,
    WARM,
    Fan,
    SilentModel,
    SilentTranslator,
    V,
    all_blocks_are_free,
    make,
    outputs,
    run_alone,
    sample,
    step_until_idle,
)
from tests.generation.helpers import GREEDY

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.generation.decoding.beam_search import BeamRequest, BeamSearchStrategy, BeamState
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.engine.engine import Engine


def used_blocks(engine):
    tables = [batch.cache.block_manager for batch in engine.batches]
    return sum(table.n_blocks - table.n_available for table in tables)


@pytest.mark.acceptance("D5")
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("model", [SilentModel, SilentTranslator])
def test_admitted_requests_finish_within_max_blocks(model, deterministic):
    preemptions = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        block, max_len, blocks = int(rng.integers(1, 5)), int(rng.integers(1, 12)), int(rng.integers(3, 12))
        cache = Choice("paged", block_size=block, max_blocks=blocks)
        options = {"prefill_chunk": int(rng.integers(1, 20))}
        options |= {"refill_threshold": float(rng.choice([0, 0.5, 1]))}
        engine = Engine(model(), max_len=max_len, cache=cache, deterministic=deterministic, **options)
        source, requests = [1] if model is SilentTranslator else None, []
        for _ in range(12):
            width = int(rng.integers(1, 4))
            fan = Fan(width, int(rng.integers(1, 20)), int(rng.choice([1, width])))
            try:
                requests.append(engine.submit([5] * int(rng.integers(1, max_len + 1)), fan, source=source))
            except UserError:
                continue
        for _ in range(3000):
            if engine.idle:
                break
            engine.step()
            assert used_blocks(engine) <= blocks
        assert engine.idle and all(request.finish_status.reason == "done" for request in requests)
        assert used_blocks(engine) == 0
        preemptions += engine.preemptions
    assert (preemptions == 0) == deterministic


STRATEGIES = [SamplingStrategy(GREEDY, EOS), SamplingStrategy(WARM, -1)]
STRATEGIES += [BeamSearchStrategy(2, EOS, n_best=2), BeamSearchStrategy(3, EOS, n_best=3)]


class AnyRequest:
    def __init__(self, rng, kind, max_len):
        self.prompt = rng.integers(3, V, rng.integers(1, max_len + 1)).tolist()
        self.source = rng.integers(3, V, rng.integers(1, 9)).tolist() if kind != "decoder" else None
        self.n, self.limit = int(rng.integers(1, 4)), int(rng.integers(1, 20))
        self.seed, self.strategy = int(rng.integers(9)), STRATEGIES[rng.integers(len(STRATEGIES))]
        self.is_search = isinstance(self.strategy, BeamSearchStrategy)

    def submit(self, engine):
        limit = min(self.limit, engine.max_len + 1 - len(self.prompt))
        if self.is_search:
            state = BeamState(self.strategy, BeamRequest(limit))
        else:
            state = SampledSequences(self.strategy, self.prompt, self.limit, self.n, self.seed)
        return engine.submit(self.prompt, state, source=self.source)


@pytest.mark.acceptance("C1", "D1", "D7")
@pytest.mark.parametrize("seed", range(36))
def test_random_requests_in_random_engines_equal_single_requests(seed):
    """Texts past max_len, few pages, small chunks, stopped sequences and cancelled requests, all at once."""
    rng, kind = np.random.default_rng(seed), ["decoder", "encoder-decoder"][seed % 2]
    design = ["rope", "learned", "alibi", "linear"][seed // 2 % 4] if seed < 24 else "hybrid"
    model, max_len = make(kind, design, n_layers=3 if design == "hybrid" else 1), int(rng.choice([3, 8, 13]))
    cache = Choice("paged", block_size=int(rng.integers(1, 4)), max_blocks=3 * max_len)
    cache = None if design == "linear" else cache
    options = {"max_num_seqs": int(rng.choice([5, 30])), "prefill_chunk": int(rng.choice([1, 4, 50]))}
    options |= {"deterministic": bool(rng.random() < 0.3), "refill_threshold": float(rng.choice([0, 0, 0.5]))}
    engine = Engine(model, max_len=max_len, cache=cache, **options)
    descriptions, running, stopped_rows = [AnyRequest(rng, kind, max_len) for _ in range(12)], {}, {}
    while len(running) < len(descriptions) or not engine.idle:
        for description in descriptions[len(running) : len(running) + int(rng.integers(4))]:
            running[description.submit(engine)] = description
        for request in running:
            if request.finish_status is None and rng.random() < 0.01:
                request.cancel()
            if request.finish_status is None and rng.random() < 0.02:
                number = int(rng.integers(running[request].n))
                stopped_rows.setdefault(request, set()).add(number)
                request.stop(number)
        engine.step()
        for batch in engine.batches if cache else []:
            check_invariants(getattr(batch.cache, "caches", [batch.cache])[0].block_manager)
    assert cache is None or used_blocks(engine) == 0
    assert all(batch.prefix_cache is not None for batch in engine.batches), "a useless cache is stored"
    for request, description in running.items():
        rows = stopped_rows.get(request, ())
        if request.finish_status.reason == "cancelled" or (rows and description.is_search):
            continue
        assert request.finish_status.reason == "done"
        expected = run_alone(model, description.submit, max_len)
        for number, (actual, full) in enumerate(zip(outputs(request), expected, strict=True)):
            assert actual == (full[: len(actual)] if number in rows else full)


def phases(engine, request):
    while request.finish_status is None:
        member = next((member for member in engine.running_members if member.request is request), None)
        if member is None:
            yield "waiting" if not request.state.rows[0] else "preempted"
        else:
            phase = "prefill" if not member.forked else "forked" if any(member.pending) else "decoding"
            yield phase + " again" * bool(request.window_start)
        engine.step()


@pytest.mark.acceptance("D7", "E1")
@pytest.mark.parametrize(
    ("kind", "options"),
    [("decoder", {}), ("encoder-decoder", {"deterministic": True}), ("encoder-decoder", {"cache": None})],
    ids=str,
)
def test_cancellation_in_every_phase(kind, options):
    """The request leaves at once, frees its memory and gets no more events; the other one is unaffected."""
    model, source = make(kind), [5, 6, EOS] if kind != "decoder" else None
    seen_phases, prompt = set(), [7, 8, 9, 10, 11]
    options = {"cache": Choice("paged", block_size=2, max_blocks=18)} | options

    def submit_other(engine):
        return sample(engine, [4], 7, WARM, n=3, source=source)

    expected = run_alone(model, submit_other, 12)
    for n_steps in range(0, 60, 2):
        engine = Engine(model, max_len=12, prefill_chunk=2, max_num_seqs=5, **options)
        other, request = submit_other(engine), sample(engine, prompt, 14, WARM, n=2, source=source)
        seen_phases.add([*itertools.islice(phases(engine, request), n_steps + 1)][-1])
        status, n_events = request.finish_status, len(request.state.new_tokens)
        request.cancel()
        assert all(member.request is not request for member in engine.running_members)
        assert request not in engine.waiting_requests
        new_status = request.finish_status
        assert new_status.reason == "cancelled" if status is None else new_status is status
        assert outputs(other) == expected and len(request.state.new_tokens) == n_events
        assert engine.idle
        for batch in engine.batches:
            assert batch.memory is None and batch.members == []
            assert options["cache"] is None or all_blocks_are_free(batch.cache.block_manager)
        if status is not None:
            break
    assert {"waiting", "decoding", "forked again", "decoding again"} <= seen_phases


@pytest.mark.acceptance("E5")
@pytest.mark.parametrize(("kind", "source"), [("decoder", None), ("encoder-decoder", [5, EOS])])
def test_invalid_ids_and_sources_are_refused(kind, source):
    engine = Engine(make(kind), max_len=MAX_LEN, cache=PAGED_CACHE)
    expected = outputs(sample(engine, [BOS], 5, source=source))
    for ids in ([-1], [V], [5, 2**63], [5, V + 1]):
        with pytest.raises(UserError, match=f"no token {ids[-1]}; the vocabulary has 0 to {V - 1}"):
            sample(engine, ids, 5, source=source)
        if source is not None:
            with pytest.raises(UserError, match="no token"):
                sample(engine, [BOS], 5, source=ids)
    message = "requires a source, " + ("this model" if source is None else "got none")
    with pytest.raises(UserError, match=message):
        sample(engine, [BOS], 5, source=[5] if source is None else None)
    assert engine.idle and outputs(sample(engine, [BOS], 5, source=source)) == expected


def test_failing_encoder_ends_only_its_request(monkeypatch):
    """Also where a text starts a new window, and its request is for a moment in no batch."""
    model = make("encoder-decoder")
    encode = model.encode
    for failing_call in range(1, 5):
        engine, calls = Engine(model, max_len=6), itertools.count(1)

        def failing_encode(*args, calls=calls, failing_call=failing_call):
            return 1 / 0 if next(calls) == failing_call else encode(*args)

        with monkeypatch.context() as patch:
            patch.setattr(model, "encode", failing_encode)
            first = sample(engine, [BOS], 20, source=[4])
            engine.step()
            second = sample(engine, [BOS], 20, source=[5])
            step_until_idle(engine)
        failed_request, done_request = (first, second) if failing_call % 2 else (second, first)
        reasons = [request.finish_status.reason for request in (failed_request, done_request)]
        assert reasons == ["error", "done"], failing_call
        assert isinstance(failed_request.finish_status.error, ZeroDivisionError)
        for request, limit in ((done_request, 20), (sample(engine, [BOS], 5, source=[5]), 5)):
            source = request.source
            expected = run_alone(model, lambda e, n=limit, s=source: sample(e, [BOS], n, source=s), 6)
            assert outputs(request) == expected


def test_other_threads_drive_and_cancel(monkeypatch):
    """Another thread may drive the engine to the end between two looks of the one that waits."""

    class DrivingDeque(deque):
        def __bool__(self):
            is_filled = len(self) > 0
            while not is_filled and request.finish_status is None:
                engine.step()
            return is_filled

    engine = Engine(make(), max_len=MAX_LEN)
    request = sample(engine, [4, 5], 7)
    request.state.new_tokens = DrivingDeque()
    assert len(list(request)) == 7
    model, prompt = make(), [4, 5, 6]
    engine = Engine(model, max_len=MAX_LEN, cache=PAGED_CACHE)
    request, other = sample(engine, prompt, 30, n=2), sample(engine, prompt, 30)
    thread, decode_features = threading.Thread(target=request.cancel), model.decode_features

    def cancel_meanwhile(*args):
        if thread.ident is None:
            thread.start()
            thread.join(0.1)
            assert request.finish_status is None, "cancelled in the middle of a step"
        return decode_features(*args)

    monkeypatch.setattr(model, "decode_features", cancel_meanwhile)
    engine.step()
    thread.join()
    assert request.finish_status.reason == "cancelled"
    assert [member.request for member in engine.running_members] == [other]
    assert len(outputs(other)[0]) == 30 and used_blocks(engine) == 0


@pytest.mark.parametrize("cache", [Choice("window", window=5, sink=2), Choice("h2o", budget=8, sink=1)])
def test_lossy_caches_depend_only_on_own_chunks(cache):
    """A window forgets the same whatever the chunks; H2O does not, but never depends on other requests."""
    model, rng, results = make(), np.random.default_rng(0), {}
    prompts = [rng.integers(3, V, 20).tolist() for _ in range(3)]
    for chunk, deterministic in itertools.product((3, 1000), (False, True)):
        options = {"cache": cache, "prefill_chunk": chunk, "deterministic": deterministic}
        engine = Engine(model, max_len=MAX_LEN, **options)
        requests = [sample(engine, prompt, 12) for prompt in prompts]
        results[chunk, deterministic] = [outputs(request) for request in requests]
        if deterministic:
            expected = [run_alone(model, lambda e, p=p: sample(e, p, 12), **options) for p in prompts]
            assert results[chunk, True] == expected
    if cache.name == "window":
        assert len({str(tokens) for tokens in results.values()}) == 1
    else:
        assert results[3, False] == results[3, True] != results[1000, True] == results[1000, False]


@pytest.mark.acceptance("D5", "D6")
def test_order_of_admission_and_preemption():
    """New requests join when that share of the last ones is gone."""

    def step():
        engine.step()
        return [len(engine.running_members), len(engine.waiting_requests)]

    engine = Engine(SilentModel(), max_len=MAX_LEN, refill_threshold=0.5, max_num_seqs=4)
    for limit in (2, 3, 9, 9, 9, 3):
        engine.submit([5], Fan(1, limit, 1))
    assert [step() for _ in range(4)] == [[4, 2], [3, 2], [2, 2], [4, 0]]
    step_until_idle(engine)
    engine = Engine(SilentModel(), max_len=MAX_LEN, refill_threshold=0.5)
    for limit in (2, 9, 9):
        engine.submit([5], Fan(1, limit, 1))
    assert [step() for _ in range(3)] == [[3, 0], [2, 0], [2, 0]]
    engine.submit([5], Fan(1, 9, 1))
    assert step() == [2, 1]  # one of three is less than half of them
    cache = Choice("paged", block_size=1, max_blocks=10)
    engine, finished = Engine(SilentModel(), max_len=MAX_LEN, cache=cache), []
    requests = [engine.submit([5 + i], Fan(1, 8, 1)) for i in range(5)]
    while not engine.idle:
        engine.step()
        running = [member.request for member in engine.running_members]
        assert running == sorted(running, key=requests.index)
        open_requests = running + list(engine.waiting_requests)
        assert open_requests == requests[len(requests) - len(open_requests) :]
        finished += [r for r in requests if r.finish_status is not None and r not in finished]
    assert finished == requests and engine.preemptions > 0
