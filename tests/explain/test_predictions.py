"""The output that is shown is the model's."""

from __future__ import annotations

import math

import pytest
import torch
from tests.explain.explain_helpers import TEXT, explain_walk, make_run, make_tokenizer

from polyhead.explain.predictions import describe_logits, round_float


def test_logits_have_their_best_tokens_their_entropy_and_a_rank() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0, 3.0]).log()
    found = describe_logits(make_tokenizer(), logits, 2, k=2)
    assert [(one["id"], one["p"]) for one in found["top"]] == [
        (3, pytest.approx(0.5)),
        (1, pytest.approx(1 / 3)),
    ]
    assert found["expected"]["rank"] == 3
    assert found["expected"]["p"] == pytest.approx(1 / 6)
    expected = -sum(p * math.log2(p) for p in (1 / 2, 1 / 3, 1 / 6))
    assert found["entropy"] == pytest.approx(expected)
    assert found["logsumexp"] == pytest.approx(math.log(6))
    assert describe_logits(make_tokenizer(), logits, None)["expected"] is None


def test_masked_tokens_are_those_of_fill_mask() -> None:
    run = make_run(kind="encoder")
    document = explain_walk(run, "a <mask> barks")
    (((best, *_),),) = run.fill_mask(["a <mask> barks"])
    position = next(p for p in document["output"]["positions"] if p["expected"] is None)
    special = set(run.tokenizer.special_ids)
    shown = next(one for one in position["top"] if one["id"] not in special)
    assert (run.display_token(shown["id"]), shown["p"]) == (best.token, pytest.approx(best.probability))


def test_a_score_of_one_label_is_not_divided_among_classes() -> None:
    run = make_run(kind="encoder", labels=("relevance",))
    (one,) = explain_walk(run, TEXT)["output"]["classes"]
    (prediction,) = run.classify([TEXT])
    assert one["p"] == pytest.approx(prediction.probabilities["relevance"], abs=1e-6)


def test_replaced_tokens_have_a_probability_each() -> None:
    run = make_run(kind="encoder", generator_layers=1)
    document = explain_walk(run, TEXT)
    ids = torch.tensor([[token["id"] for token in document["sides"][0]["tokens"]]])
    with torch.inference_mode():
        p = run.model(ids)[0].sigmoid()
    assert document["output"]["replaced"] == pytest.approx(p.tolist(), abs=1e-6)


def test_a_float_has_nine_digits() -> None:
    assert round_float(1 / 3) == 0.333333333
