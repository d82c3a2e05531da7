"""Decomposed characters, next to Unicode's composition; then what verbs and training tell of them."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from tests.cli.conftest import tiny as tiny
from tests.train.conftest import Notes

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.run.run import Run
from polyhead.tokenizers.decomposed_text import DecomposedCounter, is_decomposed, warn_decomposed
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training

COMPOSED = ["Käse", "がぎ", "Việt", "한국"]


@pytest.mark.parametrize("text", COMPOSED)
def test_what_can_be_composed_is_decomposed(text: str) -> None:
    assert is_decomposed(unicodedata.normalize("NFD", text)) and not is_decomposed(text)
    # letters that no composed character exists for, and composed ones that Unicode excludes
    assert not any(map(is_decomposed, ["abc", "x\u0301", "\u0958", "\u0915\u093c", "Å"]))


@pytest.mark.parametrize("normalize", ["none", "nfc", "nfkc"])
def test_the_first_line_is_told_once(normalize: str) -> None:
    tokenizer = train_tokenizer(COMPOSED, Choice("bpe", normalize=normalize), 300)
    assert tokenizer.composes_characters == (normalize != "none")
    lines = ["Käse", "a", unicodedata.normalize("NFD", "Käse"), unicodedata.normalize("NFD", "がぎ")]
    told: list[str] = []
    assert list(warn_decomposed(lines, tokenizer, told.append)) == lines
    assert list(warn_decomposed([("a", lines[2])], tokenizer, told.append)) == [("a", lines[2])]
    assert [line[:35] for line in told] == (
        ["line 3 has decomposed characters (N", "line 1 has decomposed characters (N"]
        if normalize == "none"
        else []
    )


TYPED = {"decoder": ["score", "embed"], "encoder": ["classify", "embed"]}


@pytest.mark.parametrize("kind", TYPED)
def test_every_verb_tells_it(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = train_tokenizer(COMPOSED, Choice("bpe"), 300)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 32}
    labels = ("x", "y") if kind == "encoder" else ()
    model = build(ModelConfig(kind=kind, vocab_size=tokenizer.vocab_size, labels=labels, **sizes), seed=3)
    Run(model.eval(), tokenizer, GenerationConfig()).save(tmp_path / "run")
    (tmp_path / "a.txt").write_text("a\nKa\u0308se\nKa\u0308se\n")
    for verb in TYPED[kind]:
        assert main([verb, str(tmp_path / "run"), str(tmp_path / "a.txt")]) == 0
        told = "polyhead: line 2 has decomposed characters (NFD)"
        assert capsys.readouterr().err.count(told) == 1


def test_translation_tells_it(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("a\nKa\u0308se\nKa\u0308se\n")
    assert main(["translate", str(tiny), str(tmp_path / "a.txt")]) == 0
    assert capsys.readouterr().err.count("polyhead: line 2 has decomposed characters (NFD)") == 1


def test_training_tells_it_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Ka\u0308se und Käse\nBrot\n" * 8)
    tree = {
        "task": "language-model",
        "data": {"train": ["a.txt"], "valid": ["a.txt"], "max_len": 8, "root": str(tmp_path),
            "document_separator": "line"},
        "model": {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 8},
        "train": {"steps": 1, "max_tokens": 16},
        "out": str(tmp_path / "run"),
    }  # fmt: skip
    for normalize in ("none", "nfc"):
        notes, kind = Notes(), {"name": "bpe", "normalize": normalize}
        recipe = Recipe.model_validate(tree | {"tokenizer": {"kind": kind, "vocab_size": 300}})
        run, _ = run_training(recipe.model_copy(update={"out": tmp_path / normalize}), report=notes)
        told = [line for line in notes.said if "decomposed" in line]
        assert (run.tokenizer.decode(run.tokenizer.encode(["Ka\u0308se"])) == ["Käse"]) == (
            normalize == "nfc"
        )
        if normalize == "nfc":
            assert told == []
        else:
            assert told[0].startswith("8 of 16 training texts have decomposed characters (NFD)")
            assert "set tokenizer.kind.normalize to nfc" in told[0] and len(told) == 1


def test_texts_are_counted() -> None:
    counter = DecomposedCounter()
    assert counter.describe() == ""
    assert list(counter.count(["a", "Ka\u0308se", "ä"])) == ["a", "Ka\u0308se", "ä"]
    assert (counter.decomposed, counter.total) == (1, 3)
