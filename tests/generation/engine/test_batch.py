"""Tests of generation/engine/batch.py."""

import numpy as np
import pytest
import torch
from tests.generation.engine.test_engine import BOS, EOS, GREEDY, MAX_LEN, PAGED, V, make

from polyhead.core.choice import Choice
from polyhead.generation.decoding.beam_search import BeamRequest, BeamSearchStrategy, BeamState
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.engine import Engine

SMALL_CACHES = [
    Choice("h2o", budget=48),
    Choice("subgen", budget=48),
    Choice("subgen", budget=48, values="sampled"),
    Choice("quantized", bits=4, group=4),
]


def test_the_sources_of_those_who_left_take_no_room():
    model, rule = make("encoder-decoder"), SamplingStrategy(GREEDY, -1)
    engine = Engine(model, max_len=MAX_LEN)
    long = engine.submit([BOS], SampledSequences(rule, [BOS], 2), source=[5] * 30)
    short = engine.submit([BOS], SampledSequences(rule, [BOS], 9), source=[5] * 3)
    long.result()
    engine.submit([BOS], SampledSequences(rule, [BOS], 2), source=[6] * 4)
    engine.step()
    assert [memory.k.size(2) for memory in engine.batches[0].memory] == [4, 4]
    alone = Engine(model, max_len=MAX_LEN).submit([BOS], SampledSequences(rule, [BOS], 9), source=[5] * 3)
    assert [short.result()[0].tokens] == [h.tokens for h in alone.result()]


@torch.no_grad()
def first_log_probs(model, prompt, source=None):
    """Log-probabilities (V,) of the first new token, without a cache."""
    inputs = [torch.tensor([ids]) for ids in (source, prompt) if ids is not None]
    return model(*inputs)[0, -1].log_softmax(-1)


@pytest.mark.parametrize("cache", SMALL_CACHES, ids=str)
def test_the_first_token_is_that_of_the_full_cache_in_40_of_40_prompts(cache):
    """Whatever else is read: each prompt fits a chunk, and they come together."""
    model, rng = make(max_len=256), np.random.default_rng(0)
    prompts = [rng.integers(3, V, rng.integers(50, 200)).tolist() for _ in range(40)]
    engine = Engine(model, max_len=256, cache=cache, prefill_chunk=200)
    rule = SamplingStrategy(GREEDY, -1)
    requests = [engine.submit(prompt, SampledSequences(rule, prompt, 2)) for prompt in prompts]
    first = [request.result()[0].tokens[0] for request in requests]
    assert first == [int(first_log_probs(model, prompt).argmax()) for prompt in prompts]


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("cache", [PAGED, Choice("h2o", budget=5, recent=2, sink=1)], ids=str)
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_samples_and_beams_start_from_what_follows_the_whole_prompt(kind, cache, length):
    """Several answers to one prompt, beside a longer one, and of an encoder-decoder after a prefix."""
    model, rng = make(kind), np.random.default_rng(length)
    prompt, long = rng.integers(3, V, length).tolist(), rng.integers(3, V, 14).tolist()
    source = None if kind == "decoder" else [5, 6, 7, EOS]
    engine = Engine(model, max_len=MAX_LEN, cache=cache)
    warm = SamplingStrategy(Sampling(temperature=1.0), -1)
    drawn = engine.submit(prompt, SampledSequences(warm, prompt, 4, n=3, seed=5), source=source)
    beams = engine.submit(
        prompt, BeamState(BeamSearchStrategy(3, EOS, n_best=3), BeamRequest(1)), source=source
    )
    other = engine.submit(long, SampledSequences(SamplingStrategy(GREEDY, -1), long, 4), source=source)
    wanted = first_log_probs(model, prompt, source)
    firsts = list(drawn)[:3]
    assert [token.row for token in firsts] == [0, 1, 2]
    for token in firsts:
        assert token.log_prob == pytest.approx(float(wanted[token.id]), abs=1e-4)
    assert len({token.id for token in firsts}) > 1 or length == 1
    found = [hypothesis.log_prob for hypothesis in beams.result()]
    assert found == pytest.approx(wanted.topk(3).values.tolist(), abs=1e-4)
    assert next(iter(other)).id == int(first_log_probs(model, long, source).argmax())


@pytest.mark.parametrize(("length", "chunk", "passes"), [(1, 100, 6), (2, 100, 6), (30, 100, 6), (30, 8, 9)])
def test_the_last_chunk_of_a_prompt_gives_the_first_token(monkeypatch, length, chunk, passes):
    """Chunks, and one pass for each further token: none for the last token of the prompt."""
    model, prompt, read = make(), [5, 6, 7] * 10, []
    decode_features = model.decode_features
    monkeypatch.setattr(
        model,
        "decode_features",
        lambda *inputs: (read.append(inputs[0].size(1)), decode_features(*inputs))[1],
    )
    engine, prompt = Engine(model, max_len=MAX_LEN, cache=PAGED, prefill_chunk=chunk), prompt[:length]
    engine.submit(prompt, SampledSequences(SamplingStrategy(GREEDY, -1), prompt, 6)).result()
    assert len(read) == passes and sum(read) == length + 5


@pytest.mark.parametrize("length", [1, 4, 5, 6, 8, 9, 10])
def test_of_a_prompt_that_is_wholly_cached_the_end_is_read_again(monkeypatch, length):
    """Pages of 4: of 8 known tokens 4 are read, of 9 the last one."""
    model, prompt, read = make(), list(range(3, 3 + length)), []
    rule = SamplingStrategy(Sampling(temperature=1.0), -1)
    engine = Engine(model, max_len=MAX_LEN, cache=PAGED)
    wanted = (
        Engine(model, max_len=MAX_LEN).submit(prompt, SampledSequences(rule, prompt, 6, n=2, seed=1)).result()
    )
    decode_features = model.decode_features

    def counting(tokens, pos, *rest):
        read.append(int((pos >= 0).sum()))
        return decode_features(tokens, pos, *rest)

    monkeypatch.setattr(model, "decode_features", counting)
    for times in range(3):
        read.clear()
        request = engine.submit(prompt, SampledSequences(rule, prompt, 6, n=2, seed=1))
        assert [h.tokens for h in request.result()] == [h.tokens for h in wanted]
        cached = (length - 1) // 4 * 4 if times else 0
        assert (request.num_cached_tokens or 0) == cached
        assert sum(read) == length - cached + 2 * 5 and len(read) == 6
