"""Tests of cli/train.py: train, evaluate, translate and resume; `mistakes.txt` has most messages."""

import shutil

import pytest

from polyhead.run.recipe import load_recipe

RECIPE = """
data: {train: [train.de, train.en], valid: [valid.de, valid.en], target_lang: en}
tokenizer: {vocab_size: 300}
model: {d_model: 32, n_heads: 4, n_layers: 1, max_len: 64, dropout: 0}
train: {steps: 40, log_every: 20, eval_every: 40, lr: 1e-2, schedule: {name: constant, warmup: 5}}
"""


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    for split in ("train", "valid"):
        (tmp_path / f"{split}.de").write_text("ein hund bellt .\nzwei hunde schlafen .\n" * 20)
        (tmp_path / f"{split}.en").write_text("a dog barks .\ntwo dogs are asleep .\n" * 20)
    (tmp_path / "dogs.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_trained_run_evaluates_and_translates(workdir, cli):
    cli("train", "dogs.yaml", "train.steps=60")
    assert load_recipe("runs/dogs/recipe.yaml") == load_recipe("dogs.yaml", ["train.steps=60"])
    assert cli("translate", "runs/dogs", "valid.de").out == (workdir / "valid.en").read_text()
    out = cli("eval", "runs/dogs", "--split", "valid", "--output", "out.en", "--limit", 4).out
    values = {line.split()[0]: float(line.split()[1]) for line in out.splitlines()}
    assert (values["bleu"], values["chrf"], values["exact"]) == (pytest.approx(100, abs=1e-6), 100, 100)
    assert 1 < values["perplexity"] < 1.5
    assert (workdir / "out.en").read_text() == "a dog barks .\ntwo dogs are asleep .\n" * 2
    assert cli.error("eval", "runs/dogs").startswith("this run's recipe has no test files; pass files: ")
    cli("eval", "runs/dogs", "valid.en", "valid.en", "--limit", 2)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.train=[train.d, train.en]", "data.train: no file 'train.d' in '.'; did you mean 'train.de'?"),
        ("distill={teacher: nowhere}", "distill.teacher: no run directory 'nowhere'; a run on the Hugging"),
        ("data.train=[texts/train.d, train.en]", "did you mean 'texts/train.de'?"),
        ("data.train=[texts/trai*.d, train.en]", "did you mean 'texts/train.de'?"),
        ("generation.embed_max_len=3", "generation.embed_max_len has no effect on"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--resume"]])
def test_invalid_override_is_refused(override, message, options, workdir, cli):
    (workdir / "texts").mkdir()
    (workdir / "texts/train.de").write_text("ein hund bellt .\n")
    assert message in cli.error("train", "dogs.yaml", override, *options)


def test_resume_without_a_checkpoint_starts_at_step_1(workdir, cli):
    command = ["train", "dogs.yaml", "train.steps=4", "train.eval_every=4", "train.save_every=2"]
    line = "has no checkpoint to resume from: starting at step 1\n"
    assert line not in cli(*command, "out=plain").err
    expected = (workdir / "plain/model.safetensors").read_bytes()
    command += ["out=resumed", "--resume"]
    assert cli(*command).err.count(f"resumed {line}") == 1
    assert (workdir / "resumed/model.safetensors").read_bytes() == expected

    # a run that was killed before its first checkpoint
    shutil.rmtree(workdir / "resumed/checkpoints")
    (workdir / "resumed/model.safetensors").unlink()
    assert cli(*command).err.count(f"resumed {line}") == 1
    assert (workdir / "resumed/model.safetensors").read_bytes() == expected
    err = cli(*command).err
    assert "resumed at step 4 of 4" in err and line not in err
    (workdir / "mine").mkdir()
    (workdir / "mine/config.json").write_text("{}")
    message = cli.error("train", "dogs.yaml", "out=mine", "--resume")
    assert "mine holds config.json, which does not belong to a run" in message
    (workdir / "resumed/recipe.yaml").unlink()
    message = "--resume: the run in resumed has lost its recipe.yaml; restore it, or start a new run "
    assert cli.error(*command) == f"{message}with out=..."


def test_copied_run_resumes_in_the_directory_of_out(workdir, cli):
    steps = ["train.steps=2", "train.eval_every=2", "train.save_every=2"]
    cli("train", "dogs.yaml", *steps)
    shutil.copytree("runs/dogs", "runs/copy")
    checkpoints = sorted((workdir / "runs/dogs/checkpoints").iterdir())
    command = ["train", "runs/copy/recipe.yaml", "--resume"]
    message = "--resume: runs/copy/recipe.yaml is in a run but has out: runs/dogs, another directory; to "
    message += "continue here set out=runs/copy, to continue there out=runs/dogs"
    assert cli.error(*command, "train.steps=4") == message
    cli(*command, "train.steps=4", "out=runs/copy")
    assert sorted((workdir / "runs/dogs/checkpoints").iterdir()) == checkpoints
    assert (workdir / "runs/copy/checkpoints/step-4").is_dir()
    cli(*command, "train.steps=6")
