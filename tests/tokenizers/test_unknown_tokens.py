"""Unknown tokens, next to the characters that a vocabulary lacks; then in training and in recipes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.train.conftest import Notes

import tokenizers
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.core.registry import TASK
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.tokenizers.unknown_tokens import UnknownTokens, count_unknown, count_unknown_ids
from tokenizers import models

TEXTS = ["abcab 狗", "cab ba 猫狗"]


def test_characters_that_the_vocabulary_lacks_are_counted() -> None:
    letters = train_tokenizer(["abc abc"], Choice("char"), 50)
    lacking = sum(c not in "abc " for text in TEXTS for c in text)
    assert count_unknown(TEXTS, letters) == UnknownTokens(lacking, sum(map(len, TEXTS)))
    ids = np.array([i for row in letters.encode(TEXTS) for i in row])
    assert count_unknown_ids(ids, letters) == count_unknown(TEXTS, letters)
    assert count_unknown(["abc"], letters).describe() == "0 of 3 tokens unknown (0 %)"
    assert count_unknown(TEXTS, letters).describe() == "3 of 16 tokens unknown (18.8 %)"


@pytest.mark.parametrize("name", ["bpe", "byte", "char", "unigram", "wordpiece"])
def test_what_is_unknown_depends_on_the_kind(name: str) -> None:
    t = train_tokenizer(["abc abc"] * 9, Choice(name), 400)
    assert t.unknown_id == (None if name in ("bpe", "byte") else t.unk_id)
    assert (count_unknown(TEXTS, t).unknown > 0) == (t.unknown_id is not None)


def test_bytes_are_known() -> None:
    t = train_tokenizer(["abc abc"] * 9, Choice("unigram", byte_fallback=True), 400)
    assert t.unknown_id is None and count_unknown(TEXTS, t).unknown == 0


def test_the_end_of_a_text_is_not_unknown() -> None:
    inner = tokenizers.Tokenizer(models.BPE({"<end>": 0, "a": 1}, [], unk_token="<end>"))
    assert Tokenizer(inner, {"eos_token": "<end>"}).unknown_id is None
    assert Tokenizer(inner, {"unk_token": "<end>"}).unknown_id == 0


TREES = {
    "translation": {"train": ["a.src", "a.tgt"]},
    "language-model": {"train": ["a.src"]},
    "masked-lm": {"train": ["a.src"], "document_separator": "line"},
    "classification": {"train": ["a.tsv"], "text": "text"},
    "chat": {"train": ["a.jsonl"]},
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [f"ab{'abc' * (i % 3)} 狗{chr(0x4E00 + i)}" for i in range(40)]
    Path("a.src").write_text("".join(f"{line}\n" for line in lines))
    Path("a.tgt").write_text("".join(f"{line[::-1]}\n" for line in lines))
    rows = "".join(f"{line}\t{'xy'[i % 2]}\n" for i, line in enumerate(lines))
    Path("a.tsv").write_text(f"text\tlabel\n{rows}")
    turns = [[{"role": "user", "content": line}, {"role": "assistant", "content": "ab"}] for line in lines]
    Path("a.jsonl").write_text("".join(json.dumps({"messages": turn}) + "\n" for turn in turns))
    return tmp_path


@pytest.mark.parametrize("task", TREES)
def test_training_tells_the_share_of_unknown_tokens(task: str, place: Path) -> None:
    tree = {
        "task": task,
        "data": {**TREES[task], "valid": TREES[task]["train"], "max_len": 64, "root": str(place)},
        "model": {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 64},
        "generation": {"chat": "plain"} if task == "chat" else {},
        "train": {"steps": 1},
        "out": str(place / "run"),
    }
    notes, recipe = Notes(), Recipe.model_validate(tree)
    letters = train_tokenizer(["User: Assistant: abcxy 狗\n"], Choice("char"), 50)
    opened = TASK.get(task).open(recipe, letters, notes)
    stores = opened.train.count_unknown(letters)
    known = [len(set(line) - set("abc 狗\n")) for line in Path("a.src").read_text().splitlines()]
    assert stores.unknown == sum(known) * (2 if task == "translation" else 1) > 0
    for split in ("train", "valid"):
        (line,) = [note for note in notes.said if note.startswith(f"{split}: ")]
        assert line.endswith(stores.describe())
    assert sum("the vocabulary does not fit" in note for note in notes.said) == 2
    fitting = train_tokenizer(factory_texts(recipe), Choice("bpe"), 300)
    notes = Notes()
    TASK.get(task).open(recipe, fitting, notes)
    assert "unknown" not in " ".join(notes.said)


def factory_texts(recipe: Recipe) -> list[str]:
    return list(TASK.get(recipe.task.name).iter_texts(recipe))


def test_recipes_tell_the_share_of_unknown_tokens(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["init", "a.src", "tokenizer.kind=char", "data.valid=a.src"]
    assert main([*typed, "tokenizer.vocab_size=10"]) == 0
    out, err = capsys.readouterr()
    text = Path("a.src").read_text()
    ranked = sorted(set(text), key=lambda c: (-text.count(c), c))
    unknown = UnknownTokens(sum(c not in ranked[:5] for c in text), len(text))
    assert f"polyhead: training text: {unknown.describe()}" in err and "does not fit this text" in err
    assert yaml.safe_load(out)["tokenizer"]["vocab_size"] == 10
    for given in ([], ["tokenizer.vocab_size=300"], ["tokenizer.kind=bpe", "tokenizer.vocab_size=300"]):
        assert main([*typed, *given]) == 0
        assert "unknown" not in capsys.readouterr().err
