"""What an engine lets in it can finish, whatever else runs; what it refuses it could not; and nobody is lost
on the way.
"""

import itertools
import threading
from collections import deque

import numpy as np
import pytest
from tests.generation.engine.engine_memory_helpers import Fan, Silent, until_idle
from tests.generation.engine.test_engine import (
    BOS,
    EOS,
    GREEDY,
    MAX_LEN,
    PAGED,
    WARM,
    V,
    make,
    nothing_is_held,
)

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.generation.decoding.beam_search import BeamRequest, BeamSearchStrategy, BeamState
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.engine.engine import Engine
from polyhead.nn.kv import KV


class Reading(Silent):
    """One that reads a source."""

    def encode(self, source, pos):
        x = source[:, None, :, None].float()
        return [KV(x, x, None if pos is None else pos[:, None])]


def pages(engine):
    tables = [batch.cache.block_manager for batch in engine.batches]
    return sum(table.n_blocks - table.n_available for table in tables)


@pytest.mark.acceptance("D5")
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("model", [Silent, Reading])
def test_those_that_each_just_fit_all_end_and_never_take_more_pages_than_there_are(model, deterministic):
    gave_way = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        block, max_len, blocks = int(rng.integers(1, 5)), int(rng.integers(1, 12)), int(rng.integers(3, 12))
        cache = Choice("paged", block_size=block, max_blocks=blocks)
        engine = Engine(
            model(), max_len=max_len, cache=cache, prefill_chunk=int(rng.integers(1, 20)),
                deterministic=deterministic,
            refill_threshold=float(rng.choice([0, 0.5, 1])),
        )  # fmt: skip
        source, requests = [1] if model is Reading else None, []
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
            assert pages(engine) <= blocks
        assert engine.idle
        assert all(request.finish_status.reason == "done" for request in requests)
        assert pages(engine) == 0
        gave_way += engine.preemptions
    assert (gave_way == 0) == deterministic


class Wanted:
    """A request of any kind, drawn at random."""

    def __init__(self, rng, kind, max_len, rules):
        self.prompt = rng.integers(3, V, rng.integers(1, max_len + 1)).tolist()
        self.source = rng.integers(3, V, rng.integers(1, 9)).tolist() if kind != "decoder" else None
        self.n, self.limit, self.seed = (
            int(rng.integers(1, 4)),
            int(rng.integers(1, 20)),
            int(rng.integers(9)),
        )
        self.rule = rules[rng.integers(len(rules))]

    def put(self, engine):
        if isinstance(self.rule, BeamSearchStrategy):
            search = BeamState(self.rule, BeamRequest(min(self.limit, engine.max_len + 1 - len(self.prompt))))
        else:
            search = SampledSequences(self.rule, self.prompt, self.limit, self.n, self.seed)
        return engine.submit(self.prompt, search, source=self.source)


def said(request):
    return [hypothesis.tokens for hypothesis in request.state.best_hypotheses()]


@pytest.mark.acceptance("C1", "D1", "D7")
@pytest.mark.parametrize("seed", range(36))
def test_any_requests_in_any_engine_say_what_they_say_alone(seed):
    """Texts that outgrow the model, few pages, small chunks, sequences stopped and requests cancelled, all
    at once.
    """
    rng = np.random.default_rng(seed)
    kind, design = (
        ["decoder", "encoder-decoder"][seed % 2],
        ["rope", "learned", "alibi", "linear"][seed // 2 % 4] if seed < 24 else "hybrid",
    )
    model, max_len = make(kind, design, n_layers=3 if design == "hybrid" else 1), int(rng.choice([3, 8, 13]))
    rules = [
        SamplingStrategy(GREEDY, EOS),
        SamplingStrategy(WARM, -1),
        BeamSearchStrategy(2, EOS, n_best=2),
        BeamSearchStrategy(3, EOS, n_best=3),
    ]
    cache = (
        Choice("paged", block_size=int(rng.integers(1, 4)), max_blocks=3 * max_len)
        if design != "linear"
        else None
    )
    engine = Engine(
        model, max_len=max_len, cache=cache, max_num_seqs=int(rng.choice([5, 30])),
            prefill_chunk=int(rng.choice([1, 4, 50])),
        deterministic=bool(rng.random() < 0.3), refill_threshold=float(rng.choice([0, 0, 0.5])),
    )  # fmt: skip
    wishes, running, stopped = [Wanted(rng, kind, max_len, rules) for _ in range(12)], {}, {}
    while len(running) < len(wishes) or not engine.idle:
        for wish in wishes[len(running) : len(running) + int(rng.integers(4))]:
            running[wish.put(engine)] = wish
        for request in running:
            if request.finish_status is None and rng.random() < 0.01:
                request.cancel()
            if request.finish_status is None and rng.random() < 0.02:
                number = int(rng.integers(running[request].n))
                stopped.setdefault(request, set()).add(number)
                request.stop(number)
        engine.step()
        for batch in engine.batches:
            if cache is not None:
                getattr(batch.cache, "caches", [batch.cache])[0].block_manager.check_invariants()
    assert cache is None or pages(engine) == 0
    assert all(batch.prefix_cache is not None for batch in engine.batches), (
        "a cache is kept that nobody will read"
    )
    for request, wish in running.items():
        alone = wish.put(Engine(model, max_len=max_len))
        wanted = [hypothesis.tokens for hypothesis in alone.result()]
        if request.finish_status.reason == "cancelled" or (
            request in stopped and isinstance(wish.rule, BeamSearchStrategy)
        ):
            continue
        assert request.finish_status.reason == "done"
        for number, (found, whole) in enumerate(zip(said(request), wanted, strict=True)):
            assert found == (whole[: len(found)] if number in stopped.get(request, ()) else whole)


def phases(engine, request):
    """Advance until it has ended, telling where it is before every step."""
    while request.finish_status is None:
        member = next((member for member in engine.running_members if member.request is request), None)
        if member is None:
            yield "waiting" if not request.state.rows[0] else "gave way"
        else:
            yield ("goes on" if member.decoding else "parted" if member.forked else "reads") + (
                " anew" if request.window_start else ""
            )
        engine.step()


@pytest.mark.acceptance("D7", "E1")
@pytest.mark.parametrize("how", [{}, {"deterministic": True}, {"cache": None}], ids=str)
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_whoever_is_cancelled_leaves_at_once_nothing_behind_and_says_no_more(kind, how):
    model, source = make(kind), [5, 6, EOS] if kind != "decoder" else None
    seen, prompt = set(), [7, 8, 9, 10, 11]
    alone = Engine(model, max_len=12).submit(
        [4], SampledSequences(SamplingStrategy(WARM, -1), [4], 7, n=3), source=source
    )
    alone.result()
    for steps in range(60):
        engine = Engine(
            model,
            max_len=12,
            prefill_chunk=2,
            max_num_seqs=5,
            **{"cache": Choice("paged", block_size=2, max_blocks=18)} | how,
        )
        other = engine.submit([4], SampledSequences(SamplingStrategy(WARM, -1), [4], 7, n=3), source=source)
        doomed = engine.submit(
            prompt, SampledSequences(SamplingStrategy(WARM, -1), prompt, 14, n=2), source=source
        )
        phase = [*itertools.islice(phases(engine, doomed), steps + 1)][-1]
        ended, number = doomed.finish_status, len(doomed.events)
        doomed.cancel()
        seen.add(phase)
        assert (
            all(member.request is not doomed for member in engine.running_members)
            and doomed not in engine.waiting_requests
        )
        assert doomed.finish_status.reason == "cancelled" if ended is None else doomed.finish_status is ended
        assert other.result()
        assert said(other) == said(alone)
        assert len(doomed.events) == number
        assert engine.idle
        for batch in engine.batches:
            assert batch.memory is None and batch.members == []
            assert how.get("cache", PAGED) is None or nothing_is_held(batch.cache.block_manager)
        if ended is not None:
            break
    assert {"waiting", "goes on", "parted anew", "goes on anew"} <= seen


@pytest.mark.acceptance("E5")
def test_what_makes_no_sense_is_refused_and_the_next_one_is_served():
    both = [(make(), None), (make("encoder-decoder"), [5, EOS])]
    for model, source in both:
        engine, rule = Engine(model, max_len=MAX_LEN, cache=PAGED), SamplingStrategy(GREEDY, -1)
        wanted = engine.submit([BOS], SampledSequences(rule, [BOS], 5), source=source).result()
        for bad in ([-1], [V], [5, 2**63], [5, V + 1]):
            with pytest.raises(UserError, match=f"no token {bad[-1]}; the vocabulary has 0 to {V - 1}"):
                engine.submit(bad, SampledSequences(rule, bad, 5), source=source)
            if source is not None:
                with pytest.raises(UserError, match="no token"):
                    engine.submit([BOS], SampledSequences(rule, [BOS], 5), source=bad)
        with pytest.raises(
            UserError, match="requires a source, " + ("this model" if source is None else "got none")
        ):
            engine.submit([BOS], SampledSequences(rule, [BOS], 5), source=[5] if source is None else None)
        assert engine.idle
        assert engine.submit([BOS], SampledSequences(rule, [BOS], 5), source=source).result() == wanted


def test_a_source_that_cannot_be_read_ends_its_request_alone_and_the_engine_goes_on(monkeypatch):
    """Also where a text begins anew, and its request is for a moment in no batch."""
    model, rule = make("encoder-decoder"), SamplingStrategy(GREEDY, -1)
    encode = model.encode
    for fails in range(1, 5):
        engine, calls = Engine(model, max_len=6), itertools.count(1)

        def broken(*given, calls=calls, fails=fails):
            return 1 / 0 if next(calls) == fails else encode(*given)

        with monkeypatch.context() as patch:
            patch.setattr(model, "encode", broken)
            first = engine.submit([BOS], SampledSequences(rule, [BOS], 20), source=[4])
            engine.step()
            second = engine.submit([BOS], SampledSequences(rule, [BOS], 20), source=[5])
            until_idle(engine)
        (broke, whole) = (first, second) if fails % 2 else (second, first)
        assert (broke.finish_status.reason, whole.finish_status.reason) == ("error", "done"), fails
        assert isinstance(broke.finish_status.error, ZeroDivisionError)
        alone = Engine(model, max_len=6).submit([BOS], SampledSequences(rule, [BOS], 20), source=whole.source)
        assert [one.tokens for one in whole.result()] == [one.tokens for one in alone.result()]
        again = engine.submit([BOS], SampledSequences(rule, [BOS], 5), source=[5])
        assert (
            again.result()
            == Engine(model, max_len=6).submit([BOS], SampledSequences(rule, [BOS], 5), source=[5]).result()
        )


def test_what_is_said_just_after_a_look_at_the_news_is_not_lost():
    """Another thread may drive the engine to the end between two looks of the one that waits."""
    model, prompt = make(), [4, 5]

    class Sly(deque):
        def __bool__(self):
            there = len(self) > 0
            while not there and request.finish_status is None:
                engine.step()
            return there

    engine = Engine(model, max_len=MAX_LEN)
    request = engine.submit(prompt, SampledSequences(SamplingStrategy(GREEDY, -1), prompt, 7))
    request.events = Sly()
    assert len(list(request)) == 7


def test_cancelling_in_another_thread_waits_for_the_step_and_then_holds(monkeypatch):
    model, prompt = make(), [4, 5, 6]
    engine = Engine(model, max_len=MAX_LEN, cache=PAGED)
    request = engine.submit(prompt, SampledSequences(SamplingStrategy(GREEDY, -1), prompt, 30, n=2))
    stay = engine.submit(prompt, SampledSequences(SamplingStrategy(GREEDY, -1), prompt, 30))
    thread, decode = threading.Thread(target=request.cancel), model.decode_features

    def meanwhile(*given):
        if thread.ident is None:
            thread.start()
            thread.join(0.1)
            assert request.finish_status is None, "cancelled in the middle of a step"
        return decode(*given)

    monkeypatch.setattr(model, "decode_features", meanwhile)
    engine.step()
    thread.join()
    assert request.finish_status.reason == "cancelled"
    assert [member.request for member in engine.running_members] == [stay]
    assert len(stay.result()[0].tokens) == 30
    assert pages(engine) == 0


@pytest.mark.parametrize(
    "cache", [Choice("window", window=5, sink=2), Choice("h2o", budget=8, sink=1)], ids=str
)
def test_what_a_cache_forgets_may_hang_on_how_a_prompt_is_cut_but_not_on_who_else_runs(cache):
    """A window forgets the same whatever the chunks; heavy hitters do not, so a chunk is as long as in an
    engine of one's own.
    """
    model, rng, found = make(), np.random.default_rng(0), {}
    prompts = [rng.integers(3, V, 20).tolist() for _ in range(6)]
    for chunk, deterministic in itertools.product((3, 1000), (False, True)):
        engine = Engine(model, max_len=MAX_LEN, cache=cache, prefill_chunk=chunk, deterministic=deterministic)
        requests = [
            engine.submit(prompt, SampledSequences(SamplingStrategy(GREEDY, -1), prompt, 12))
            for prompt in prompts
        ]
        found[chunk, deterministic] = [request.result()[0].tokens for request in requests]
        if deterministic:
            solo = [
                Engine(model, max_len=MAX_LEN, cache=cache, prefill_chunk=chunk, deterministic=True)
                for _ in prompts
            ]
            alone = [
                e.submit(p, SampledSequences(SamplingStrategy(GREEDY, -1), p, 12))
                for e, p in zip(solo, prompts, strict=True)
            ]
            assert found[chunk, True] == [request.result()[0].tokens for request in alone]
    if cache.name == "window":
        assert len({str(tokens) for tokens in found.values()}) == 1
    else:
        assert found[3, False] == found[3, True] != found[1000, True] == found[1000, False]


def test_the_next_ones_join_when_the_wanted_share_of_the_last_ones_is_gone():
    def at_work():
        engine.step()
        return [len(engine.running_members), len(engine.waiting_requests)]

    engine = Engine(Silent(), max_len=MAX_LEN, refill_threshold=0.5, max_num_seqs=4)
    for most in (2, 3, 9, 9, 9, 3):
        engine.submit([5], Fan(1, most, 1))
    assert [at_work() for _ in range(4)] == [[4, 2], [3, 2], [2, 2], [4, 0]]
    until_idle(engine)
    engine = Engine(Silent(), max_len=MAX_LEN, refill_threshold=0.5)
    for most in (2, 9, 9):
        engine.submit([5], Fan(1, most, 1))
    assert [at_work() for _ in range(3)] == [[3, 0], [2, 0], [2, 0]]
    engine.submit([5], Fan(1, 9, 1))
    assert at_work() == [2, 1]  # one of three is less than half of them, however long ago they came


@pytest.mark.acceptance("D5", "D6")
def test_the_youngest_gives_way_comes_back_before_all_others_and_nobody_who_was_first_comes_last():
    engine, ended = Engine(Silent(), max_len=MAX_LEN, cache=Choice("paged", block_size=1, max_blocks=10)), []
    requests = [engine.submit([5 + i], Fan(1, 8, 1)) for i in range(5)]
    while not engine.idle:
        engine.step()
        running = [member.request for member in engine.running_members]
        assert running == sorted(running, key=requests.index)
        assert (
            running + list(engine.waiting_requests)
            == requests[len(requests) - len(running) - len(engine.waiting_requests) :]
        )
        ended += [
            request for request in requests if request.finish_status is not None and request not in ended
        ]
    assert ended == requests and engine.preemptions > 0


def test_who_waits_is_looked_at_once(monkeypatch):
    engine, asked = Engine(Silent(), max_len=50, max_num_seqs=150), []
    plain = engine._tokens_before_first_output
    monkeypatch.setattr(
        engine, "_tokens_before_first_output", lambda request: asked.append(request) or plain(request)
    )
    requests = [engine.submit([1, 2, 3], Fan(1, 5, 1)) for _ in range(200)]
    engine.step()
    assert len(engine.running_members) == 150
    assert asked == requests[:151]  # those who come, and the first for whom there is no place
