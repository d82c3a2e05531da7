"""Tests of autoconfig/portable_parts.py: `polyhead init --for` proposes models that can be exported."""

from pathlib import Path

import pytest
import torch
import transformers

import polyhead as ph
from polyhead.core.errors import UserError
from polyhead.export.targets import FORMAT_NAMES
from polyhead.run.recipe import load_recipe

WORDS = ["the", "a", "red", "dog", "cat", "barks", "runs", "sleeps", "here", "there", "now"]
SMALL = (
    "model.d_model=16 model.n_heads=2 model.n_layers=1 model.d_ff=32 tokenizer.vocab_size=300 data.max_len=32"
)
SMALL += " train.steps=2 train.max_tokens=128 train.average_checkpoints=0"
FILES = {"translation": ["t.en", "t.de"], "language-model": ["t.en"]}
FILES |= {"masked-lm": ["t.en", "task=masked-lm"], "classification": ["t.tsv"]}
NAMES = ("Seq2SeqLM", "CausalLM", "MaskedLM", "SequenceClassification")
CLASSES = {task: f"AutoModelFor{name}" for task, name in zip(FILES, NAMES, strict=True)}


@pytest.fixture(autouse=True)
def workdir(tmp_path, monkeypatch):
    """A working directory with text of each kind."""
    monkeypatch.chdir(tmp_path)
    counts = ((i, 3 + i % 5) for i in range(200))
    rows = [" ".join(WORDS[(7 * i + j * j) % len(WORDS)] for j in range(n)) + f" {i}" for i, n in counts]
    Path("t.en").write_text("".join(f"{row}\n" for row in rows))
    Path("t.de").write_text("".join(f"{row[::-1]}\n" for row in rows))
    labelled_rows = "".join(f"{row}\t{'yes' if 'dog' in row else 'no'}\n" for row in rows)
    Path("t.tsv").write_text(f"text\tlabel\n{labelled_rows}")


@pytest.mark.parametrize(
    "task", [*FILES][:2] + [pytest.param(t, marks=pytest.mark.slow) for t in [*FILES][2:]]
)
def test_hugging_face_recipe_trains_and_exports_equal_logits(task, cli):
    cli("init", *FILES[task], "--for", "hf", *SMALL.split(), "--output", "mine.yaml")
    run = ph.train("mine.yaml", quiet=True)
    cli("export", "runs/mine", "out", "--to", "hf")
    model = getattr(transformers, CLASSES[task]).from_pretrained("out").eval()
    tokens = torch.tensor([[7, 9, 30, 12, 40, 11]])
    target = {"decoder_input_ids": tokens} if task == "translation" else {}
    with torch.no_grad():
        actual = model(input_ids=tokens, **target).logits
        expected = run.model(tokens, *target.values())
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", FILES)
@pytest.mark.parametrize("target", FORMAT_NAMES)
def test_recipe_for_format_fits_or_is_refused(task, target, cli):
    command = ["init", *FILES[task], "--for", target, "--output", "mine.yaml"]
    if target == "gguf" and task != "language-model":
        message = "GGUF does not support this model: language models only; supported: "
        assert cli.error(*command).startswith(message)
    else:
        assert FORMAT_NAMES[target] in cli(*command).err.splitlines()[1].partition(";")[0]
        load_recipe("mine.yaml")
    message = "Hugging Face does not support this model: position is 't5'"
    assert message in cli.error("init", "t.en", "t.de", "--for", "hf", "model.position=t5")
    assert "unknown format 'hff'; did you mean 'hf'?" in cli.error("init", "t.en", "t.de", "--for", "hff")


def test_init_recipe_writes_the_recipe_of_the_verb(cli):
    recipe = ph.init_recipe("t.en", "t.de", "train.steps=9", target="hf", output="mine.yaml")
    cli("init", "t.en", "t.de", "train.steps=9", "--for", "hf", "--output", "other.yaml")
    assert Path("mine.yaml").read_text().replace("mine", "other") == Path("other.yaml").read_text()
    assert load_recipe("mine.yaml") == recipe
    with pytest.raises(UserError, match=r"output mine.yaml already exists"):
        ph.init_recipe("t.en", output="mine.yaml")
