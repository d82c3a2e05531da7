"""Greedy tokens chosen inside the kernels, against single steps and against double precision."""

import copy

import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels
from tests.kernels.fused_step_helpers import made

from polyhead.cache.factory import make_cache
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.generation.decoding.greedy import greedy_search
from polyhead.kernels.pack_model import linear_factory, pack_model
from polyhead.models import build

pytestmark = needs_kernels

OPTIONS = {"bos_id": 1, "eos_id": 2, "max_new_tokens": [20, 25, 9], "min_new_tokens": 4}
COMPILED = ["base", "gpt2", "llama", "bloom", "t5", "window", "patterned", "nanochat", "crossing", "normless"]


def sources(model):
    torch.manual_seed(3)
    tokens, pos = torch.randint(5, 97, (3, 7)), torch.arange(7).repeat(3, 1)
    pos[1, 4:] = -1
    return tokens, pos if model.config.kind == "encoder-decoder" else None


def without_calls(model):
    """The same model, one step at a time."""
    other = copy.deepcopy(model)
    vars(other).pop("decode_greedy")
    return other


@pytest.mark.parametrize("cache", ["static", "paged"])
@pytest.mark.parametrize("name", COMPILED)
def test_tokens_and_scores_are_those_of_single_steps(name, cache):
    model = pack_model(made(name))
    calls = []
    inner = model.decode_greedy
    model.decode_greedy = lambda *given: calls.append(inner(*given)) or calls[-1]
    found = greedy_search(model, *sources(model), cache=Choice(cache), **OPTIONS)
    assert calls and all(call is not None for call in calls)
    expected = greedy_search(without_calls(model), *sources(model), cache=Choice(cache), **OPTIONS)
    for one, other in zip(found, expected, strict=True):
        assert one.tokens == other.tokens
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-4)


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("name", ["base", "gpt2", "llama"])
def test_rounded_weights_give_the_tokens_of_single_steps(name, dtype):
    precision = torch.bfloat16 if dtype == "bf16" else torch.float32
    model = pack_model(made(name, precision), linear_factory(dtype))
    found, expected = (
        greedy_search(each, *sources(model), **OPTIONS) for each in (model, without_calls(model))
    )
    assert [one.tokens for one in found] == [one.tokens for one in expected]


@torch.inference_mode()
def test_log_probabilities_of_a_large_vocabulary_are_those_of_double_precision():
    sizes = {"kind": "decoder", "d_model": 64, "n_heads": 2, "n_layers": 1, "d_ff": 64, "max_len": 32}
    model = build(ModelConfig.model_validate(sizes | {"vocab_size": 9001}), seed=1).eval()
    packed, exact = pack_model(copy.deepcopy(model)), copy.deepcopy(model).double()
    banned = [int(packed(torch.tensor([[7, 8]]))[0, -1].argmax())]
    cache = make_cache(None, packed.cache_shape, 2, 32)
    for at, (tokens, n) in enumerate([([7, 7], 1), ([8, 9], 6)]):
        pos = torch.arange(at, at + n).expand(2, -1)
        cache.prepare_step([0, 1], pos)
        ids, log_probs = packed.decode_greedy(torch.tensor(tokens), pos, cache, None, banned, [])
    for row, token in enumerate([8, 9]):
        text = [7, token]
        for one, log_prob in zip(ids[:, row].tolist(), log_probs[:, row].tolist(), strict=True):
            expected = exact(torch.tensor([text]))[0, -1].log_softmax(0)
            assert log_prob == pytest.approx(float(expected[one]), abs=1e-5)
            expected[banned] = -torch.inf
            assert one == int(expected.argmax())
            text.append(one)


@torch.inference_mode()
def test_steps_end_with_the_first_end_token_of_any_row():
    model = pack_model(made("llama"))
    pos = torch.arange(8).expand(2, -1)

    def decode(ends):
        cache = make_cache(None, model.cache_shape, 2, 48)
        cache.prepare_step([0, 1], pos)
        return model.decode_greedy(torch.tensor([5, 11]), pos, cache, None, [], ends)[0]

    whole = decode([])
    assert len(whole) == 8
    end = int(whole[3, 1])
    first = int((whole == end).any(1).nonzero()[0])
    assert torch.equal(decode([end]), whole[: first + 1])


@torch.inference_mode()
def test_a_row_does_not_depend_on_the_others_to_the_last_bit():
    model = pack_model(made("base"))
    tokens, pos = torch.randint(5, 97, (9, 7), generator=torch.Generator().manual_seed(4)), None
    options = OPTIONS | {"max_new_tokens": [12] * 9}
    together = greedy_search(model, tokens, pos, **options)
    options["max_new_tokens"] = [12]
    alone = [greedy_search(model, row[None], None, **options)[0] for row in tokens]
    assert together == alone


def test_infinite_logits_are_left_to_single_steps():
    model = made("gpt2")
    with torch.no_grad():
        model.head.weight[50] = torch.inf
    packed = pack_model(model)
    pos = torch.arange(4)[None]
    cache = make_cache(None, packed.cache_shape, 1, 48)
    cache.prepare_step([0], pos)
    with torch.inference_mode():
        assert packed.decode_greedy(torch.tensor([5]), pos, cache, None, [], []) is None


@pytest.mark.parametrize("name", ["base", "gpt2", "crossing"])
def test_beams_that_are_not_moved_give_what_moved_ones_give(name, monkeypatch):
    from polyhead.cache.static import StaticCache

    model, selected, inner = pack_model(made(name)), [], StaticCache._select_in_place
    monkeypatch.setattr(
        StaticCache, "_select_in_place", lambda *given: selected.append(inner(*given)) or selected[-1]
    )
    options = OPTIONS | {"min_new_tokens": 1, "beam_size": 4, "n_best": 3, "cache": Choice("static", chunk=8)}
    found = beam_search(model, *sources(model), **options)
    assert sum(selected) > 5
    monkeypatch.setattr(StaticCache, "_select_in_place", lambda *given: False)
    assert beam_search(model, *sources(model), **options) == found
