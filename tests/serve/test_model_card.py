"""Tests of serve/model_card.py: how much text fits, by texts of the run, and examples of its task."""

import json

import pytest
from tests.serve.conftest import build_run, make_recipe, serve_run

from polyhead.serve.auth import ApiKeys
from polyhead.serve.model_card import Card, everyday_samples, first_sentence, round_down

SOURCES = ["a dog barks .", "two dogs bark loud .", "dogs"]
TARGETS = ["ein hund bellt .", "zwei hunde bellen .", "hunde"]
LANGUAGES = {"source_lang": "en", "target_lang": "de"}


@pytest.fixture
def run(tmp_path):
    run = build_run("encoder-decoder")
    rows = zip(SOURCES, TARGETS, strict=True)
    (tmp_path / "valid.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    run.recipe = make_recipe("translation", tmp_path, valid=["valid.tsv"], **LANGUAGES)
    return run


def everyday_texts(run):
    return {text for (text,) in everyday_samples(run.tokenizer, "en")}


def test_limit_and_examples_are_of_the_validation_text(run):
    card = Card.from_run(run, use_own_samples=True)
    tokens = sum(map(len, run.tokenizer.encode(SOURCES)))
    assert card.limit.tokens == 40 - 1  # of data.max_len, without the end of the text
    assert card.limit.words == round_down(39 * sum(len(text.split()) for text in SOURCES) // tokens)
    assert card.limit.characters == round_down(39 * sum(map(len, SOURCES)) // tokens)
    assert card.examples == SOURCES[:2]


def test_service_with_keys_shows_no_private_text(run):
    key = "0123456789abcdef0123"
    for keys, is_private in ((ApiKeys(), True), (ApiKeys([key]), False)):
        with serve_run(run, keys=keys) as client:
            headers = {"authorization": f"Bearer {key}"}
            (model,) = client.ask("/v1/models", headers=headers).json()["data"]
            assert (SOURCES[0] in model["polyhead"]["examples"]) == is_private


@pytest.mark.parametrize("source", ["own", "missing", "hub"])
def test_everyday_sentences_replace_other_text(run, tmp_path, monkeypatch, source):
    monkeypatch.setattr("polyhead.core.hub.download_dataset_files", lambda name: pytest.fail(name))
    if source == "missing":
        (tmp_path / "valid.tsv").unlink()
    elif source == "hub":
        name = "hf://datasets/someone/something/valid.tsv"
        run.recipe = make_recipe("translation", tmp_path, valid=[name], source_lang="en")
    card = Card.from_run(run, use_own_samples=source != "own")
    assert card.limit.words and card.examples and set(card.examples) <= everyday_texts(run)
    run.recipe = make_recipe("translation", tmp_path, valid=["gone.tsv"], source_lang="tlh")
    card = Card.from_run(run, use_own_samples=True)
    assert card.limit == (39, None, None) and card.examples == []


TURNS = [{"role": "user", "content": "a dog ?"}, {"role": "assistant", "content": "dogs"}]
CHAT = json.dumps({"messages": [{"role": "system", "content": "s"}, *TURNS, *TURNS]})
PAIRS, PAIR_LINES = {"text": ["a", "b"]}, "a\tb\tlabel\na dog .\ttwo dogs .\tgood\n"
BARKING = ["a dog barks .", "two dogs bark ."]


@pytest.mark.parametrize(
    ("kind", "task", "content", "data", "examples"),
    [
        ("classifier", "classification", "text\tlabel\na dog .\tgood\n", {"text": ["text"]}, ["a dog ."]),
        ("classifier", "classification", PAIR_LINES, PAIRS, [["a dog .", "two dogs ."]]),
        ("decoder", "language-model", "\n\n".join(BARKING) + "\n", {}, BARKING),
        ("encoder", "masked-lm", "a dog .\n", {}, ["a dog ."]),
        ("decoder", "chat", CHAT, {}, ["a dog ?"]),
    ],
    ids=["texts", "pairs", "language model", "masked", "chat"],
)
def test_examples_fit_the_task(kind, task, content, data, examples, tmp_path):
    name = {"classification": "valid.tsv", "chat": "valid.jsonl"}.get(task, "valid.txt")
    (tmp_path / name).write_text(content)
    run = build_run(kind)
    run.recipe = make_recipe(task, tmp_path, valid=[name], **data)
    assert Card.from_run(run, use_own_samples=True).examples == examples


def test_numbers_and_texts_are_shortened():
    for number, expected in [(0, 1), (7, 7), (19, 19), (47, 45), (99, 95), (384, 380), (2380, 2300)]:
        assert round_down(number) == expected
    assert first_sentence("Short. Text.") == "Short. Text."
    assert first_sentence("It is 3.5 m long. " + "More of it. " * 30) == "It is 3.5 m long."
    assert first_sentence("很长的一句话在这里。" + "还有更多的话。" * 40) == "很长的一句话在这里。"
