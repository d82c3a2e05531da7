"""Tests of serve/sample_inputs.py."""

from __future__ import annotations

from tests.serve.conftest import make

from polyhead import Choice
from polyhead.config.recipe import Recipe
from polyhead.serve.model_card import Card
from polyhead.serve.sample_inputs import everyday_samples, is_unspaced
from polyhead.tokenizers.train_tokenizer import train_tokenizer


def recipe(task, tmp_path, **data):
    return Recipe.model_validate(
        {
            "task": task,
            "data": {"root": str(tmp_path), "train": ["none.tsv"], "max_len": 40, **data},
            "train": {"steps": 1},
        }
    )


def test_held_out_text_is_found_where_no_file_is_named(tmp_path):
    (tmp_path / "all.txt").write_text("".join(f"dogs number {i} bark .\n" for i in range(100)))
    run = make("decoder")
    run.recipe = recipe("language-model", tmp_path, train=["all.txt"], valid_fraction=0.1)
    assert Card.from_run(run, use_own_samples=True).examples[0] == "dogs number 91 bark ."


def test_a_tokenizer_tells_the_language_that_it_writes_in_the_fewest_tokens():
    german = train_tokenizer(
        ["ich kaufe frisches brot in meinem garten .", "es regnet seit heute morgen ."] * 20,
        Choice("bpe"),
        400,
    )
    assert everyday_samples(german)[1] == ("Meine Schwester liest im Garten ein Buch.",)
    letters = train_tokenizer(["The train leaves at half past nine. My sister is reading a book in the "
                               "garden."
                               " It has been raining since this morning. Where can I buy fresh bread?"],
                               Choice("char"), 100)  # fmt: skip
    assert everyday_samples(letters)[0] == ("The train leaves at half past nine.",)


def test_sentences_of_a_language_are_found_by_codes_of_all_spellings():
    tokenizer = make("encoder").tokenizer
    chinese = everyday_samples(tokenizer, "zh")
    assert chinese == everyday_samples(tokenizer, "zh_CN") == everyday_samples(tokenizer, "zh-Hans")
    assert all(is_unspaced(text) for (text,) in chinese) and not is_unspaced("a dog 犬")
