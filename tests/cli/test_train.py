"""From a recipe to translations by the command line alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from polyhead.cli import main
from polyhead.run.recipe import load_recipe

RECIPE = """
data: {train: [train.de, train.en], valid: [valid.de, valid.en], target_lang: en}
tokenizer: {vocab_size: 300}
model: {d_model: 32, n_heads: 4, n_layers: 1, max_len: 64, dropout: 0}
train: {steps: 40, log_every: 20, eval_every: 40, lr: 1e-2, schedule: {name: constant, warmup: 5}}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with text and a recipe, to stand in."""
    for split in ("train", "valid"):
        (tmp_path / f"{split}.de").write_text("ein hund bellt .\nzwei hunde schlafen .\n" * 20)
        (tmp_path / f"{split}.en").write_text("a dog barks .\ntwo dogs are asleep .\n" * 20)
    (tmp_path / "dogs.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_train_eval_translate(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "dogs.yaml", "train.steps=60"]) == 0
    assert load_recipe("runs/dogs/recipe.yaml") == load_recipe("dogs.yaml", ["train.steps=60"])
    capsys.readouterr()

    assert main(["translate", "runs/dogs", "valid.de"]) == 0
    assert capsys.readouterr().out == (place / "valid.en").read_text()

    assert main(["eval", "runs/dogs", "--split", "valid", "--output", "out.en", "--limit", "4"]) == 0
    table = {line.split()[0]: float(line.split()[1]) for line in capsys.readouterr().out.splitlines()}
    assert (table["bleu"], table["chrf"], table["exact"]) == (pytest.approx(100, abs=1e-6), 100, 100)
    assert 1 < table["perplexity"] < 1.5
    assert (place / "out.en").read_text() == "a dog barks .\ntwo dogs are asleep .\n" * 2

    assert main(["eval", "runs/dogs"]) == 2
    assert capsys.readouterr().err.startswith("polyhead: this run's recipe has no test files; pass files: ")
    assert main(["eval", "runs/dogs", "valid.en", "valid.en", "--limit", "2"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dogs.yaml", "train.stps=3"], "train.stps: unknown key; did you mean 'steps'?"),
        (["dog.yaml"], "dog.yaml: no such file; did you mean 'dogs.yaml'?"),
        (
            ["dogs.yaml", "data.root=nowhere"],
            "data.root: no directory 'nowhere'; set it with data.root=...",
        ),
        (
            ["dogs.yaml", "data.train=[train.d, train.en]"],
            "data.train: no file 'train.d' in '.'; did you mean 'train.de'?",
        ),
        (
            ["dogs.yaml", "distill={teacher: nowhere}"],
            "distill.teacher: no run directory 'nowhere'; a run on the Hugging Face hub is named owner/name",
        ),
    ],
)
def test_a_mistake_is_answered_in_one_line(
    arguments: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments]) == 2
    assert capsys.readouterr().err == f"polyhead: {message}\n"


def test_resume_starts_where_no_run_exists_yet(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = ["train.steps=4", "train.eval_every=4", "train.save_every=2"]
    line = "has no checkpoint to resume from: starting at step 1\n"
    assert main(["train", "dogs.yaml", *steps, "out=plain"]) == 0
    assert line not in capsys.readouterr().err
    assert main(["train", "dogs.yaml", *steps, "out=resumed", "--resume"]) == 0
    assert capsys.readouterr().err.count(f"resumed {line}") == 1
    weights = [(place / out / "model.safetensors").read_bytes() for out in ("plain", "resumed")]
    assert weights[0] == weights[1]

    # a run that was killed before its first checkpoint
    shutil.rmtree(place / "resumed/checkpoints")
    (place / "resumed/model.safetensors").unlink()
    assert main(["train", "dogs.yaml", *steps, "out=resumed", "--resume"]) == 0
    assert capsys.readouterr().err.count(f"resumed {line}") == 1
    assert (place / "resumed/model.safetensors").read_bytes() == weights[0]

    assert main(["train", "dogs.yaml", *steps, "out=resumed", "--resume"]) == 0
    said = capsys.readouterr().err
    assert "resumed at step 4 of 4" in said
    assert line not in said

    (place / "resumed/recipe.yaml").unlink()
    assert main(["train", "dogs.yaml", *steps, "out=resumed", "--resume"]) == 2
    assert capsys.readouterr().err == (
        "polyhead: --resume: the run in resumed has lost its recipe.yaml; restore it, or start a new run "
        "with out=...\n"
    )


def test_resume_starts_no_run_over_other_files_or_with_settings_without_effect(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "mine").mkdir()
    (place / "mine/config.json").write_text("{}")
    assert main(["train", "dogs.yaml", "out=mine", "--resume"]) == 2
    assert "mine holds config.json, which does not belong to a run" in capsys.readouterr().err
    for resume in ([], ["--resume"]):
        assert main(["train", "dogs.yaml", "generation.embed_max_len=3", *resume]) == 2
        assert capsys.readouterr().err.startswith("polyhead: generation.embed_max_len has no effect on")


@pytest.mark.parametrize("name", ["texts/train.d", "texts/trai*.d"])
def test_the_nearest_file_is_told_with_its_folder(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "texts").mkdir()
    (place / "texts/train.de").write_text("ein hund bellt .\n")
    assert main(["train", "dogs.yaml", f"data.train=[{name}, train.en]"]) == 2
    said = f"data.train: no file '{name}' in '.'; did you mean 'texts/train.de'?"
    assert capsys.readouterr().err == f"polyhead: {said}\n"


def test_a_run_that_was_copied_goes_on_where_it_is_told(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["train.save_every=2", "train.eval_every=2"]
    assert main(["train", "dogs.yaml", "train.steps=2", *short]) == 0
    shutil.copytree("runs/dogs", "runs/copy")
    before = sorted(path.name for path in (place / "runs/dogs/checkpoints").iterdir())
    capsys.readouterr()

    assert main(["train", "runs/copy/recipe.yaml", "--resume", "train.steps=4"]) == 2
    assert capsys.readouterr().err == (
        "polyhead: --resume: runs/copy/recipe.yaml is in a run but has out: runs/dogs, another directory; "
        "to continue here set out=runs/copy, to continue there out=runs/dogs\n"
    )
    assert main(["train", "runs/copy/recipe.yaml", "--resume", "train.steps=4", "out=runs/copy"]) == 0
    assert sorted(path.name for path in (place / "runs/dogs/checkpoints").iterdir()) == before
    assert (place / "runs/copy/checkpoints/step-4").is_dir()
    assert main(["train", "runs/copy/recipe.yaml", "--resume", "train.steps=6"]) == 0
