import json

import pytest

from polyhead.config.recipe import Recipe
from polyhead.run.run_examples import read_examples
from polyhead.train.validation_examples import save_validation_examples

TURNS = [{"role": "user", "content": "a dog ?"}, {"role": "assistant", "content": "dogs"}]
CHAT = json.dumps({"messages": [{"role": "system", "content": "s"}, *TURNS, *TURNS]})
PAIR_LINES = "a\tb\tlabel\na dog .\ttwo dogs .\tgood\n"
HALF = {"valid": None, "valid_fraction": 0.5}


@pytest.mark.parametrize(
    ("task", "name", "content", "data", "examples"),
    [
        ("translation", "valid.tsv", "a dog\tein hund\n\tkein\n", {}, [("a dog", "ein hund")]),
        ("classification", "valid.tsv", "text\tlabel\na dog .\tgood\n", {}, [("a dog .",)]),
        ("classification", "valid.tsv", PAIR_LINES, {"text": ["a", "b"]}, [("a dog .", "two dogs .")]),
        ("language-model", "valid.txt", "a dog .\n\ndogs\n", {}, [("a dog .",), ("dogs",)]),
        ("language-model", "valid.txt", "one dog .\nfour dogs .\nx\n", HALF, [("x",)]),
        ("masked-lm", "valid.txt", "d" * 501 + "\n" * 9, {}, [("d" * 500,)]),
        ("chat", "valid.jsonl", CHAT, {}, [("a dog ?",)]),
        ("masked-lm", "gone.txt", "a dog .\n", {}, []),
    ],
)
def test_first_validation_texts_are_kept(task, name, content, data, examples, tmp_path):
    (tmp_path / name.replace("gone", "valid")).write_text(content)
    data = {"root": tmp_path, "train": name, "valid": name} | data
    recipe = Recipe.model_validate({"task": task, "data": data, "train": {"steps": 1}, "out": tmp_path})
    save_validation_examples(recipe)
    assert read_examples(tmp_path) == examples
