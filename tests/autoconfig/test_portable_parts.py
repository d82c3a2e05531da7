"""``polyhead init --for``: what it proposes can be exported there, and says the same there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import polyhead as ph
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.export.targets import FORMAT_NAMES
from polyhead.run.recipe import load_recipe
from polyhead.run.run import Run

WORDS = ["the", "a", "red", "dog", "cat", "barks", "runs", "sleeps", "here", "there", "now"]
SMALL = [
    "model.d_model=16",
    "model.n_heads=2",
    "model.n_layers=1",
    "model.d_ff=32",
    "tokenizer.vocab_size=300",
    "train.steps=2",
    "train.max_tokens=128",
    "train.average_checkpoints=0",
    "data.max_len=32",
]
FILES = {
    "translation": ["t.en", "t.de"],
    "language-model": ["t.en"],
    "masked-lm": ["t.en"],
    "classification": ["t.tsv"],
}
CLASSES = {
    "translation": "AutoModelForSeq2SeqLM",
    "language-model": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "classification": "AutoModelForSequenceClassification",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with text of each kind, to stand in."""
    monkeypatch.chdir(tmp_path)
    rows = [
        " ".join(WORDS[(7 * i + j * j) % len(WORDS)] for j in range(3 + i % 5)) + f" {i}" for i in range(200)
    ]
    Path("t.en").write_text("".join(f"{row}\n" for row in rows))
    Path("t.de").write_text("".join(f"{row[::-1]}\n" for row in rows))
    Path("t.tsv").write_text(
        "text\tlabel\n" + "".join(f"{row}\t{'yes' if 'dog' in row else 'no'}\n" for row in rows)
    )


def words(task: str, target: str) -> list[str]:
    """What is typed for a recipe of that task."""
    return [*FILES[task], *([f"task={task}"] if task == "masked-lm" else []), "--for", target]


def logits(run: Run, model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of the run and of the exported model, for the same tokens."""
    tokens = torch.tensor([[7, 9, 30, 12, 40, 11]])
    with torch.no_grad():
        if run.kind == "encoder-decoder":
            return run.model(tokens, tokens), model(input_ids=tokens, decoder_input_ids=tokens).logits
        return run.model(tokens), model(input_ids=tokens).logits


@pytest.mark.parametrize("task", FILES)
def test_a_recipe_for_hugging_face_trains_exports_and_says_the_same_there(task):
    assert main(["init", *words(task, "hf"), *SMALL, "--output", "mine.yaml"]) == 0
    run = ph.train("mine.yaml", quiet=True)
    assert main(["export", "runs/mine", "out", "--to", "hf"]) == 0
    model = getattr(transformers, CLASSES[task]).from_pretrained("out").eval()
    ours, theirs = logits(run, model)
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", FILES)
@pytest.mark.parametrize("target", FORMAT_NAMES)
def test_a_recipe_for_a_format_fits_it_or_is_refused_in_one_line(task, target, capsys):
    code = main(["init", *words(task, target), "--output", "mine.yaml"])
    said = capsys.readouterr().err
    if target == "gguf" and task != "language-model":
        assert code == 2
        assert said.startswith(
            "polyhead: GGUF does not support this model: language models only; supported: "
        )
        return
    assert code == 0
    assert FORMAT_NAMES[target] in said.splitlines()[1].partition(";")[0]
    load_recipe("mine.yaml")


def test_a_key_that_stands_in_the_way_of_the_format_is_named(capsys):
    assert main(["init", *words("translation", "hf"), "model.position=t5"]) == 2
    assert "Hugging Face does not support this model: position is 't5'" in capsys.readouterr().err
    assert main(["init", *words("translation", "hff")]) == 2
    assert "unknown format 'hff'; did you mean 'hf'?" in capsys.readouterr().err


def test_from_python_the_recipe_is_the_one_that_the_verb_writes():
    found = ph.init_recipe("t.en", "t.de", "train.steps=9", target="hf", output="mine.yaml")
    assert main(["init", "t.en", "t.de", "train.steps=9", "--for", "hf", "--output", "other.yaml"]) == 0
    assert Path("mine.yaml").read_text().replace("mine", "other") == Path("other.yaml").read_text()
    assert load_recipe("mine.yaml") == found
    with pytest.raises(UserError, match=r"output mine.yaml already exists"):
        ph.init_recipe("t.en", output="mine.yaml")
