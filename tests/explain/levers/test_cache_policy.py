"""The cache lever: its cases, what is evicted, and errors."""

from __future__ import annotations

import pytest
import torch
from tests.explain.levers.levers_helpers import make_input, make_model
from tests.explain.levers.test_stepwise import decode_by_hand

from polyhead import Choice
from polyhead.core.errors import UserError
from polyhead.explain.levers.cache_policy import CACHE_LEVER, mark_visible
from polyhead.explain.levers.comparison import compute_kl
from polyhead.explain.levers.stepwise import read_stepwise
from polyhead.explain.levers.table import compute_case


def test_every_case_is_the_decoding_with_that_cache():
    lever_input = make_input(make_model(position="rope"), length=16)
    settings = CACHE_LEVER.list_cases(lever_input)
    names = [setting["cache"]["name"] for setting in settings]
    assert names == [
        "static", "quantized", "quantized", "window", "window", "window", "h2o", "h2o", "subgen", "low_rank",
    ]  # fmt: skip
    for setting in settings:
        output = CACHE_LEVER.compute(lever_input, setting)
        expected, cache = decode_by_hand(
            lever_input, Choice.from_config(setting["cache"]), output.detail["prefill"]
        )
        torch.testing.assert_close(output.logits, expected)
        assert output.detail["lossless"] == cache.lossless
        assert output.detail["bytes"] == cache.memory_usage().used_bytes
        if names[0] == cache.name:  # static
            assert output.detail["bytes_static"] == output.detail["bytes"]
        kl = compute_kl(output.logits, lever_input.plain_logits)
        assert (kl.max() < 1e-7) == cache.lossless


def test_the_detail_shows_what_is_visible_at_each_step():
    lever_input = make_input(make_model(), length=5)
    case = compute_case(lever_input, "cache", {"cache": {"name": "window", "window": 2, "sink": 0}})
    detail = case["detail"]
    assert detail["layers"] == [0, 1]
    assert detail["visible"] == [["1", "11", "011", "0011", "00011"]] * 2
    assert [errors[:3] for errors in detail["key_error"]] == [[None] * 3] * 2
    assert [errors[3:] for errors in detail["value_error"]] == [[0.0] * 2] * 2
    assert 0 < detail["bytes"] < detail["bytes_static"]
    assert case["setting"] == {"cache": {"name": "window", "window": 2, "sink": 0}}


def test_the_first_terms_of_each_error_are_listed_where_a_cache_rounds():
    lever_input = make_input(make_model())
    setting = {"cache": {"name": "quantized", "bits": 4, "group": 2}}
    detail = compute_case(lever_input, "cache", setting)["detail"]
    record = read_stepwise(lever_input, Choice.from_config(setting["cache"])).layers[1]
    for name, errors in zip(("key", "value"), record.measure_errors(), strict=True):
        terms = torch.tensor(detail[f"{name}_terms"][1])
        torch.testing.assert_close(terms, errors[:2].T, rtol=6e-3, atol=0)
        torch.testing.assert_close(torch.tensor(detail[f"{name}_error"][1]), errors.mean(0))
    assert "key_terms" not in compute_case(lever_input, "cache", {"cache": {"name": "static"}})["detail"]


def test_a_position_that_some_heads_keep_has_a_mark_of_its_own():
    assert mark_visible(torch.tensor([[True, False, True], [True, False, False]])) == "10+"


def test_a_merging_cache_has_no_errors_by_position():
    lever_input = make_input(make_model(), length=12)
    detail = compute_case(lever_input, "cache", {"cache": {"name": "subgen", "budget": 4}})["detail"]
    assert detail["merged"]
    assert detail["key_error"] == [[None] * 12] * 2


def test_models_without_keys_and_values_are_left_out():
    assert "no decoder" in CACHE_LEVER.find_obstacle(make_input(make_model("encoder")))
    state = make_input(make_model(attention="linear", position="none"))
    assert "keeps a state" in CACHE_LEVER.find_obstacle(state)


def test_positions_by_distance_leave_out_what_merges_tokens():
    settings = CACHE_LEVER.list_cases(make_input(make_model(position="alibi"), length=16))
    assert "subgen" not in [setting["cache"]["name"] for setting in settings]


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
def test_a_wrong_cache_is_one_message(cache, message):
    with pytest.raises(UserError, match=message):
        compute_case(make_input(make_model()), "cache", {"cache": cache})
