import unicodedata

import pytest
from tests.cli.conftest import tiny as tiny
from tests.train.conftest import Notes

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.run.run import Run
from polyhead.tokenizers.scripts import DecomposedCounter, is_decomposed, warn_decomposed
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training

TEXTS = ["Käse", "がぎ", "Việt", "한국"]
DECOMPOSED_TEXT = unicodedata.normalize("NFD", "Käse")
WARNING = "polyhead: line 2 has decomposed characters (NFD)"


def test_composable_characters_are_decomposed():
    assert all(is_decomposed(unicodedata.normalize("NFD", text)) for text in TEXTS)
    # letters without a composed character, and composed ones that Unicode excludes
    assert not any(map(is_decomposed, [*TEXTS, "abc", "x\u0301", "\u0958", "\u0915\u093c", "Å"]))
    counter = DecomposedCounter()
    assert counter.describe() == ""
    assert list(counter.count(["a", DECOMPOSED_TEXT, "ä"])) == ["a", DECOMPOSED_TEXT, "ä"]
    assert (counter.decomposed, counter.total) == (1, 3)


@pytest.mark.parametrize("normalize", ["none", "nfc", "nfkc"])
def test_first_decomposed_line_warns_once(normalize):
    tokenizer = train_tokenizer(TEXTS, Choice("bpe", normalize=normalize), 300)
    assert tokenizer.composes_characters == (normalize != "none")
    lines, warnings = ["Käse", "a", DECOMPOSED_TEXT, unicodedata.normalize("NFD", "がぎ")], []
    assert list(warn_decomposed(lines, tokenizer, warnings.append)) == lines
    assert list(warn_decomposed([("a", lines[2])], tokenizer, warnings.append)) == [("a", lines[2])]
    expected = [f"line {n} has decomposed characters (N" for n in (3, 1)] if normalize == "none" else []
    assert [line[:35] for line in warnings] == expected


VERBS = {"decoder": ["score", "embed"], "encoder": ["classify", "embed"], "encoder-decoder": ["translate"]}


@pytest.mark.parametrize("kind", VERBS)
def test_verbs_warn_once(kind, tmp_path, capsys):
    tokenizer = train_tokenizer(TEXTS, Choice("bpe"), 300)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 32}
    labels = ("x", "y") if kind == "encoder" else ()
    model = build(ModelConfig(kind=kind, vocab_size=tokenizer.vocab_size, labels=labels, **sizes), seed=3)
    Run(model.eval(), tokenizer, GenerationConfig()).save(tmp_path / "run")
    (tmp_path / "a.txt").write_text(f"a\n{DECOMPOSED_TEXT}\n{DECOMPOSED_TEXT}\n")
    for verb in VERBS[kind]:
        assert main([verb, str(tmp_path / "run"), str(tmp_path / "a.txt")]) == 0
        assert capsys.readouterr().err.count(WARNING) == 1


@pytest.mark.parametrize("normalize", ["none", "nfc"])
def test_training_suggests_normalization(normalize, tmp_path):
    (tmp_path / "a.txt").write_text(f"{DECOMPOSED_TEXT} und Käse\nBrot\n" * 8)
    files = {"train": ["a.txt"], "valid": ["a.txt"], "root": str(tmp_path)}
    recipe = {"task": "language-model", "data": {**files, "max_len": 8, "document_separator": "line"}}
    recipe |= {"tokenizer": {"kind": {"name": "bpe", "normalize": normalize}, "vocab_size": 300}}
    recipe |= {"model": {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 8}}
    recipe |= {"train": {"steps": 1, "max_tokens": 16}, "out": str(tmp_path / "run")}
    notes = Notes()
    run, _ = run_training(Recipe.model_validate(recipe), report=notes)
    warnings = [line for line in notes.lines if "decomposed" in line]
    if normalize == "nfc":
        assert run.tokenizer.decode(run.tokenizer.encode([DECOMPOSED_TEXT])) == ["Käse"]
        assert warnings == []
    else:
        assert run.tokenizer.decode(run.tokenizer.encode([DECOMPOSED_TEXT])) == [DECOMPOSED_TEXT]
        (warning,) = warnings
        assert warning.startswith("8 of 16 training texts have decomposed characters (NFD)")
        assert "set tokenizer.kind.normalize to nfc" in warning
