"""A step in one call of the kernels, against the plain model that knows nothing of them."""

import copy

import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels
from tests.kernels.fused_step_helpers import MODELS, decoded, made
from tests.kernels.fused_step_helpers import calls as calls

from polyhead.cache.factory import make_cache
from polyhead.core.choice import Choice
from polyhead.kernels import fused_step as steps
from polyhead.kernels.pack_model import linear_factory, pack_model

pytestmark = needs_kernels

GROUPS = {"n_kv_heads": 2, "norm": "rmsnorm", "norm_first": True}


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
