"""A step in one call of the kernels, against the plain model that knows nothing of them."""

import copy

import pytest
import torch

from polyhead.cache.factory import make_cache
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.kernels import fused_step as steps
from polyhead.kernels.build_extension import load_kernels
from polyhead.kernels.fused_step import PackedStack
from polyhead.kernels.pack_model import linear_factory, pack_model
from polyhead.models import build

pytestmark = pytest.mark.skipif(load_kernels() is None, reason="no compiler for the kernels")

SIZES = {
    "d_model": 128,
    "n_heads": 4,
    "n_layers": 2,
    "vocab_size": 97,
    "max_len": 48,
    "d_ff": 200,
    "kind": "decoder",
}
GROUPS = {"n_kv_heads": 2, "norm": "rmsnorm", "norm_first": True}
MODELS = {
    "base": {"kind": "encoder-decoder"},
    "gpt2": {"position": "learned", "norm_first": True, "feed_forward": {"name": "gelu", "tanh": True}},
    "arcee": {**GROUPS, "position": "rope", "norm": "rmsnorm", "feed_forward": "relu2"},
    "nanochat": {
        **GROUPS, "position": "rope", "norm": {"name": "rmsnorm", "weight": False}, "embedding_norm": True, "feed_forward": "relu2",
        "attention": {"name": "softmax", "qk_norm": "unweighted"},
    },
    "llama": {**GROUPS, "position": "rope", "feed_forward": "swiglu"},
    "qwen3": {**GROUPS, "position": "rope", "attention": {"name": "softmax", "qk_norm": True, "bias": False}, "feed_forward": "glu"},
    "window": {"position": "rope", "attention": {"name": "softmax", "window": 3, "sink": 1, "scale": 0.3}, "feed_forward": "silu"},
    "patterned": {
        **GROUPS,
        "position": "rope",
        "pattern": [{"attention": {"name": "softmax", "window": 3}}, {"position": {"name": "rope", "theta": 100.0}}],
        "feed_forward": "geglu",
    },
    "one key": {"n_kv_heads": 1, "position": {"name": "rope", "scaling": "yarn", "factor": 4.0, "original_len": 12}},
    "bloom": {"position": "alibi", "norm_first": True, "embedding_norm": True, "feed_forward": {"name": "gelu", "tanh": True}},
    "t5": {**GROUPS, "kind": "encoder-decoder", "position": "t5", "feed_forward": "relu", "attention": {"name": "softmax", "scale": 1.0, "bias": False}},
    "gemma2": {
        **GROUPS, "position": "rope", "sandwich_norm": True, "feed_forward": {"name": "geglu", "tanh": True},
        "pattern": [{"attention": {"name": "softmax", "window": 3, "softcap": 2.0, "scale": 1.0}}, {"attention": {"name": "softmax", "softcap": 0.5, "scale": 1.0}}],
    },
    "gptj": {"position": {"name": "rope", "layout": "interleaved"}, "norm_first": True,
             "block": {"name": "parallel", "one_norm": True}, "feed_forward": "gelu", "head_bias": True},
    "neox": {"position": {"name": "rope", "fraction": 0.5, "layout": "interleaved"}, "norm_first": True, "block": "parallel", "feed_forward": "gelu"},
    "sandwich": {"norm": {"name": "rmsnorm", "zero_centered": True, "eps": 0.1}, "norm_first": True, "sandwich_norm": True, "feed_forward": "tanh"},
    "olmo2": {
        **GROUPS, "position": "rope", "sandwich_norm": "after", "feed_forward": "swiglu",
        "attention": {"name": "softmax", "qk_norm": "all_heads", "bias": False},
    },
    "gemma3": {
        **GROUPS, "position": "rope", "norm": {"name": "rmsnorm", "zero_centered": True}, "sandwich_norm": True,
        "feed_forward": {"name": "geglu", "tanh": True}, "attention": {"name": "softmax", "qk_norm": "zero_centered", "scale": 0.2},
        "pattern": [{}, {"attention": {"name": "softmax", "qk_norm": "zero_centered", "window": 3, "scale": 0.2}, "position": {"name": "rope", "theta": 100.0}}],
    },
    "smollm3": {**GROUPS, "position": "rope", "feed_forward": "swiglu", "pattern": [{}, {"position": "none"}]},
    "normless": {"norm": "none", "feed_forward": "leaky_relu", "position": "none"},
    "learned slope": {"norm": {"name": "layernorm", "bias": False, "eps": 0.1}, "feed_forward": {"name": "prelu", "slope": 0.4, "bias": False}},
    "crossing": {**GROUPS, "kind": "encoder-decoder", "position": "rope", "feed_forward": "reglu", "embedding_norm": "first"},
    "looking": {"kind": "encoder-decoder", "cross_attention": {"name": "softmax", "qk_norm": True, "scale": 0.2}},
}  # fmt: skip

ENCODERS = {
    "modern": {
        "kind": "encoder", "position": "rope", "norm_first": True, "feed_forward": "geglu",
        "pattern": [{}, {"attention": {"name": "softmax", "window": 3}}],
    },
    "t5's": {"kind": "encoder", "position": "t5", "norm_first": True},
    "bert": {"kind": "encoder", "position": "learned", "feed_forward": "gelu", "embedding_norm": True, "segments": 2},
}  # fmt: skip


def made(name, dtype=torch.float32):
    """A model whose biases and factors are not 0 and 1."""
    model = build(ModelConfig.model_validate(SIZES | (MODELS | ENCODERS)[name]), seed=1).eval()
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model.to(dtype)


@torch.inference_mode()
def decoded(model, cache="static", rows=3, beams=1):
    """Logits of 7 tokens: four one by one, then three at once."""
    torch.manual_seed(3)
    tokens, source = torch.randint(5, 97, (rows * beams, 7)), torch.randint(5, 97, (rows, 6))
    held, memory = make_cache(Choice(cache), model.cache_shape, rows * beams, 48), None
    if model.config.kind == "encoder-decoder":
        source_pos = torch.arange(6).repeat(rows, 1)
        source_pos[-1, 4:] = -1
        memory = [kv.contiguous_for_decoding() for kv in model.encode(source, source_pos)]
    found = []
    for part in [slice(0, 1), slice(1, 2), slice(2, 3), slice(3, 4), slice(4, 7)]:
        pos = torch.arange(7).repeat(rows * beams, 1)[:, part]
        held.prepare_step(range(rows * beams), pos)
        found.append(model.decode(tokens[:, part], pos, held, memory))
    return torch.cat(found, 1).float()


@pytest.fixture
def calls(monkeypatch):
    """Whether each step was one call."""
    seen, inner = [], steps.FusedSteps.__call__

    def counted(*given):
        out = inner(*given)
        seen.append(out is not None)
        return out

    monkeypatch.setattr(steps.FusedSteps, "__call__", counted)
    return seen


@pytest.mark.parametrize("cache", ["static", "paged"])
@pytest.mark.parametrize("name", MODELS)
def test_steps_give_the_logits_of_the_plain_model(name, cache, calls):
    plain = made(name)
    wanted = decoded(plain, cache)
    rounding = 2e-6 * max(10, float(wanted.abs().max()))  # without norms they are large
    torch.testing.assert_close(
        decoded(pack_model(copy.deepcopy(plain)), cache), wanted, atol=rounding, rtol=1e-5
    )
    assert calls == [True] * (6 if plain.config.kind == "encoder-decoder" else 5)  # the source is read, too


@pytest.mark.parametrize(("dtype", "most"), [("bf16", 0.1), ("int8", 0.1), ("int4", 1)])
@pytest.mark.parametrize(
    "name", ["base", "llama", "bloom", "t5", "gemma2", "neox", "sandwich", "olmo2", "gemma3"]
)
def test_what_is_rounded_is_as_near_as_layer_by_layer(name, dtype, most, calls, monkeypatch):
    exact = decoded(made(name))
    model = pack_model(made(name, torch.bfloat16), linear_factory(dtype))
    off = (decoded(model) - exact).square().mean().sqrt()
    assert len(calls) >= 5 and all(calls)
    monkeypatch.setattr(steps.FusedSteps, "__call__", lambda *given: None)
    by_layers = (decoded(model) - exact).square().mean().sqrt()
    assert 0 < off < 1.1 * by_layers < most * exact.std()


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_whole_numbers_beside_fp32_are_those_of_the_layers(dtype, monkeypatch):
    model = pack_model(made("llama"), linear_factory(dtype))
    found = decoded(model)
    monkeypatch.setattr(steps.FusedSteps, "__call__", lambda *given: None)
    wanted = decoded(model)
    assert (
        found - wanted
    ).square().mean().sqrt() < 2e-3 * wanted.std()  # a number between two whole ones may go to either


@pytest.mark.parametrize("cache", ["static", "paged"])
def test_beams_share_a_source(cache, calls):
    plain = made("base")
    wanted = decoded(plain, cache, rows=2, beams=3)
    torch.testing.assert_close(
        decoded(pack_model(plain), cache, rows=2, beams=3), wanted, atol=2e-5, rtol=1e-5
    )
    assert all(calls)


@pytest.mark.parametrize("cache", ["static", "paged"])
def test_some_rows_of_a_cache_step_by_themselves(cache):
    plain = made("llama")
    found = []
    for model in (plain, pack_model(copy.deepcopy(plain))):
        held = make_cache(Choice(cache), model.cache_shape, 4, 48)
        with torch.inference_mode():
            for rows, at in (([0, 1, 2, 3], [0, 0, 0, 0]), ([2], [1]), ([3, 0], [1, 1]), ([2, 1], [2, 1])):
                pos = torch.tensor(at)[:, None]
                held.prepare_step(rows, pos)
                found.append(model.decode(torch.tensor([[7 + row] for row in rows]), pos, held))
            held.select([3, 3, 2])
            held.prepare_step([0, 1, 2], pos := torch.tensor([[2], [2], [3]]))
            found.append(model.decode(torch.tensor([[5], [6], [7]]), pos, held))
    for one, other in zip(found[:5], found[5:], strict=True):
        torch.testing.assert_close(other, one, atol=2e-5, rtol=1e-5)


def test_a_row_is_the_same_to_the_last_bit_whoever_steps_beside_it():
    model = pack_model(made("llama"))
    torch.manual_seed(3)
    tokens = torch.randint(5, 97, (20, 4))

    def said(rows):
        cache = make_cache(Choice("static"), model.cache_shape, len(rows), 48)
        with torch.inference_mode():
            for t in range(4):
                pos = torch.full((len(rows), 1), t)
                cache.prepare_step(range(len(rows)), pos)
                out = model.decode(tokens[rows, t : t + 1], pos, cache)
        return out

    together = said(list(range(20)))
    assert torch.equal(said([4]), together[4:5]) and torch.equal(said([9, 2, 7]), together[[9, 2, 7]])


@pytest.mark.parametrize("cache", ["growing", "h2o", "window"])
def test_other_caches_are_led_through_the_layers(cache, calls):
    options = {"h2o": {"budget": 40}, "window": {"window": 40}}.get(cache, {})
    model = made("gpt2")
    held = [make_cache(Choice(cache, **options), model.cache_shape, 2, 48) for _ in range(2)]
    pos, tokens = torch.zeros(2, 1, dtype=torch.int64), torch.tensor([[5], [6]])
    with torch.inference_mode():
        for one in held:
            one.prepare_step([0, 1], pos)
        wanted = model.decode(tokens, pos, held[0])
        torch.testing.assert_close(
            pack_model(model).decode(tokens, pos, held[1]), wanted, atol=2e-5, rtol=1e-5
        )
    assert calls == [False]


@pytest.mark.parametrize(
    "changes",
    [
        {"position": "shaw"},
        {"position": "disentangled"},
        {"attention": {"name": "softmax", "tie": "kv"}},
        {"attention": "linear"},
        {"n_layers": 4, "pattern": [{"attention": "linear"}, {}, {"block": "gru"}]},
        {"block": "conv"},
        {"feed_forward": "experts"},
        {"feed_forward": "conv1x1"},
        {"norm": "batchnorm"},
        {"block": "parallel", "norm_first": True, "norm": "none"},
        {"scale_residual": 0.5},
    ],
    ids=str,
)
def test_a_part_without_operations_leaves_the_stack_as_it_is(changes):
    model = build(ModelConfig.model_validate(SIZES | changes), seed=1).eval()
    tokens = torch.randint(5, 97, (2, 6))
    with torch.inference_mode():
        wanted = model(tokens)
        assert type(pack_model(model).stack).__name__ == "Stack" and not isinstance(model.stack, PackedStack)
        torch.testing.assert_close(model(tokens), wanted, atol=2e-5, rtol=1e-5)


def test_who_looks_at_weights_is_shown_them(calls):
    model, seen = pack_model(made("gpt2")), []
    model.stack.layers[1].attn.weights_hooks.append(seen.append)
    decoded(model)
    assert calls == [False] * 5 and [weights.shape[2:] for weights in seen[:2]] == [(1, 33), (1, 33)]


@pytest.mark.parametrize("name", ["llama", "bloom", "gemma2"])
def test_padding_and_what_is_too_large_for_the_kernels_go_through_the_layers(name, calls):
    plain = made(name)
    model, tokens = pack_model(copy.deepcopy(plain)), torch.randint(5, 97, (2, 3))
    padded, whole = torch.tensor([[0, 1, 2], [0, 1, -1]]), torch.arange(3).repeat(2, 1)
    for pos, limits in (
        (padded, {}),
        (whole, {"MAX_SCORES": 8}),
        (whole, {"MAX_BUFFER_FLOATS": 999}),
        (whole, {}),
    ):
        found = []
        with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
            for limit, value in limits.items():
                patch.setattr(steps, limit, value)
            for one in (plain, model):
                cache = make_cache(Choice("static"), plain.cache_shape, 2, 48)
                cache.prepare_step([0, 1], pos)
                found.append(one.decode(tokens, pos, cache)[pos >= 0])
        torch.testing.assert_close(found[1], found[0], atol=2e-5, rtol=1e-5)
    assert calls == [False, False, False, True]


def test_pages_that_got_what_is_not_finite_are_known():
    model = pack_model(made("gpt2"))
    with torch.no_grad():
        model.embedding.token.weight[9] = float("nan")
    cache = make_cache(Choice("paged", block_size=2), model.cache_shape, 2, 48)
    with torch.inference_mode():
        cache.prepare_step([0, 1], pos := torch.arange(2).repeat(2, 1))
        out = model.decode(torch.tensor([[5, 6], [5, 9]]), pos, cache)[:, 1]
        assert out[0].isfinite().all() and out[1].isnan().all()
        cache.release(1)
        cache.prepare_step(
            [1], pos[:1, :1]
        )  # the page of the other goes to a new row, which writes half of it
        assert model.decode(torch.tensor([[5]]), pos[:1, :1], cache).isfinite().all()


def test_two_threads_say_what_one_says():
    model, threads = pack_model(made("base")), torch.get_num_threads()
    try:
        found = []
        for n in (1, 2):
            torch.set_num_threads(n)
            found.append(decoded(model))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "patterned", "bloom", "gemma2", "neox", "sandwich", *ENCODERS]
)
def test_rows_that_keep_nothing_are_one_call_too(name, calls):
    """Encoders, and language models that are shown whole texts, with padding and with several documents in a row."""
    model = made(name)
    tokens, rows = torch.randint(5, 97, (3, 9)), torch.arange(9).repeat(3, 1)
    padded, several = rows.clone(), rows.clone()
    padded[1, 5:], padded[2, :4] = -1, -1
    several[0, 4:] -= 4
    parts = [
        one if hasattr(one, "stack") else one.encoder for one in (model, pack_model(copy.deepcopy(model)))
    ]
    with torch.inference_mode():
        for pos in (None, padded, several):
            wanted, found = (part.stack(part.embedding(tokens, pos), pos) for part in parts)
            there = slice(None) if pos is None else pos >= 0
            torch.testing.assert_close(found[there], wanted[there], atol=2e-5, rtol=1e-5)
    assert calls == [True] * 3
