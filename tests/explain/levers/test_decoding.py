from math import prod

import pytest
import torch
from tests.explain.levers.levers_helpers import make_lever_input, make_model, run_model
from tests.explain.levers.test_lever_input import decode_with_cache

from polyhead import Choice
from polyhead.cache.factory import make_cache
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.cost.decoding import token_flops
from polyhead.cost.flops import count_forward, count_token
from polyhead.cost.workload import BatchShape
from polyhead.explain.levers.decoding import (
    CACHE_LEVER,
    FREE_RUNNING_LEVER,
    PREFILL_LEVER,
    SAMPLING_LEVER,
    describe_bytes,
    mark_visible,
)
from polyhead.explain.levers.interface import compute_kl
from polyhead.explain.levers.lever_input import read_stepwise
from polyhead.explain.levers.table import compute_case


@pytest.mark.parametrize(("kind", "prompt"), [("decoder", 4), ("encoder-decoder", 1)])
def test_free_running_reads_its_own_tokens(kind, prompt):
    lever_input = make_lever_input(kind, position="rope")
    assert compute_case(lever_input, "free_running", {})["detail"]["prompt"] == prompt  # the default
    output = FREE_RUNNING_LEVER.compute(lever_input, {"prompt": prompt})
    tokens = lever_input.tokens[:prompt]
    while len(tokens) < len(lever_input.tokens) + 1:
        logits = run_model(lever_input.model, lever_input.replace(tokens=tokens))
        tokens = [*tokens, int(logits[-1].argmax())]
    free, teacher_forced = output.detail["free"], output.detail["forced"]
    assert free["ids"] == tokens[prompt:]
    logits = run_model(lever_input.model, lever_input.replace(tokens=tokens[:-1]))
    torch.testing.assert_close(output.logits, logits)
    logits, plain = logits[prompt - 1 :], lever_input.plain_logits[prompt - 1 :]
    assert teacher_forced["ids"] == plain.argmax(-1).tolist()
    assert teacher_forced["p"] == pytest.approx(plain.softmax(-1).amax(-1).tolist(), rel=1e-5)
    assert teacher_forced["logsumexp"] == pytest.approx(plain.logsumexp(-1).tolist(), rel=1e-5)
    p = logits.softmax(-1).gather(-1, torch.tensor(tokens[prompt:])[:, None])[:, 0]
    assert free["p"] == pytest.approx(p.tolist(), rel=1e-5)
    assert free["logsumexp"] == pytest.approx(logits.logsumexp(-1).tolist(), rel=1e-5)
    true_tokens = [*lever_input.tokens, *([lever_input.eos_id] if kind == "encoder-decoder" else [])]
    assert teacher_forced["target"] == true_tokens[prompt:]
    different = [t for t in range(prompt - 1, 8) if lever_input.tokens[t + 1] != tokens[t + 1]]
    assert output.detail["first_difference"] == different[0]
    assert compute_kl(output.logits, lever_input.plain_logits)[:prompt].max() < 1e-9


def test_rows_that_are_compared():
    lever_input = make_lever_input()
    free = FREE_RUNNING_LEVER.compute(lever_input, {"prompt": 3}).detail["free"]["ids"]
    end = next(i for i, token in enumerate(free) if i and token not in free[:i])
    lever_input = lever_input.replace(eos_id=free[end])
    output = FREE_RUNNING_LEVER.compute(lever_input, {"prompt": 3})
    assert output.detail["free"]["ids"] == free[: end + 1]
    assert output.is_comparable == [t < 3 + end for t in range(9)]
    result = compute_case(lever_input, "free_running", {"prompt": 3})["result"]
    assert [kl is None for kl in result["kl"]] == [t >= 3 + end for t in range(9)]
    # a window compares its rows
    lever_input = make_lever_input()
    window = lever_input.replace(rows=[4, 5], labels=lever_input.labels[4:6])
    for lever in (FREE_RUNNING_LEVER, PREFILL_LEVER):
        setting = lever.check_setting(lever_input, {})
        expected = lever.compute(lever_input, setting).logits[4:6]
        torch.testing.assert_close(lever.compute(window, setting).logits, expected)


def test_obstacles_of_decoding_levers():
    lever_input, encoder = make_lever_input(), make_lever_input("encoder")
    assert "generates no text" in FREE_RUNNING_LEVER.find_obstacle(encoder)
    assert FREE_RUNNING_LEVER.find_obstacle(lever_input.replace(tokens=[3])) == "the text has one token"
    assert "no decoder" in PREFILL_LEVER.find_obstacle(encoder)
    assert "at most 256" in PREFILL_LEVER.find_obstacle(lever_input.replace(tokens=[3] * 257))


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_single_steps_are_lossless_and_save_flops(kind):
    lever_input = make_lever_input(kind, position="rope", n_kv_heads=2)
    output = PREFILL_LEVER.compute(lever_input, {})
    assert compute_kl(output.logits, lever_input.plain_logits).max() < 1e-8
    detail, config = output.detail, lever_input.model.config
    source = len(lever_input.source or ())
    steps, recompute = detail["step_flops"], detail["recompute_flops"]
    assert steps == [token_flops(config, t + 1, source) for t in range(9)]
    assert detail["prefill_flops"] == sum(w.total for w in count_forward(config, BatchShape(1, 9, source)))
    decoder = [w for w in count_forward(config, BatchShape(1, 5, source, 1)) if "encoder" not in w.name]
    assert recompute[4] == sum(work.total for work in decoder)
    # of each layer the encoder once, and keys and values of two heads, once with a cache
    S, C, F, kv_width = source, 16, 24, 2 * 4
    encoder = 2 * (2 * S * (2 * C * C + 2 * C * kv_width) + 4 * S * S * C + 4 * S * C * F)
    assert (detail["source_flops"], detail["source_kv_flops"]) == (encoder, 2 * 4 * S * C * kv_width)
    assert detail["sum_step"] == encoder + 8 * S * C * kv_width + sum(steps) < detail["sum_recompute"]
    assert detail["sum_recompute"] == encoder + sum(recompute)
    assert detail["saved"] == pytest.approx(1 - detail["sum_step"] / detail["sum_recompute"], rel=1e-5)
    # all at once every query meets every key, one after the other those before it
    pairs = 2 * 4 * C * (9 * 9 - sum(range(1, 10)))
    assert detail["prefill_flops"] - detail["sum_step"] == pairs
    if kind == "decoder":  # the first token costs the same with and without a cache
        assert steps[0] == recompute[0] == sum(work.total for work in count_token(config, 1))
    else:  # a recurrent model steps through its state
        recurrent = make_lever_input(block="lstm", position="none")
        output = PREFILL_LEVER.compute(recurrent, {})
        assert compute_kl(output.logits, recurrent.plain_logits).max() < 1e-8


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
        ({"name": "h2o", "budget": 0}, "0 is out of range: expected at least 1"),
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


def compute_probabilities(setting):
    lever_input = make_lever_input()
    output = SAMPLING_LEVER.compute(lever_input, SAMPLING_LEVER.check_setting(lever_input, setting))
    return lever_input.plain_logits, output.logits.softmax(-1)


@pytest.mark.parametrize("temperature", [0, 0.5, 1.5])
def test_temperature_divides_logits(temperature):
    logits, p = compute_probabilities({"temperature": temperature})
    if temperature == 0:
        expected = torch.nn.functional.one_hot(logits.argmax(-1), logits.size(-1)).float()
    else:
        expected = (logits / temperature).softmax(-1)
    torch.testing.assert_close(p, expected)


def test_top_k_and_p_keep_proportions():
    logits, p = compute_probabilities({"top_k": 5})
    expected = logits.softmax(-1) * (logits >= logits.topk(5).values[:, -1:])
    torch.testing.assert_close(p, expected / expected.sum(-1, keepdim=True))
    # the smallest set of that mass
    logits, p = compute_probabilities({"top_p": 0.9})
    for row, plain in zip(p, logits.softmax(-1), strict=True):
        order = plain.argsort(descending=True)
        n = next(n for n in range(1, len(order) + 1) if plain[order[:n]].sum() >= 0.9)
        expected = torch.zeros_like(plain).index_copy(0, order[:n], plain[order[:n]])
        torch.testing.assert_close(row, expected / expected.sum())
    with pytest.raises(UserError, match="generates no text"):
        compute_case(make_lever_input("encoder"), "sampling", {"top_k": 2})
