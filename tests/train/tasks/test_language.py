import math
import shutil

import pytest
from tests.train.conftest import Notes
from tests.train.tasks.language_helpers import NAMES, recipe
from tests.train.tasks.language_helpers import corpus_dir as corpus_dir
from tests.train.tasks.language_helpers import trained_run as trained_run

import polyhead as ph
from polyhead.cli import main
from polyhead.config import yaml_io
from polyhead.config.recipe import Recipe
from polyhead.generation.text_generation import TextDelta
from polyhead.train.run_training import run_training

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_report")]
PAIRS = [f"{a} and {b}" for a in NAMES for b in NAMES if a != b]


def test_probabilities_of_lines_are_learned(trained_run):
    """Twelve lines are equally likely: log 12 nats of each cannot be predicted."""
    run_dir, notes = trained_run
    losses = notes.series("loss", "valid")
    assert losses[-1] < losses[0]
    run = ph.load(run_dir)
    scores = [score.log_prob for score in run.score(PAIRS)]
    assert all(-1.6 * math.log(12) < score < -0.6 * math.log(12) for score in scores)
    assert sum(math.exp(score) for score in scores) > 0.8
    row = next(row for row in reversed(notes.rows) if row["split"] == "valid")
    assert row["ppl"] == pytest.approx(math.exp(row["loss"]))
    assert row["word_ppl"] == pytest.approx(math.exp(row["bits_per_char"] * math.log(2) * 14 / 4), rel=1e-6)
    assert "train: names.txt: 360 documents, 360 lines, 5,040 characters, 5,041 tokens" in notes.lines
    assert 'polyhead generate . "Once upon a time"' in (run_dir / "README.md").read_text()
    assert run.recipe.train.label_smoothing == 0.0


def test_older_recipe_with_ineffective_setting_loads_and_resumes(trained_run, tmp_path, capsys):
    older = tmp_path / "older"
    shutil.copytree(trained_run[0], older)
    tree = yaml_io.read_yaml(older / "recipe.yaml")
    tree["generation"]["beam_size"], tree["out"] = 3, str(older)
    (older / "recipe.yaml").write_text(yaml_io.dump_yaml(tree))
    assert ph.load(older).score(["anna and bert"]) == ph.load(trained_run[0]).score(["anna and bert"])
    assert main(["train", str(older / "recipe.yaml"), "train.steps=301", f"out={tmp_path / 'new'}"]) == 2
    assert "generation.beam_size has no effect on output of language models" in capsys.readouterr().err
    assert main(["train", str(older / "recipe.yaml"), "--resume"]) == 0


def test_generated_texts_are_lines_that_continue_prompts(trained_run):
    run = ph.load(trained_run[0])
    texts = run.generate([""] * 20, temperature=0.6, seed=1)
    assert sum(text in PAIRS for text in texts) >= 16
    assert len(set(texts)) > 3
    second = run.generate(["anna an"] * 2, temperature=0.6, seed=1)[1]
    assert run.generate(["", "anna an"], temperature=0.6, seed=1) == [texts[0], second]
    [samples] = run.generate(["carl and "], n=5, temperature=0.6)
    assert len(samples) == 5 and sum(text in NAMES for text in samples) >= 4
    assert run.generate(["anna and bert"], temperature=0.0) == [""]
    assert run.generate(["anna"], stop="d ", temperature=0.0) == [" an"]
    assert run.generate(["anna", "bert"], stop=["zz"], max_new_tokens=3, temperature=0.0) == [" an", " an"]
    deltas = list(run.stream(["dora"], temperature=0.0))
    assert all(isinstance(delta, TextDelta) for delta in deltas)
    assert [delta.is_last for delta in deltas].count(True) == 1
    assert "".join(delta.text for delta in deltas) == run.generate(["dora"], temperature=0.0)[0]


def test_one_long_text_and_several_files(corpus_dir):
    (corpus_dir / "more.txt").write_text("emil and fritz\n" * 20)
    files, notes = {"document_separator": "file"}, Notes()
    config = recipe(corpus_dir, "one", steps=4, data=files | {"test": "more.txt"})
    run, _ = run_training(config, report=notes)
    assert "| test word_ppl | " in (config.out / "README.md").read_text()
    first, second = (run.generate([text], temperature=0.0, max_new_tokens=5) for text in ("", "\n"))
    assert first == second  # a text starts like a line
    files |= {"train": ["names.txt", "more.txt"], "valid": "more.txt", "valid_fraction": 0.0}
    run_training(recipe(corpus_dir, "many", steps=2, data=files), report=notes)
    assert any(line.startswith("train: names.txt + more.txt: 2 documents") for line in notes.lines)
    learned = "warning: valid: 1 of 1 texts are also in the training text (first: text 1)"
    assert [line for line in notes.lines if "also in" in line] == [learned]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"max_len": 64}}, "data.max_len is 64, more than model.max_len=32: rows do not fit; set"),
        ({"train": {"max_tokens": 10}}, "train.max_tokens is 10, less than a row of data.max_len=16 tokens"),
        ({"data": {"valid_fraction": 0.0}}, "valid is missing: set it to validation files, or set"),
        ({"data": {"train": "nams.txt"}}, "data.train: no file 'nams.txt' in .*; did you mean 'names.txt'"),
        ({"data": {"train": ".."}}, "is a directory; expected a text file .it contains: "),
        ({"data": {"train": "/dev/null"}}, "/dev/null is not a regular file"),
        ({"train": {"best_metric": "bleu"}}, "'language-model' does not measure 'bleu'; it measures loss"),
        ({"train": {"eval_bleu": True}}, "train.eval_bleu: task 'language-model' does not measure 'bleu'"),
        ({"model": {"kind": "encoder"}}, "'language-model' trains a model of kind 'decoder', not 'encoder'"),
    ],
)
def test_unsuitable_recipe_is_refused(changes, message, corpus_dir):
    with pytest.raises(ValueError, match=message):
        run_training(recipe(corpus_dir, "refused", **changes), report=Notes())
    assert not (corpus_dir / "refused" / "checkpoints").exists()


@pytest.mark.parametrize(("task", "default"), [("translation", 0.1), ("language-model", 0.0)])
def test_default_label_smoothing_is_that_of_the_task(task, default):
    for train in ({}, {"label_smoothing": None}, {"label_smoothing": 0.3}):
        sections = {"data": {"train": ["a"], "valid": ["b"]}, "task": task, "train": {"steps": 1} | train}
        expected = train.get("label_smoothing") or default
        assert Recipe.model_validate(sections).train.label_smoothing == expected
