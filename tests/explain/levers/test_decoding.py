import pytest
import torch
from tests.explain.levers.levers_helpers import make_lever_input, run_model

from polyhead.cost.decoding import token_flops
from polyhead.cost.flops import count_forward, count_token
from polyhead.cost.workload import BatchShape
from polyhead.explain.levers.comparison import compute_kl
from polyhead.explain.levers.decoding import FREE_RUNNING_LEVER, PREFILL_LEVER
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
    assert (teacher_forced["target"], output.detail["first_row"]) == (lever_input.tokens[prompt:], prompt - 1)
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
    assert detail["saved"] == pytest.approx(1 - sum(steps) / sum(recompute), rel=1e-5)
    assert detail["sum_step"] == sum(steps) < detail["sum_recompute"]
    assert detail["cache_bytes"] == [(t + 1) * detail["cache_bytes"][0] for t in range(9)]
    if kind == "decoder":  # the first token costs the same with and without a cache
        assert steps[0] == recompute[0] == sum(work.total for work in count_token(config, 1))
    else:  # a recurrent model steps through its state
        recurrent = make_lever_input(block="lstm", position="none")
        output = PREFILL_LEVER.compute(recurrent, {})
        assert compute_kl(output.logits, recurrent.plain_logits).max() < 1e-8
        assert len(set(output.detail["cache_bytes"])) == 1
