"""The levers of a run: their part of the document, and one case as the live page asks for it."""

from __future__ import annotations

import pytest
from tests.explain.levers.test_lever_input import make_run
from tests.lab.caches_helpers import TEXT

from polyhead import Choice
from polyhead.explain.document import explain
from polyhead.explain.inputs import read_inputs
from polyhead.explain.levers.explain_levers import explain_case, explain_levers, make_speller
from polyhead.explain.levers.table import LEVERS
from polyhead.tokenizers.train_tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXT.splitlines(), Choice("bpe"), 300)


def test_the_document_has_the_levers_of_its_window(tokenizer):
    run = make_run(tokenizer, "encoder-decoder")
    document = explain(run, "the dog barks at you", "a cat barks at me", n_shown=3)
    levers = document["levers"]
    assert levers["rows"]["index"] == list(range(*document["sides"][1]["window"]))
    assert [lever["name"] for lever in levers["levers"]] == list(LEVERS)
    positions = document["output"]["positions"]
    for row, position in enumerate(positions):
        tops = list(zip(levers["plain"]["top"]["ids"][row], levers["plain"]["top"]["p"][row], strict=True))
        for (i, p), expected in zip(tops, position["top"], strict=True):
            assert i == expected["id"]
            assert p == pytest.approx(expected["p"], abs=1e-6)
            assert levers["tokens"][str(i)] == expected["text"]
        assert levers["plain"]["rank"][row] == position["expected"]["rank"]
        assert levers["plain"]["p"][row] == pytest.approx(position["expected"]["p"], abs=1e-6)


def test_a_live_case_equals_that_of_the_file(tokenizer):
    run = make_run(tokenizer)
    document = explain(run, "the dog barks")
    live = explain(run, "the dog barks", has_lever_cases=False)["levers"]
    assert all(lever["cases"] == [] for lever in live["levers"])
    inputs = read_inputs(run, "the dog barks", None)
    window = (0, len(inputs.sides[0].ids))
    for lever in document["levers"]["levers"]:
        for case in lever["cases"][:2]:
            answer = explain_case(run, inputs, window, lever["name"], case["setting"])
            assert answer["case"] == case
            assert answer["plain"] == document["levers"]["plain"]
            assert answer["rows"] == document["levers"]["rows"]
            assert {str(i) for row in case["result"]["top"]["ids"] for i in row or ()} <= set(
                answer["tokens"]
            )


def test_classes_have_their_labels(tokenizer):
    spell = make_speller(make_run(tokenizer, "encoder", labels=["bad", "good"]))
    assert [spell(0), spell(1)] == ["bad", "good"]
    spell = make_speller(make_run(tokenizer, "encoder", labels=["relevant"]))
    assert [spell(0), spell(1)] == ["not relevant", "relevant"]
    spell = make_speller(make_run(tokenizer, "encoder", generator_layers=1))
    assert [spell(0), spell(1)] == ["original", "replaced"]
    spell = make_speller(make_run(tokenizer, vocab_size=tokenizer.vocab_size + 8))
    assert spell(tokenizer.vocab_size + 1) == f"<{tokenizer.vocab_size + 1}>"


def test_an_encoder_without_a_head_has_no_levers(tokenizer):
    run = make_run(tokenizer, "encoder", lm_head=False)
    assert explain_levers(run, read_inputs(run, "the dog", None), (0, 3)) is None
