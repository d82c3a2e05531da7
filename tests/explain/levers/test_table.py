"""The part of the document: every lever, with cases or a reason, on every kind of model."""

from __future__ import annotations

import json

import pytest
import torch
from tests.explain.levers.levers_helpers import make_input, make_model, run_model

from polyhead.core.errors import UserError
from polyhead.explain.levers.comparison import compare_outputs
from polyhead.explain.levers.table import LEVERS, compute_case, describe_lever, describe_levers

DESIGNS = [
    ("decoder", {"position": "rope", "norm_first": True, "n_kv_heads": 2, "feed_forward": "swiglu"}),
    ("decoder", {"attention": "linear", "position": "none"}),
    ("decoder", {"block": "lstm", "position": "none"}),
    ("decoder", {"position": "none", "block": "gated_conv", "n_layers": 1}),
    ("encoder-decoder", {}),
    ("encoder", {"position": "learned"}),
    ("encoder", {"labels": ["a", "b", "c"]}),
]


@pytest.mark.parametrize(("kind", "changes"), DESIGNS)
def test_every_lever_has_cases_or_a_reason_in_both_languages(kind, changes):
    model = make_model(kind, **changes)
    lever_input = make_input(model)
    part = describe_levers(lever_input, lambda i: f"token {i}")
    assert json.loads(json.dumps(part, allow_nan=False)) == part
    assert [lever["name"] for lever in part["levers"]] == list(LEVERS)
    for lever in part["levers"]:
        if lever["reason"]:
            assert set(lever["reason"]) == {"en", "zh"}
            assert lever["reason"]["en"] != lever["reason"]["zh"]
            assert lever["cases"] == lever["fields"] == []
        else:
            assert lever["cases"]
    ids = {str(i) for row in part["plain"]["top"]["ids"] for i in row}
    assert ids <= set(part["tokens"])
    assert all(text == f"token {i}" for i, text in part["tokens"].items())
    plain = run_model(model, lever_input).softmax(-1)
    for row, (top, p) in enumerate(zip(part["plain"]["top"]["ids"], part["plain"]["top"]["p"], strict=True)):
        assert p == pytest.approx(plain[row, top].tolist(), rel=1e-4)
    assert part["rows"]["index"] == lever_input.rows
    assert part["rows"]["side"] == (1 if kind == "encoder-decoder" else 0)


def test_the_reference_is_the_true_token_or_the_best_guess():
    lever_input = make_input(make_model())
    rows = describe_levers(lever_input, str, has_cases=False)["rows"]
    assert rows["is_true"] == [True] * 8 + [False]
    assert rows["reference"][:8] == lever_input.tokens[1:]
    assert rows["reference"][8] == int(lever_input.plain_logits[8].argmax())


def test_a_case_compares_the_output_of_its_lever_with_the_plain_one():
    lever_input = make_input(make_model(position="rope"))
    case = compute_case(lever_input, "scale", {})
    changed = LEVERS["scale"].compute(lever_input, {"scale": 1.0}).logits
    assert case["result"] == compare_outputs(changed, lever_input.plain_logits, lever_input.references)
    assert case["baseline"] is None
    shuffled = compute_case(lever_input, "shuffle", {"positions": "none"})
    assert shuffled["baseline"] == {"positions": "none", "shuffled": False}


def test_a_lever_that_does_not_apply_says_why():
    with pytest.raises(UserError, match="lever 'kv_heads' does not apply: this model has one key/value head"):
        compute_case(make_input(make_model(n_kv_heads=1)), "kv_heads", {"n_kv_heads": 1})


def test_fields_without_cases_are_for_a_live_page():
    part = describe_levers(make_input(make_model("encoder-decoder")), str, has_cases=False)
    assert all(not lever["cases"] for lever in part["levers"])
    head = next(lever for lever in part["levers"] if lever["name"] == "head")
    assert [field["name"] for field in head["fields"]] == ["stack", "attention", "layer", "head"]
    assert head["fields"][1]["values"] == ["self", "cross"]


def test_a_damaged_model_is_an_error():
    model = make_model()
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(UserError, match="NaN"):
        describe_levers(make_input(model), str)


def test_a_large_model_has_fewer_cases(monkeypatch):
    lever_input = make_input(make_model(), length=8)
    n_weights = sum(p.numel() for p in lever_input.model.parameters())
    all_cases = len(describe_lever(lever_input, LEVERS["head"], True)["cases"])
    monkeypatch.setattr("polyhead.explain.levers.table.MAX_OPERATIONS", 2 * n_weights * 8 * 3)
    assert len(describe_lever(lever_input, LEVERS["head"], True)["cases"]) == 3 < all_cases
    monkeypatch.setattr("polyhead.explain.levers.table.MAX_OPERATIONS", 1)
    assert len(describe_lever(lever_input, LEVERS["head"], True)["cases"]) == 2
