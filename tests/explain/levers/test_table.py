import json

import pytest
import torch
from tests.explain.levers.levers_helpers import make_input, make_lever_input, make_model, make_run, run_model

from polyhead.core.errors import UserError
from polyhead.explain.arrays import ArrayStore
from polyhead.explain.document import explain
from polyhead.explain.inputs import read_inputs
from polyhead.explain.levers import table
from polyhead.explain.levers.interface import compare_outputs
from polyhead.explain.levers.table import (
    LEVERS,
    compute_case,
    describe_lever,
    describe_levers,
    explain_case,
    explain_levers,
    make_speller,
)

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
def test_every_lever_has_cases_or_reason(kind, changes):
    lever_input = make_lever_input(kind, **changes)
    part = describe_levers(lever_input, lambda i: f"token {i}", arrays=ArrayStore())
    assert json.loads(json.dumps(part, allow_nan=False)) == part
    assert [lever["name"] for lever in part["levers"]] == list(LEVERS)
    for lever in part["levers"]:
        assert bool(lever["cases"]) == (not lever["reason"])
        if lever["reason"]:
            assert set(lever["reason"]) == {"en", "zh"}
            assert lever["reason"]["en"] != lever["reason"]["zh"]
            assert lever["fields"] == []
    ids, p = part["plain"]["top"]["ids"], part["plain"]["top"]["p"]
    assert {str(i) for row in ids for i in row} <= set(part["tokens"])
    assert all(text == f"token {i}" for i, text in part["tokens"].items())
    plain = run_model(lever_input.model, lever_input).softmax(-1)
    for row, (top, values) in enumerate(zip(ids, p, strict=True)):
        assert values == pytest.approx(plain[row, top].tolist(), rel=1e-4)
    assert part["rows"]["index"] == lever_input.rows
    assert part["rows"]["side"] == (1 if kind == "encoder-decoder" else 0)


def test_live_page_has_references_and_fields():
    lever_input = make_lever_input()
    rows = describe_levers(lever_input, str)["rows"]
    assert rows["is_true"] == [True] * 8 + [False]
    assert rows["reference"] == [*lever_input.tokens[1:], int(lever_input.plain_logits[8].argmax())]
    part = describe_levers(make_lever_input("encoder-decoder"), str)
    assert not any(lever["cases"] for lever in part["levers"])
    assert [bool(lever["settings"]) for lever in part["levers"]] == [
        not lever["reason"] for lever in part["levers"]
    ]
    assert part["levers"][0]["settings"][0] == {"temperature": 0.5}  # which changes the output
    (head,) = (lever for lever in part["levers"] if lever["name"] == "head")
    assert [field["name"] for field in head["fields"]] == ["stack", "attention", "layer", "head"]
    assert head["fields"][1]["values"] == ["self", "cross"]


def test_cases_compare_with_plain_output(monkeypatch):
    lever_input = make_lever_input(position="rope")
    case = compute_case(lever_input, "scale", {})
    logits = LEVERS["scale"].compute(lever_input, {"scale": 1.0}).logits
    assert case["result"] == compare_outputs(logits, lever_input.plain_logits, lever_input.references)
    assert case["baseline"] is None
    shuffle_case = compute_case(lever_input, "shuffle", {"positions": "none"})
    assert shuffle_case["baseline"] == {"positions": "none", "shuffled": False}
    # a large model has fewer cases
    lever_input = make_lever_input(length=8)
    n_weights = sum(p.numel() for p in lever_input.model.parameters())

    def count_cases():
        return len(describe_lever(lever_input, LEVERS["head"], ArrayStore())["cases"])

    assert count_cases() > 3
    for limit, expected in ((2 * n_weights * 8 * 3, 3), (1, 2)):
        monkeypatch.setattr(table, "MAX_OPERATIONS", limit)
        assert count_cases() == expected


def test_inapplicable_lever_or_damaged_model_is_an_error():
    message = "lever 'kv_heads' does not apply: this model has one key/value head"
    with pytest.raises(UserError, match=message):
        compute_case(make_lever_input(n_kv_heads=1), "kv_heads", {"n_kv_heads": 1})
    model = make_model()
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(UserError, match="NaN"):
        describe_levers(make_input(model), str, arrays=ArrayStore())


def test_document_has_levers_of_its_window():
    document = explain(make_run("encoder-decoder"), "the dog barks at you", "a cat barks at me", n_shown=3)
    levers = document["levers"]
    plain = levers["plain"]
    assert levers["rows"]["index"] == list(range(*document["sides"][1]["window"]))
    assert [lever["name"] for lever in levers["levers"]] == list(LEVERS)
    for row, position in enumerate(document["output"]["positions"]):
        top = zip(plain["top"]["ids"][row], plain["top"]["p"][row], strict=True)
        for (i, p), expected in zip(top, position["top"], strict=True):
            assert (i, p) == (expected["id"], pytest.approx(expected["p"], abs=1e-6))
            assert levers["tokens"][str(i)] == expected["text"]
        expected = position["expected"]
        assert plain["rank"][row] == expected["rank"]
        assert plain["p"][row] == pytest.approx(expected["p"], abs=1e-6)


def test_live_case_equals_case_of_document():
    run = make_run()
    levers = explain(run, "the dog barks")["levers"]
    live = explain(run, "the dog barks", has_lever_cases=False)["levers"]
    assert all(lever["cases"] == [] for lever in live["levers"])
    inputs = read_inputs(run, "the dog barks", None)
    windows = [(0, len(inputs.sides[0].ids))]
    for lever in levers["levers"]:
        for case in lever["cases"][:2]:
            result = explain_case(run, inputs, windows, lever["name"], case["setting"])
            attention = result["case"].get("attention")
            if attention:  # whose array has a name of its own
                attention["weights"] = case["attention"]["weights"]
            assert (result["case"], result["plain"]) == (case, levers["plain"])
            assert result["rows"] == levers["rows"]
            ids = {str(i) for row in case["result"]["top"]["ids"] for i in row or ()}
            assert ids <= set(result["tokens"])


def test_speller_names_classes():
    for options, names in (
        ({"labels": ["bad", "good"]}, ["bad", "good"]),
        ({"labels": ["relevant"]}, ["not relevant", "relevant"]),
        ({"generator_layers": 1}, ["original", "replaced"]),
    ):
        assert list(map(make_speller(make_run("encoder", **options)), (0, 1))) == names
    n = make_run().tokenizer.vocab_size
    assert make_speller(make_run(vocab_size=n + 8))(n + 1) == f"<{n + 1}>"
    # an encoder without a head has no levers
    run = make_run("encoder", lm_head=False)
    assert explain_levers(run, read_inputs(run, "the dog", None), [(0, 3)]) is None
