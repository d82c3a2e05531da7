import pytest
from tests.explain.levers.levers_helpers import make_run

from polyhead.explain.document import explain
from polyhead.explain.inputs import read_inputs
from polyhead.explain.levers.explain_levers import explain_case, explain_levers, make_speller
from polyhead.explain.levers.table import LEVERS


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
    window = (0, len(inputs.sides[0].ids))
    for lever in levers["levers"]:
        for case in lever["cases"][:2]:
            result = explain_case(run, inputs, window, lever["name"], case["setting"])
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
    assert explain_levers(run, read_inputs(run, "the dog", None), (0, 3)) is None
