from math import prod

import pytest
import torch
from tests.explain.levers.levers_helpers import make_lever_input, make_model
from tests.explain.levers.test_stepwise import decode_with_cache

from polyhead import Choice
from polyhead.cache.factory import make_cache
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.explain.levers.cache_policy import CACHE_LEVER, describe_bytes, mark_visible
from polyhead.explain.levers.comparison import compute_kl
from polyhead.explain.levers.stepwise import read_stepwise
from polyhead.explain.levers.table import compute_case


def compute_detail(lever_input, **cache):
    return compute_case(lever_input, "cache", {"cache": cache})["detail"]


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_every_case_matches_decoding_with_cache(kind):
    lever_input = make_lever_input(kind, length=16, position="rope", n_kv_heads=2)
    settings = CACHE_LEVER.list_cases(lever_input)
    names = [setting["cache"]["name"] for setting in settings]
    assert names == ["static", *["quantized"] * 2, *["window"] * 3, *["h2o"] * 2, "subgen", "low_rank"]
    for setting in [*settings, {"cache": {"name": "paged"}}, {"cache": {"name": "growing"}}]:
        output = CACHE_LEVER.compute(lever_input, setting)
        choice = Choice.from_config(setting["cache"])
        expected, cache = decode_with_cache(lever_input, choice, output.detail["prefill"])
        torch.testing.assert_close(output.logits, expected)
        assert output.detail["lossless"] == cache.lossless
        assert output.detail["bytes"] == cache.memory_usage().used_bytes
        if cache.name == "static":
            assert output.detail["bytes_static"] == output.detail["bytes"]
        kl = compute_kl(output.logits, lever_input.plain_logits)
        assert (kl.max() < 1e-7) == cache.lossless


def test_detail_lists_visible_positions_of_each_step():
    setting = {"cache": {"name": "window", "window": 2, "sink": 1}}
    case = compute_case(make_lever_input(length=5), "cache", setting)
    detail = case["detail"]
    assert detail["layers"] == [0, 1]
    assert detail["visible"] == [["1", "11", "111", "1011", "10011"]] * 2
    for name in ("key_error", "value_error"):
        assert detail[name] == [[0.0, None, None, 0.0, 0.0]] * 2
    assert 0 < detail["bytes"] < detail["bytes_static"]
    assert case["setting"] == setting
    # a position that some heads keep has its own mark
    assert mark_visible(torch.tensor([[True, False, True], [True, False, False]])) == "10+"


def test_quantized_cache_lists_first_terms_of_errors():
    lever_input = make_lever_input()
    cache = {"name": "quantized", "bits": 4, "group": 2}
    detail = compute_detail(lever_input, **cache)
    record = read_stepwise(lever_input, Choice.from_config(cache)).layers[1]
    for name, errors in zip(("key", "value"), record.measure_errors(), strict=True):
        terms = torch.tensor(detail[f"{name}_terms"][1])
        torch.testing.assert_close(terms, errors[:2].T, rtol=6e-3, atol=0)
        torch.testing.assert_close(torch.tensor(detail[f"{name}_error"][1]), errors.mean(0))
    assert "key_terms" not in compute_detail(lever_input, name="static")


def test_merging_cache_has_no_errors_by_position():
    detail = compute_detail(make_lever_input(length=12), name="subgen", budget=4)
    assert detail["merged"]
    assert detail["key_error"] == [[None] * 12] * 2
    settings = CACHE_LEVER.list_cases(make_lever_input(length=16, position="alibi"))
    # merged tokens have no distance
    assert "subgen" not in [setting["cache"]["name"] for setting in settings]
    # models without keys have no cache
    assert "no decoder" in CACHE_LEVER.find_obstacle(make_lever_input("encoder"))
    state = make_lever_input(attention="linear", position="none")
    assert "keeps a state" in CACHE_LEVER.find_obstacle(state)


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        ({"name": "windo"}, "windo"),
        ({"name": "window", "windows": 2}, "windows"),
        (3, "is not a component"),
        ({"name": "h2o", "budget": 0}, "budget of 0"),
        ({"name": "low_rank", "rank": 12}, "rank is 12, but the text has 9 tokens"),
        ({"name": "low_rank", "rank": 2, "projection": "x.safetensors"}, "'projection' names a file"),
        ({"name": "quantized", "group": 10**9}, "'group' must be at most 4096, got 1000000000"),
        ({"name": "os:system"}, "unknown cache of lever 'cache' 'os:system'"),
    ],
)
def test_invalid_cache_is_an_error(cache, message):
    with pytest.raises(UserError, match=message):
        compute_case(make_lever_input(), "cache", {"cache": cache})


OPTIONS = {
    "window": [{"window": 4, "sink": 2}],
    "quantized": [{"bits": bits, "group": 4} for bits in (4, 8)],
    "h2o": [{"budget": 8}],
    "subgen": [{"budget": 8}, {"budget": 8, "values": "sampled"}],
    "low_rank": [{"rank": 3}],
}
N, LAYERS, HEADS, D = 15, 2, 4, 4


def compute_terms(cache):
    return {name: prod(factors.values()) for name, factors in describe_bytes(cache)}


@pytest.mark.parametrize("name", sorted(set(CACHE.names()) - {"state"}))
def test_terms_add_up_to_bytes_of_cache(name):
    lever_input = make_lever_input(length=N, position="rope")
    for options in OPTIONS.get(name, [{}]):
        cache = read_stepwise(lever_input, Choice(name, **options), options.get("rank", 1)).cache
        terms = describe_bytes(cache)
        assert sum(prod(factors.values()) for _, factors in terms) == cache.memory_usage().used_bytes
        assert terms[0][1]["width"] == (3 if name == "low_rank" else D) * 2
        if name == "quantized" and options["bits"] == 4:
            # 15 tokens in groups of 4: three are packed, three tokens are in full precision (KIVI, sec. 3.2)
            assert compute_terms(cache) == {
                "rounded": 3 * LAYERS * HEADS * 4 * 2 * D / 2,
                "scales": 3 * LAYERS * HEADS * 2 * (D + 4) * 4,
                "rest": 3 * LAYERS * HEADS * 2 * D * 4,
            }


def test_model_with_state_and_keys_has_both_terms(monkeypatch):
    model = make_model(layer_pattern=[{"attention": "linear"}, {}], position="none")
    cache, pos = make_cache(None, model.cache_shape, 1, N), torch.arange(N)[None]
    cache.prepare_step([0], pos)
    model.decode(torch.full((1, N), 5), pos, cache, None)
    terms = compute_terms(cache)
    assert sum(terms.values()) == cache.memory_usage().used_bytes
    assert set(terms) == {"numbers", "positions", "state"}
    # a cache of other bytes has no terms
    cache = read_stepwise(make_lever_input(length=5), Choice("static")).cache
    usage = cache.memory_usage()
    monkeypatch.setattr(cache, "memory_usage", lambda: usage._replace(used_bytes=usage.used_bytes + 1))
    assert describe_bytes(cache) == []
