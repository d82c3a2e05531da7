"""Tests of serve/model_card.py: how much text fits, by texts of the run, and examples of its task."""

import pytest
from tests.serve.conftest import build_run, make_recipe, serve_run

from polyhead.config.model import ANSWER_LABELS, QUESTION_ANSWERING
from polyhead.run.run_examples import EXAMPLES_FILE, first_sentence, write_examples
from polyhead.serve.auth import ApiKeys
from polyhead.serve.model_card import Card, everyday_samples, round_down

SOURCES = ["a dog barks .", "two dogs bark loud .", "dogs"]
TARGETS = ["ein hund bellt .", "zwei hunde bellen .", "hunde"]
LANGUAGES = {"valid": ["none.tsv"], "source_lang": "en", "target_lang": "de"}


@pytest.fixture
def run(tmp_path):
    run = build_run("encoder-decoder")
    run.directory, run.recipe = tmp_path, make_recipe("translation", tmp_path, **LANGUAGES)
    write_examples(tmp_path, zip(SOURCES, TARGETS, strict=True))
    return run


def test_limit_and_examples_are_those_of_the_run(run):
    card = Card.from_run(run, use_own_samples=True)
    tokens = sum(map(len, run.tokenizer.encode(SOURCES)))
    assert card.limit.tokens == 40 - 1  # of data.max_len, without the end of the text
    assert card.limit.words == round_down(39 * sum(len(text.split()) for text in SOURCES) // tokens)
    assert card.limit.characters == round_down(39 * sum(map(len, SOURCES)) // tokens)
    assert card.examples == SOURCES[:2]


def test_contexts_of_questions_are_not_cut(tmp_path):
    run = build_run("encoder", labels=ANSWER_LABELS, problem_type=QUESTION_ANSWERING)
    run.directory, pair = tmp_path, ("who barks ?", "a dog barks . " * 20)
    write_examples(tmp_path, [pair])
    assert Card.from_run(run, use_own_samples=True).examples == [[*pair]]
    assert Card.from_run(run, use_own_samples=False).examples == []


def test_service_with_keys_shows_no_private_text(run):
    key = "0123456789abcdef0123"
    for keys, is_private in ((ApiKeys(), True), (ApiKeys([key]), False)):
        with serve_run(run, keys=keys) as client:
            headers = {"authorization": f"Bearer {key}"}
            (model,) = client.ask("/v1/models", headers=headers).json()["data"]
            assert (SOURCES[0] in model["polyhead"]["examples"]) == is_private


@pytest.mark.parametrize("source", ["own", "missing", "damaged", "outside"])
def test_run_offers_no_text_of_others(run, tmp_path, source):
    if source != "own":
        (tmp_path / EXAMPLES_FILE).unlink()
    if source == "damaged":
        (tmp_path / EXAMPLES_FILE).write_text('[["a", "b"], ["c"]]')
    elif source == "outside":
        (tmp_path / "valid.tsv").write_text("secret dogs\tgeheime hunde\n" * 9)
        run.recipe = make_recipe("translation", tmp_path, **LANGUAGES | {"valid": ["valid.tsv"]})
    card = Card.from_run(run, use_own_samples=source != "own")
    assert card.limit.words and card.examples == []
    imported = build_run("decoder")  # a model without a recipe was not trained here
    assert {(text,) for text in Card.from_run(imported, use_own_samples=True).examples} == {
        *everyday_samples(imported.tokenizer)
    }
    if source == "missing":
        run.recipe = make_recipe("translation", tmp_path, **LANGUAGES | {"source_lang": "tlh"})
        card = Card.from_run(run, use_own_samples=True)
        assert card.limit == (39, None, None) and card.examples == []


def test_numbers_and_texts_are_shortened():
    for number, expected in [(0, 1), (7, 7), (19, 19), (47, 45), (99, 95), (384, 380), (2380, 2300)]:
        assert round_down(number) == expected
    assert first_sentence("Short. Text.") == "Short. Text."
    assert first_sentence("It is 3.5 m long. " + "More of it. " * 30) == "It is 3.5 m long."
    assert first_sentence("很长的一句话在这里。" + "还有更多的话。" * 40) == "很长的一句话在这里。"
