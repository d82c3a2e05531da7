"""Free running against greedy decoding written out, and the operations of steps against the cost package."""

from __future__ import annotations

import pytest
import torch
from tests.explain.levers.levers_helpers import make_input, make_model, run_model

from polyhead.cost.decoding import token_flops
from polyhead.cost.flops import count_forward, count_token
from polyhead.cost.workload import BatchShape
from polyhead.explain.levers.comparison import compute_kl
from polyhead.explain.levers.decoding import FREE_RUNNING_LEVER, PREFILL_LEVER
from polyhead.explain.levers.table import compute_case


@pytest.mark.parametrize(("kind", "prompt"), [("decoder", 4), ("encoder-decoder", 1)])
def test_free_running_continues_with_its_own_tokens(kind, prompt):
    lever_input = make_input(make_model(kind, position="rope"))
    output = FREE_RUNNING_LEVER.compute(lever_input, {"prompt": prompt})
    tokens = lever_input.tokens[:prompt]
    while len(tokens) < len(lever_input.tokens) + 1:
        rows = lever_input.replace(tokens=tokens)
        tokens = [*tokens, int(run_model(lever_input.model, rows)[-1].argmax())]
    assert output.detail["free"]["ids"] == tokens[prompt:]
    logits = run_model(lever_input.model, lever_input.replace(tokens=tokens[:-1]))
    torch.testing.assert_close(output.logits, logits)
    forced = output.detail["forced"]
    assert forced["ids"] == lever_input.plain_logits.argmax(-1).tolist()[prompt - 1 :]
    assert forced["p"] == pytest.approx(
        lever_input.plain_logits.softmax(-1).amax(-1).tolist()[prompt - 1 :], rel=1e-5
    )
    assert forced["logsumexp"] == pytest.approx(
        lever_input.plain_logits.logsumexp(-1).tolist()[prompt - 1 :], rel=1e-5
    )
    chosen = logits[prompt - 1 :].softmax(-1).gather(-1, torch.tensor(tokens[prompt:])[:, None])[:, 0]
    assert output.detail["free"]["p"] == pytest.approx(chosen.tolist(), rel=1e-5)
    assert output.detail["free"]["logsumexp"] == pytest.approx(
        logits[prompt - 1 :].logsumexp(-1).tolist(), rel=1e-5
    )
    assert (forced["target"], output.detail["first_row"]) == (lever_input.tokens[prompt:], prompt - 1)
    different = [t for t in range(prompt - 1, 8) if lever_input.tokens[t + 1] != tokens[t + 1]]
    assert output.detail["first_difference"] == different[0]
    assert compute_kl(output.logits, lever_input.plain_logits)[:prompt].max() < 1e-9


def test_an_output_that_ends_early_leaves_rows_without_a_comparison():
    lever_input = make_input(make_model())
    free = FREE_RUNNING_LEVER.compute(lever_input, {"prompt": 3}).detail["free"]["ids"]
    place = next(i for i, token in enumerate(free) if i and token not in free[:i])
    ended = lever_input.replace(eos_id=free[place])
    output = FREE_RUNNING_LEVER.compute(ended, {"prompt": 3})
    assert output.detail["free"]["ids"] == free[: place + 1]
    assert output.is_comparable == [t < 3 + place for t in range(9)]
    result = compute_case(ended, "free_running", {"prompt": 3})["result"]
    assert [kl is None for kl in result["kl"]] == [t >= 3 + place for t in range(9)]


def test_a_window_compares_its_rows_of_the_text():
    lever_input = make_input(make_model())
    window = lever_input.replace(rows=[4, 5], labels=lever_input.labels[4:6])
    for lever in (FREE_RUNNING_LEVER, PREFILL_LEVER):
        setting = lever.check_setting(lever_input, {})
        torch.testing.assert_close(
            lever.compute(window, setting).logits, lever.compute(lever_input, setting).logits[4:6]
        )
    assert lever_input.replace(tokens=[3] * 257) and "at most 256" in PREFILL_LEVER.find_obstacle(
        lever_input.replace(tokens=[3] * 257)
    )


def test_half_of_a_language_models_text_is_its_prompt():
    lever_input = make_input(make_model())
    assert compute_case(lever_input, "free_running", {})["detail"]["prompt"] == 4
    pair = make_input(make_model("encoder-decoder"))
    assert compute_case(pair, "free_running", {})["detail"]["prompt"] == 1
    assert "generates no text" in FREE_RUNNING_LEVER.find_obstacle(make_input(make_model("encoder")))
    assert FREE_RUNNING_LEVER.find_obstacle(lever_input.replace(tokens=[3])) == "the text has one token"


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_single_steps_lose_nothing_and_save_operations(kind):
    lever_input = make_input(make_model(kind, position="rope", n_kv_heads=2))
    output = PREFILL_LEVER.compute(lever_input, {})
    assert compute_kl(output.logits, lever_input.plain_logits).max() < 1e-8
    detail, config = output.detail, lever_input.model.config
    source = len(lever_input.source or ())
    assert detail["step_flops"] == [token_flops(config, t + 1, source) for t in range(9)]
    assert detail["prefill_flops"] == sum(w.total for w in count_forward(config, BatchShape(1, 9, source)))
    decoder = [w for w in count_forward(config, BatchShape(1, 5, source, 1)) if "encoder" not in w.name]
    assert detail["recompute_flops"][4] == sum(work.total for work in decoder)
    assert detail["saved"] == pytest.approx(
        1 - sum(detail["step_flops"]) / sum(detail["recompute_flops"]), rel=1e-5
    )
    assert detail["sum_step"] == sum(detail["step_flops"]) < detail["sum_recompute"]
    assert detail["cache_bytes"] == [(t + 1) * detail["cache_bytes"][0] for t in range(9)]


def test_the_first_step_of_a_language_model_needs_no_cache():
    """One token alone costs the same with and without a cache."""
    lever_input = make_input(make_model())
    detail = PREFILL_LEVER.compute(lever_input, {}).detail
    assert detail["step_flops"][0] == detail["recompute_flops"][0]
    assert detail["step_flops"][0] == sum(work.total for work in count_token(lever_input.model.config, 1))


def test_recurrent_models_step_through_their_state():
    lever_input = make_input(make_model(block="lstm", position="none"))
    output = PREFILL_LEVER.compute(lever_input, {})
    assert compute_kl(output.logits, lever_input.plain_logits).max() < 1e-8
    assert len(set(output.detail["cache_bytes"])) == 1
    assert "no decoder" in PREFILL_LEVER.find_obstacle(make_input(make_model("encoder")))
