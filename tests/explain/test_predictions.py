import math

import pytest
import torch
from tests.explain.explain_helpers import TEXT, explain_walk, make_inputs, make_run, make_tokenizer

from polyhead.explain.search import describe_logits, round_float


def test_describe_logits():
    logits = torch.tensor([0.0, 2.0, 1.0, 3.0]).log()
    result = describe_logits(make_tokenizer(), logits, 2, k=2)
    top = [(one["id"], one["p"]) for one in result["top"]]
    assert top == [(3, pytest.approx(0.5)), (1, pytest.approx(1 / 3))]
    assert (result["expected"]["rank"], result["expected"]["p"]) == (3, pytest.approx(1 / 6))
    entropy = -sum(p * math.log2(p) for p in (1 / 2, 1 / 3, 1 / 6))
    assert result["entropy"] == pytest.approx(entropy)
    assert result["logsumexp"] == pytest.approx(math.log(6))
    assert describe_logits(make_tokenizer(), logits, None)["expected"] is None
    assert round_float(1 / 3) == 0.333333333


def test_masked_tokens_match_fill_mask():
    run = make_run(kind="encoder")
    document = explain_walk(run, "a <mask> barks")
    (((best, *_),),) = run.fill_mask(["a <mask> barks"])
    position = next(p for p in document["output"]["positions"] if p["expected"] is None)
    top = next(one for one in position["top"] if one["id"] not in run.tokenizer.special_ids)
    assert (run.display_token(top["id"]), top["p"]) == (best.token, pytest.approx(best.probability))


def test_single_logits_have_their_probabilities():
    run = make_run(kind="encoder", labels=("relevance",))
    document = explain_walk(run)
    (prediction,) = run.classify([TEXT])
    (one,) = document["output"]["classes"]
    assert one["p"] == pytest.approx(prediction.probabilities["relevance"], abs=1e-6)
    # and replaced tokens have theirs
    run = make_run(kind="encoder", generator_layers=1)
    document = explain_walk(run)
    with torch.inference_mode():
        p = run.model(*make_inputs(document))[0].sigmoid()
    assert document["output"]["replaced"] == pytest.approx(p.tolist(), abs=1e-6)
