import copy

import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels
from tests.kernels.fused_step_helpers import MODELS, assert_logits_close, build_model, decode_logits
from tests.kernels.fused_step_helpers import fused_calls as fused_calls

from polyhead.cache.factory import make_cache
from polyhead.core.choice import Choice
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.kernels import fused_step as steps
from polyhead.kernels.pack_model import linear_factory, pack_model

pytestmark = needs_kernels


@pytest.mark.parametrize("lengths", [(4, 0), (0, 4), (1, 6, 3), (2, 0, 0, 9), (5, 5, 1)])
def test_beams_after_prefixes_of_unequal_lengths(lengths):
    """Requests leave their prefixes at different steps, so some steps have the only row of one of them."""
    model, source = build_model("base"), torch.arange(5, 5 + 7 * len(lengths)).view(len(lengths), 7)
    options = {"bos_id": 1, "eos_id": 2, "beam_size": 3, "max_new_tokens": [14] * len(lengths)}
    options["prefix"] = [[*range(9, 9 + length)] for length in lengths]
    expected = beam_search(model, source, None, **options)
    actual = beam_search(pack_model(model), source, None, **options)
    assert [[h.tokens for h in best] for best in actual] == [[h.tokens for h in best] for best in expected]


@pytest.mark.parametrize("cache", ["static", "paged"])
@pytest.mark.parametrize("name", MODELS)
def test_steps_give_the_logits_of_the_plain_model(name, cache, fused_calls):
    plain = build_model(name)
    expected = decode_logits(plain, cache)
    rounding = 2e-6 * max(10, float(expected.abs().max()))  # logits are large without norms
    assert_logits_close(decode_logits(pack_model(copy.deepcopy(plain)), cache), expected, rounding)
    num_calls = 6 if plain.config.kind == "encoder-decoder" else 5  # one of them encodes the source
    assert fused_calls == [True] * num_calls
    if name == "base":  # beams share a source
        expected = decode_logits(plain, cache, rows=2, beams=3)
        assert_logits_close(decode_logits(pack_model(plain), cache, rows=2, beams=3), expected)
        assert all(fused_calls)


@pytest.mark.parametrize(("dtype", "max_error"), [("bf16", 0.1), ("int8", 0.1), ("int4", 1)])
@pytest.mark.parametrize(
    "name", ["base", "llama", "bloom", "t5", "gemma2", "neox", "sandwich", "olmo2", "gemma3"]
)
def test_rounding_error_is_that_of_the_layers(name, dtype, max_error, fused_calls, monkeypatch):
    exact = decode_logits(build_model(name))
    model = pack_model(build_model(name, torch.bfloat16), linear_factory(dtype))
    error = (decode_logits(model) - exact).square().mean().sqrt()
    assert len(fused_calls) >= 5 and all(fused_calls)
    monkeypatch.setattr(steps.FusedSteps, "__call__", lambda *given: None)
    layers_error = (decode_logits(model) - exact).square().mean().sqrt()
    assert 0 < error < 1.1 * layers_error < max_error * exact.std()


@pytest.mark.parametrize("cache", ["static", "paged"])
def test_steps_of_some_cache_rows(cache):
    plain = build_model("llama")
    actual = []
    for model in (plain, pack_model(copy.deepcopy(plain))):
        kv_cache = make_cache(Choice(cache), model.cache_shape, 4, 48)
        with torch.inference_mode():
            for rows, at in (([0, 1, 2, 3], [0, 0, 0, 0]), ([2], [1]), ([3, 0], [1, 1]), ([2, 1], [2, 1])):
                pos = torch.tensor(at)[:, None]
                kv_cache.prepare_step(rows, pos)
                actual.append(model.decode(torch.tensor([[7 + row] for row in rows]), pos, kv_cache))
            kv_cache.select([3, 3, 2])
            kv_cache.prepare_step([0, 1, 2], pos := torch.tensor([[2], [2], [3]]))
            actual.append(model.decode(torch.tensor([[5], [6], [7]]), pos, kv_cache))
    for one, other in zip(actual[:5], actual[5:], strict=True):
        assert_logits_close(other, one)


@pytest.mark.parametrize("cache", ["growing", "h2o", "window"])
def test_other_caches_use_the_layers(cache, fused_calls):
    options = {"h2o": {"budget": 40}, "window": {"window": 40}}.get(cache, {})
    model = build_model("gpt2")
    caches = [make_cache(Choice(cache, **options), model.cache_shape, 2, 48) for _ in range(2)]
    pos, tokens = torch.zeros(2, 1, dtype=torch.int64), torch.tensor([[5], [6]])
    for one in caches:
        one.prepare_step([0, 1], pos)
    with torch.inference_mode():
        expected = model.decode(tokens, pos, caches[0])
        assert_logits_close(pack_model(model).decode(tokens, pos, caches[1]), expected)
    assert fused_calls == [False]


def test_attention_hooks_use_the_layers(fused_calls):
    model, weights_seen = pack_model(build_model("gpt2")), []
    model.stack.layers[1].attn.weights_hooks.append(weights_seen.append)
    decode_logits(model)
    assert fused_calls == [False] * 5
    assert [weights.shape[2:] for weights in weights_seen[:2]] == [(1, 33)] * 2


@pytest.mark.parametrize("name", ["llama", "bloom", "gemma2"])
def test_padding_and_large_buffers_use_the_layers(name, fused_calls):
    plain = build_model(name)
    model, tokens = pack_model(copy.deepcopy(plain)), torch.randint(5, 97, (2, 3))
    padded_pos, full_pos = torch.tensor([[0, 1, 2], [0, 1, -1]]), torch.arange(3).repeat(2, 1)
    all_limits = [{}, {"MAX_SCORES": 8}, {"MAX_BUFFER_FLOATS": 999}, {}]
    for pos, limits in zip((padded_pos, *[full_pos] * 3), all_limits, strict=True):
        actual = []
        with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
            for limit, value in limits.items():
                patch.setattr(steps, limit, value)
            for one in (plain, model):
                cache = make_cache(Choice("static"), plain.cache_shape, 2, 48)
                cache.prepare_step([0, 1], pos)
                actual.append(one.decode(tokens, pos, cache)[pos >= 0])
        assert_logits_close(actual[1], actual[0])
    assert fused_calls == [False, False, False, True]


def test_large_sources_use_the_layers(fused_calls, monkeypatch):
    """A kernel scores the 30 tokens of a source for its 3 beams at once."""
    model, logits = pack_model(build_model("base")), []
    memory = [kv.contiguous_for_decoding() for kv in model.encode(torch.randint(5, 97, (2, 30)))]
    for limit in (90, 89):
        monkeypatch.setattr(steps, "MAX_SCORES", limit)
        cache = make_cache(Choice("static"), model.cache_shape, 6, 8)
        cache.prepare_step(range(6), pos := torch.zeros(6, 1, dtype=torch.int64))
        with torch.inference_mode():
            logits.append(model.decode(torch.full((6, 1), 5), pos, cache, memory))
    assert fused_calls[1:] == [True, False]
    assert_logits_close(*logits)


def test_pages_with_nonfinite_values_are_cleared():
    model = pack_model(build_model("gpt2"))
    with torch.no_grad():
        model.embedding.token.weight[9] = float("nan")
    cache = make_cache(Choice("paged", block_size=2), model.cache_shape, 2, 48)
    with torch.inference_mode():
        cache.prepare_step([0, 1], pos := torch.arange(2).repeat(2, 1))
        out = model.decode(torch.tensor([[5, 6], [5, 9]]), pos, cache)[:, 1]
        assert out[0].isfinite().all() and out[1].isnan().all()
        cache.release(1)
        cache.prepare_step([1], pos[:1, :1])  # the released page goes to a new row, which writes half of it
        assert model.decode(torch.tensor([[5]]), pos[:1, :1], cache).isfinite().all()


def test_two_threads_give_the_same_logits():
    model, threads = pack_model(build_model("base")), torch.get_num_threads()
    expected = decode_logits(model)
    try:
        torch.set_num_threads(2)
        assert torch.equal(decode_logits(model), expected)
    finally:
        torch.set_num_threads(threads)
