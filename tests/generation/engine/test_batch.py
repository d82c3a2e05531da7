import numpy as np
import pytest
import torch
from tests.generation.engine.engine_helpers import (
    BOS,
    EOS,
    MAX_LEN,
    PAGED_CACHE,
    V,
    make,
    outputs,
    run_alone,
    sample,
    search,
)

from polyhead.core.choice import Choice
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.engine import Engine

LOSSY_CACHES = [Choice("h2o", budget=48), Choice("subgen", budget=48)]
LOSSY_CACHES += [Choice("subgen", budget=48, values="sampled"), Choice("quantized", bits=4, group=4)]


def test_sources_of_finished_requests_are_dropped():
    model = make("encoder-decoder")
    engine = Engine(model, max_len=MAX_LEN)
    long, short = sample(engine, [BOS], 2, source=[5] * 30), sample(engine, [BOS], 9, source=[5] * 3)
    long.result()
    sample(engine, [BOS], 2, source=[6] * 4)
    engine.step()
    assert [memory.k.size(2) for memory in engine.batches[0].memory] == [4, 4]
    assert outputs(short) == run_alone(model, lambda engine: sample(engine, [BOS], 9, source=[5] * 3))


@torch.no_grad()
def first_log_probs(model, prompt, source=None):
    inputs = [torch.tensor([ids]) for ids in (source, prompt) if ids is not None]
    return model(*inputs)[0, -1].log_softmax(-1)


@pytest.mark.parametrize("cache", LOSSY_CACHES, ids=str)
def test_first_token_equals_that_of_the_full_cache(cache):
    model, rng = make(max_len=256), np.random.default_rng(0)
    prompts = [rng.integers(3, V, rng.integers(50, 120)).tolist() for _ in range(6)]
    engine = Engine(model, max_len=256, cache=cache, prefill_chunk=200)
    requests = [sample(engine, prompt, 2) for prompt in prompts]
    first_tokens = [outputs(request)[0][0] for request in requests]
    assert first_tokens == [int(first_log_probs(model, prompt).argmax()) for prompt in prompts]


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("cache", [PAGED_CACHE, Choice("h2o", budget=5, recent=2, sink=1)], ids=str)
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_samples_and_beams_start_after_the_full_prompt(kind, cache, length):
    model, rng = make(kind), np.random.default_rng(length)
    prompt, long = rng.integers(3, V, length).tolist(), rng.integers(3, V, 14).tolist()
    source = None if kind == "decoder" else [5, 6, 7, EOS]
    engine = Engine(model, max_len=MAX_LEN, cache=cache)
    samples = sample(engine, prompt, 4, Sampling(), n=3, seed=5, source=source)
    beams = search(engine, prompt, 1, 3, n_best=3, source=source)
    other, expected = sample(engine, long, 4, source=source), first_log_probs(model, prompt, source)
    first_events = list(samples)[:3]
    assert [event.row for event in first_events] == [0, 1, 2]
    for event in first_events:
        assert event.log_prob == pytest.approx(float(expected[event.id]), abs=1e-4)
    assert len({event.id for event in first_events}) > 1 or length == 1
    log_probs = [hypothesis.log_prob for hypothesis in beams.result()]
    assert log_probs == pytest.approx(expected.topk(3).values.tolist(), abs=1e-4)
    assert next(iter(other)).id == int(first_log_probs(model, long, source).argmax())


@pytest.fixture
def counting_model(monkeypatch):
    model, counts = make(), []
    decode_features = model.decode_features

    def counting(tokens, pos, *rest):
        counts.append(int((pos >= 0).sum()))
        return decode_features(tokens, pos, *rest)

    monkeypatch.setattr(model, "decode_features", counting)
    return model, counts


@pytest.mark.parametrize(("length", "chunk", "passes"), [(1, 100, 6), (2, 100, 6), (30, 100, 6), (30, 8, 9)])
def test_last_prompt_chunk_gives_the_first_token(counting_model, length, chunk, passes):
    model, counts = counting_model
    engine = Engine(model, max_len=MAX_LEN, cache=PAGED_CACHE, prefill_chunk=chunk)
    outputs(sample(engine, ([5, 6, 7] * 10)[:length], 6))
    assert len(counts) == passes and sum(counts) == length + 5


@pytest.mark.acceptance("D3")
@pytest.mark.parametrize("length", [1, 4, 5, 6, 8, 9, 10])
def test_last_block_of_a_cached_prompt_is_recomputed(counting_model, length):
    """Pages of 4: of 8 cached tokens 4 are read, of 9 the last one; outputs are cached as well."""
    model, counts = counting_model
    prompt, options = list(range(3, 3 + length)), {"sampling": Sampling(), "n": 2, "seed": 1}
    expected = run_alone(model, lambda engine: sample(engine, prompt, 6, **options))
    engine = Engine(model, max_len=MAX_LEN, cache=PAGED_CACHE)
    for times in range(3):
        counts.clear()
        request = sample(engine, prompt, 6, **options)
        assert outputs(request) == expected
        n_cached = (length - 1) // 4 * 4 if times else 0
        assert (request.num_cached_tokens or 0) == n_cached
        assert sum(counts) == length - n_cached + 2 * 5 and len(counts) == 6
    longer = [*prompt, *expected[0][:5], 3]
    counts.clear()
    tokens = outputs(sample(engine, longer, 4))
    assert sum(counts) == len(longer) - (length + 5) // 4 * 4 + 3
    assert tokens == run_alone(model, lambda engine: sample(engine, longer, 4))
