"""What the page begins with: how much text fits, counted from texts of the run, and examples that are the
run's own or everyday ones.
"""

from __future__ import annotations

import json

import pytest
from tests.serve.conftest import make

from polyhead.config.recipe import Recipe
from polyhead.serve.http.auth import ApiKeys
from polyhead.serve.model_card import Card, first_sentence, round_down
from polyhead.serve.sample_inputs import everyday_samples

PAIRS = [
    ("a dog barks .", "ein hund bellt ."),
    ("two dogs bark loud .", "zwei hunde bellen ."),
    ("dogs", "hunde"),
]


def recipe(task, tmp_path, **data):
    return Recipe.model_validate(
        {
            "task": task,
            "data": {"root": str(tmp_path), "train": ["none.tsv"], "max_len": 40, **data},
            "train": {"steps": 1},
        }
    )


@pytest.fixture
def translator(tmp_path):
    run = make("encoder-decoder")
    (tmp_path / "valid.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    run.recipe = recipe("translation", tmp_path, valid=["valid.tsv"], source_lang="en", target_lang="de")
    return run


def test_the_limit_is_as_many_words_as_fit_at_the_length_of_those_of_the_validation_text(translator):
    card, sources = Card.from_run(translator, use_own_samples=True), [a for a, _ in PAIRS]
    tokens = sum(map(len, translator.tokenizer.encode(sources)))
    most = 40 - 1  # of data.max_len, and the end of the text
    assert card.limit.tokens == most
    assert card.limit.words == round_down(most * sum(len(text.split()) for text in sources) // tokens)
    assert card.limit.characters == round_down(most * sum(map(len, sources)) // tokens)


def test_examples_are_sources_of_the_validation_text_unless_others_could_see_them(translator):
    assert Card.from_run(translator, use_own_samples=True).examples == [
        "a dog barks .",
        "two dogs bark loud .",
    ]
    everyday = [text for (text,) in everyday_samples(translator.tokenizer, "en")]
    shown = Card.from_run(translator, use_own_samples=False).examples
    assert shown and set(shown) <= set(everyday)


def test_a_service_with_keys_shows_no_text_of_the_run(translator, serving):
    for keys, own in ((ApiKeys(), True), (ApiKeys(["0123456789abcdef0123"]), False)):
        with serving(translator, keys=keys) as live:
            headers = {"authorization": "Bearer 0123456789abcdef0123"}
            (about,) = live.ask("/v1/models", headers=headers).json()["data"]
            assert ("a dog barks ." in about["polyhead"]["examples"]) == own


def test_without_the_files_the_limit_is_counted_from_everyday_sentences(translator, tmp_path):
    (tmp_path / "valid.tsv").unlink()
    card = Card.from_run(translator, use_own_samples=True)
    assert card.limit.words and set(card.examples) <= {
        text for (text,) in everyday_samples(translator.tokenizer, "en")
    }


def test_a_language_without_sentences_has_a_limit_in_tokens_alone(translator, tmp_path):
    (tmp_path / "valid.tsv").unlink()
    translator.recipe = recipe("translation", tmp_path, valid=["valid.tsv"], source_lang="tlh")
    card = Card.from_run(translator, use_own_samples=True)
    assert card.limit == (39, None, None) and card.examples == []


def test_texts_of_a_hub_are_not_fetched(translator, tmp_path, monkeypatch):
    name = "hf://datasets/someone/something/valid.tsv"
    translator.recipe = recipe("translation", tmp_path, valid=[name], source_lang="en")
    monkeypatch.setattr(
        "polyhead.core.hub.download_dataset_files", lambda name: pytest.fail(f"fetched {name}")
    )
    assert Card.from_run(translator, use_own_samples=True).limit.words


@pytest.mark.parametrize(
    ("kind", "task", "content", "data", "wanted"),
    [
        ("classifier", "classification", "text\tlabel\na dog barks .\tgood\n", {"text": ["text"]},
            ["a dog barks ."]),
        (
            "classifier", "classification", "a\tb\tlabel\na dog .\ttwo dogs .\tgood\n", {"text": ["a", "b"]},
                [["a dog .", "two dogs ."]],
        ),
        ("decoder", "language-model", "a dog barks .\n\ntwo dogs bark .\n", {}, ["a dog barks .",
            "two dogs bark ."]),
        ("encoder", "masked-lm", "a dog barks .\n", {}, ["a dog barks ."]),
    ],
)  # fmt: skip
def test_each_task_has_examples_of_its_own_kind(kind, task, content, data, wanted, tmp_path):
    name = "valid.tsv" if task == "classification" else "valid.txt"
    (tmp_path / name).write_text(content)
    run = make(kind)
    run.recipe = recipe(task, tmp_path, valid=[name], **data)
    assert Card.from_run(run, use_own_samples=True).examples == wanted


def test_a_conversation_begins_as_the_first_of_its_questions(tmp_path):
    talk = [{"role": "user", "content": "a dog ?"}, {"role": "assistant", "content": "dogs"}]
    (tmp_path / "valid.jsonl").write_text(
        json.dumps({"messages": [{"role": "system", "content": "s"}, *talk, *talk]})
    )
    run = make("decoder", max_len=100)
    run.recipe = recipe("chat", tmp_path, valid=["valid.jsonl"])
    assert Card.from_run(run, use_own_samples=True).examples == ["a dog ?"]


@pytest.mark.parametrize(
    ("number", "rounded"), [(0, 1), (7, 7), (19, 19), (47, 45), (99, 95), (384, 380), (2380, 2300)]
)
def test_an_estimate_is_rounded_down(number, rounded):
    assert round_down(number) == rounded


def test_of_a_long_text_the_first_sentence_is_shown():
    assert first_sentence("Short. Text.") == "Short. Text."
    assert first_sentence("It is 3.5 m long. " + "More of it. " * 30) == "It is 3.5 m long."
    assert first_sentence("很长的一句话在这里。" + "还有更多的话。" * 40) == "很长的一句话在这里。"
