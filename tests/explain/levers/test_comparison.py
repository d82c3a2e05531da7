"""KL divergence, ranks and probabilities against the formulas written out."""

from __future__ import annotations

import math

import pytest
import torch

from polyhead.explain.levers.comparison import (
    compare_outputs,
    compute_kl,
    describe_output,
    rank_references,
    round_number,
)


def kl_written_out(logits: list[float], baseline: list[float]) -> float:
    q, p = ([math.exp(x) / sum(map(math.exp, row)) for x in row] for row in (logits, baseline))
    return sum(a * math.log(a / b) for a, b in zip(q, p, strict=True) if a > 0)


def test_compute_kl_is_the_sum_over_the_changed_distribution():
    changed, baseline = [[1.0, 2.0, -1.0], [0.0, 0.0, 3.0]], [[0.5, 0.0, 1.0], [0.0, 0.0, 3.0]]
    kl = compute_kl(torch.tensor(changed), torch.tensor(baseline)).tolist()
    assert kl == pytest.approx([kl_written_out(*pair) for pair in zip(changed, baseline, strict=True)])
    assert kl[1] == 0
    assert kl[0] != pytest.approx(kl_written_out(baseline[0], changed[0]))


def test_excluded_tokens_leave_the_logarithm_of_the_mass_that_is_kept():
    baseline = torch.tensor([[2.0, 1.0, 0.0]])
    kept = baseline.masked_fill(torch.tensor([[False, False, True]]), -torch.inf)
    mass = baseline.softmax(-1)[0, :2].sum()
    assert compute_kl(kept, baseline).item() == pytest.approx(math.log(1 / mass))


def test_ranks_count_from_1_and_equal_logits_share_the_best():
    logits = torch.tensor([[3.0, 5.0, 4.0], [1.0, 1.0, 0.0]])
    assert rank_references(logits, [0, 1]) == [3, 1]


def test_an_output_lists_its_most_likely_tokens_and_follows_one():
    logits = torch.tensor([[3.0, 5.0, 4.0]])
    output = describe_output(logits, [0], top_k=2)
    p = [math.exp(x) / sum(map(math.exp, (3, 5, 4))) for x in (5, 4, 3)]
    assert output["top"]["ids"] == [[1, 2]]
    assert output["top"]["p"][0] == pytest.approx(p[:2], rel=1e-5)
    assert (output["rank"], output["p"]) == ([3], [pytest.approx(p[2], rel=1e-5)])
    assert output["logsumexp"] == [pytest.approx(math.log(sum(map(math.exp, (3, 5, 4)))), rel=1e-5)]
    assert len(describe_output(logits, [0])["top"]["ids"][0]) == 3  # the vocabulary has no more


def test_a_comparison_names_the_rows_whose_best_token_changed():
    changed, plain = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    result = compare_outputs(changed, plain, [0, 0])
    assert (result["changed"], result["rank"]) == ([1], [1, 2])
    assert result["mean_kl"] == pytest.approx(kl_written_out([0, 1], [1, 0]) / 2, rel=1e-5)
    p = math.e / (1 + math.e)
    assert result["top"]["ids"] == [[0, 1], [1, 0]]
    assert result["top"]["before"] == [
        pytest.approx([p, 1 - p], rel=1e-5),
        pytest.approx([1 - p, p], rel=1e-5),
    ]


def test_rows_that_cannot_be_compared_are_none_and_do_not_count():
    changed, plain = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[9.0, 0.0], [1.0, 0.0]])
    result = compare_outputs(changed, plain, [0, 0], [False, True])
    assert result["kl"][0] is result["rank"][0] is result["p"][0] is result["logsumexp"][0] is None
    assert result["top"]["before"][0] is None
    assert result["top"]["ids"] == [None, [1, 0]]
    assert result["mean_kl"] == result["kl"][1]
    assert result["changed"] == [1]
    assert compare_outputs(changed, plain, [0, 0], [False, False])["mean_kl"] is None


def test_numbers_have_six_significant_digits():
    assert round_number(0.000123456789) == 0.000123457
