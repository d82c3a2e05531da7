import math

import numpy as np
import pytest
import torch

from polyhead.explain.levers import interface


def reference_kl(baseline, logits):
    p, q = ([math.exp(x) / sum(map(math.exp, row)) for x in row] for row in (baseline, logits))
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def test_kl_is_sum_over_unchanged_distribution():
    outputs, baseline = [[1.0, 2.0, -1.0], [0.0, 0.0, 3.0]], [[0.5, 0.0, 1.0], [0.0, 0.0, 3.0]]
    kl = interface.compute_kl(torch.tensor(outputs), torch.tensor(baseline)).tolist()
    assert kl == pytest.approx([reference_kl(*pair) for pair in zip(baseline, outputs, strict=True)])
    assert kl[1] == 0
    assert kl[0] != pytest.approx(reference_kl(outputs[0], baseline[0]))
    # infinite if the change excludes a token, the logarithm of the remaining mass if the baseline does
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    masked = logits.masked_fill(torch.tensor([[False, False, True]]), -torch.inf)
    mass = logits.softmax(-1)[0, :2].sum()
    assert interface.compute_kl(logits, masked).item() == pytest.approx(math.log(1 / mass))
    result = interface.compare_outputs(masked, logits, [0])
    assert (result["kl"], result["mean_kl"], result["rank"]) == ([None], None, [1])


def test_output_lists_top_tokens_and_reference():
    logits = torch.tensor([[3.0, 5.0, 4.0]])
    output = interface.describe_output(logits, [0], top_k=2)
    total = sum(map(math.exp, (3, 5, 4)))
    p = [math.exp(x) / total for x in (5, 4, 3)]
    assert output["top"]["ids"] == [[1, 2]]
    assert output["top"]["p"][0] == pytest.approx(p[:2], rel=1e-5)
    assert (output["rank"], output["p"]) == ([3], [pytest.approx(p[2], rel=1e-5)])
    assert output["logsumexp"] == [pytest.approx(math.log(total), rel=1e-5)]
    assert len(interface.describe_output(logits, [0])["top"]["ids"][0]) == 3  # the whole vocabulary
    # ties have the best rank
    assert interface.rank_references(torch.tensor([[3.0, 5.0, 4.0], [1.0, 1.0, 0.0]]), [0, 1]) == [3, 1]
    assert interface.round_number(0.000123456789) == 0.000123457


def test_comparison_lists_rows_with_changed_best_token():
    outputs, plain = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    result = interface.compare_outputs(outputs, plain, [0, 0])
    assert (result["changed"], result["rank"]) == ([1], [1, 2])
    assert result["mean_kl"] == pytest.approx(reference_kl([0, 1], [1, 0]) / 2, rel=1e-5)
    p = math.e / (1 + math.e)
    assert result["top"]["ids"] == [[0, 1], [1, 0]]
    assert result["top"]["before"] == pytest.approx(np.array([[p, 1 - p], [1 - p, p]]), rel=1e-5)
    # incomparable rows are none, and not counted
    plain = torch.tensor([[9.0, 0.0], [1.0, 0.0]])
    result = interface.compare_outputs(outputs, plain, [0, 0], [False, True])
    assert [result[name][0] for name in ("kl", "rank", "p", "logsumexp")] == [None] * 4
    assert result["top"]["before"][0] is None
    assert result["top"]["ids"] == [None, [1, 0]]
    assert result["mean_kl"] == result["kl"][1]
    assert result["changed"] == [1]
    assert interface.compare_outputs(outputs, plain, [0, 0], [False, False])["mean_kl"] is None
