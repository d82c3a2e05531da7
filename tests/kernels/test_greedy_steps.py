import copy

import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels
from tests.kernels.fused_step_helpers import build_model

from polyhead import Choice, ModelConfig, build
from polyhead.cache.factory import make_cache
from polyhead.generation.decoding.beam_search import beam_search, greedy_search
from polyhead.kernels.pack_model import linear_factory, pack_model

pytestmark = needs_kernels

OPTIONS = {"bos_id": 1, "eos_id": 2, "max_new_tokens": [20, 25, 9], "min_new_tokens": 4}
MODEL_NAMES = ["base", "gpt2", "llama", "bloom", "t5", "window"]
MODEL_NAMES += ["patterned", "nanochat", "crossing", "normless"]


def draw_source(model):
    torch.manual_seed(3)
    tokens, pos = torch.randint(5, 97, (3, 7)), torch.arange(7).repeat(3, 1)
    pos[1, 4:] = -1
    return tokens, pos if model.config.kind == "encoder-decoder" else None


def disable_greedy_kernel(model):
    other = copy.deepcopy(model)
    vars(other).pop("decode_greedy")
    return other


@pytest.mark.parametrize("cache", ["static", "paged"])
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_tokens_and_scores_are_those_of_single_steps(name, cache):
    model = pack_model(build_model(name))
    calls = []
    inner = model.decode_greedy
    model.decode_greedy = lambda *given: calls.append(inner(*given)) or calls[-1]
    actual = greedy_search(model, *draw_source(model), cache=Choice(cache), **OPTIONS)
    assert calls and all(call is not None for call in calls)
    other_model = disable_greedy_kernel(model)
    expected = greedy_search(other_model, *draw_source(model), cache=Choice(cache), **OPTIONS)
    for one, other in zip(actual, expected, strict=True):
        assert one.tokens == other.tokens
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-4)


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("name", ["base", "gpt2", "llama"])
def test_rounded_weights_give_the_tokens_of_single_steps(name, dtype):
    precision = torch.bfloat16 if dtype == "bf16" else torch.float32
    model = pack_model(build_model(name, precision), linear_factory(dtype))
    models = model, disable_greedy_kernel(model)
    actual, expected = (greedy_search(each, *draw_source(model), **OPTIONS) for each in models)
    assert [one.tokens for one in actual] == [one.tokens for one in expected]


@torch.inference_mode()
def test_log_probs_of_a_large_vocabulary_against_fp64():
    sizes = {"kind": "decoder", "d_model": 64, "n_heads": 2, "n_layers": 1, "d_ff": 64, "max_len": 32}
    model = build(ModelConfig.model_validate(sizes | {"vocab_size": 9001}), seed=1).eval()
    packed_model, exact = pack_model(copy.deepcopy(model)), copy.deepcopy(model).double()
    banned_ids = [int(packed_model(torch.tensor([[7, 8]]))[0, -1].argmax())]
    cache = make_cache(None, packed_model.cache_shape, 2, 32)
    for at, (tokens, n) in enumerate([([7, 7], 1), ([8, 9], 6)]):
        pos = torch.arange(at, at + n).expand(2, -1)
        cache.prepare_step([0, 1], pos)
        ids, log_probs = packed_model.decode_greedy(torch.tensor(tokens), pos, cache, None, banned_ids, [])
    for row, token in enumerate([8, 9]):
        text = [7, token]
        for one, log_prob in zip(ids[:, row].tolist(), log_probs[:, row].tolist(), strict=True):
            expected = exact(torch.tensor([text]))[0, -1].log_softmax(0)
            assert log_prob == pytest.approx(float(expected[one]), abs=1e-5)
            expected[banned_ids] = -torch.inf
            assert one == int(expected.argmax())
            text.append(one)


@torch.inference_mode()
def test_steps_end_at_the_first_eos():
    model = pack_model(build_model("llama"))
    pos = torch.arange(8).expand(2, -1)

    def decode(eos_ids):
        cache = make_cache(None, model.cache_shape, 2, 48)
        cache.prepare_step([0, 1], pos)
        return model.decode_greedy(torch.tensor([5, 11]), pos, cache, None, [], eos_ids)[0]

    all_steps = decode([])
    assert len(all_steps) == 8
    end = int(all_steps[3, 1])
    first = int((all_steps == end).any(1).nonzero()[0])
    assert torch.equal(decode([end]), all_steps[: first + 1])


@torch.inference_mode()
def test_rows_do_not_depend_on_the_batch():
    model = pack_model(build_model("base"))
    tokens, pos = torch.randint(5, 97, (9, 7), generator=torch.Generator().manual_seed(4)), None
    options = OPTIONS | {"max_new_tokens": [12] * 9}
    batch_output = greedy_search(model, tokens, pos, **options)
    options["max_new_tokens"] = [12]
    single_outputs = [greedy_search(model, row[None], None, **options)[0] for row in tokens]
    assert batch_output == single_outputs


def test_infinite_logits_are_left_to_single_steps():
    model = build_model("gpt2")
    with torch.no_grad():
        model.head.weight[50] = torch.inf
    packed_model = pack_model(model)
    pos = torch.arange(4)[None]
    cache = make_cache(None, packed_model.cache_shape, 1, 48)
    cache.prepare_step([0], pos)
    with torch.inference_mode():
        assert packed_model.decode_greedy(torch.tensor([5]), pos, cache, None, [], []) is None


@pytest.mark.parametrize("name", ["base", "gpt2", "crossing"])
def test_beams_without_reordering_are_the_same(name, monkeypatch):
    from polyhead.cache.contiguous import StaticCache

    model, in_place, inner = pack_model(build_model(name)), [], StaticCache._select_in_place
    monkeypatch.setattr(
        StaticCache, "_select_in_place", lambda *given: in_place.append(inner(*given)) or in_place[-1]
    )
    options = OPTIONS | {"min_new_tokens": 1, "beam_size": 4, "n_best": 3, "cache": Choice("static", chunk=8)}
    actual = beam_search(model, *draw_source(model), **options)
    assert sum(in_place) > 5
    monkeypatch.setattr(StaticCache, "_select_in_place", lambda *given: False)
    assert beam_search(model, *draw_source(model), **options) == actual
