"""A language model from plain text: it learns, goes on to the same bits after SIGKILL, and goes on from a
text.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.train.conftest import Notes
from tests.train.tasks.language_helpers import learned as learned
from tests.train.tasks.language_helpers import place as place
from tests.train.tasks.language_helpers import recipe, shell
from tests.train.test_resume import KILLED, Deadly, in_child, result

import polyhead as ph
from polyhead.cli import main
from polyhead.config import yaml_io
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.generation.text_generation import TextDelta
from polyhead.train.run_training import run_training

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("unsynced")]

NAMES = ["anna", "bert", "carl", "dora"]
STEPS = 30


def test_it_learns_what_there_is_to_learn(learned: tuple[Path, Notes]) -> None:
    """Twelve lines are equally likely: log 12 nats of each are chance, and the rest follows."""
    out, notes = learned
    losses = notes.series("loss", "valid")
    assert losses[-1] < losses[0]
    run = ph.load(out)
    scores = [score.log_prob for score in run.score([f"{a} and {b}" for a in NAMES for b in NAMES if a != b])]
    assert all(-1.6 * math.log(12) < score < -0.6 * math.log(12) for score in scores)
    assert sum(math.exp(score) for score in scores) > 0.8
    row = next(row for row in reversed(notes.rows) if row["split"] == "valid")
    assert row["ppl"] == pytest.approx(math.exp(row["loss"]))
    assert row["word_ppl"] == pytest.approx(math.exp(row["bits_per_char"] * math.log(2) * 14 / 4), rel=1e-6)
    assert "train: names.txt: 360 documents, 360 lines, 5,040 characters, 5,041 tokens" in notes.said
    assert 'polyhead generate . "Once upon a time"' in (out / "README.md").read_text()
    assert run.recipe is not None and run.recipe.train.label_smoothing == 0.0


def test_a_run_whose_recipe_has_a_setting_without_effect_is_opened_and_goes_on(
    learned: tuple[Path, Notes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """None begins with one today, but there are older runs."""
    older = tmp_path / "older"
    shutil.copytree(learned[0], older)
    tree = yaml_io.read_yaml(older / "recipe.yaml")
    tree["generation"]["beam_size"], tree["out"] = 3, str(older)
    (older / "recipe.yaml").write_text(yaml_io.dump_yaml(tree))
    assert ph.load(older).score(["anna and bert"]) == ph.load(learned[0]).score(["anna and bert"])
    assert main(["train", str(older / "recipe.yaml"), "train.steps=601", f"out={tmp_path / 'new'}"]) == 2
    assert "generation.beam_size has no effect on output of language models" in capsys.readouterr().err
    assert main(["train", str(older / "recipe.yaml"), "--resume"]) == 0


def test_what_it_says_are_whole_lines_that_follow_the_prompt(learned: tuple[Path, Notes]) -> None:
    run = ph.load(learned[0])
    begun = run.generate([""] * 20, temperature=0.6, seed=1)
    pairs = {f"{a} and {b}" for a in NAMES for b in NAMES if a != b}
    assert sum(text in pairs for text in begun) >= 16
    assert len(set(begun)) > 3
    assert run.generate(["", "anna an"], temperature=0.6, seed=1) == [
        begun[0],
        run.generate(["anna an"] * 2, temperature=0.6, seed=1)[1],
    ]
    [several] = run.generate(["carl and "], n=5, temperature=0.6)
    assert len(several) == 5 and sum(text in NAMES for text in several) >= 4
    assert run.generate(["anna and bert"], temperature=0.0) == [""]
    assert run.generate(["anna"], stop="d ", temperature=0.0) == [" an"]
    assert run.generate(["anna", "bert"], stop=["zz"], max_new_tokens=3, temperature=0.0) == [" an", " an"]
    pieces = list(run.stream(["dora"], temperature=0.0))
    assert (
        all(isinstance(piece, TextDelta) for piece in pieces)
        and [piece.is_last for piece in pieces].count(True) == 1
    )
    assert "".join(piece.text for piece in pieces) == run.generate(["dora"], temperature=0.0)[0]


def test_a_killed_run_ends_with_the_same_bits(place: Path) -> None:
    whole, killed = recipe(place, "whole"), recipe(place, "killed")
    assert in_child(lambda: run_training(whole, report=Notes())) == 0
    assert in_child(lambda: run_training(killed, report=Deadly(18))) == KILLED
    assert in_child(lambda: run_training(killed, resume=True, report=Notes())) == 0
    assert result(killed) == result(whole)


def test_one_long_text_and_several_files_are_learned_as_well(place: Path) -> None:
    (place / "more.txt").write_text("emil and fritz\n" * 20)
    one = recipe(place, "one", documents="file", steps=4, data={"test": "more.txt"})
    notes = Notes()
    run, _ = run_training(one, report=notes)
    assert any(line.startswith("test word_ppl: ") for line in notes.said)
    begun, line = (run.generate([text], temperature=0.0, max_new_tokens=5) for text in ("", "\n"))
    assert begun == line  # a text begins as a line does
    many = recipe(
        place,
        "many",
        documents="file",
        steps=2,
        data={"train": ["names.txt", "more.txt"], "valid": "more.txt", "valid_fraction": 0.0},
    )
    run_training(many, report=notes)
    assert any(line.startswith("train: names.txt + more.txt: 2 documents") for line in notes.said)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": {"max_len": 64}},
            "data.max_len is 64, more than model.max_len=32: rows do not fit; set data.max_len=32",
        ),
        ({"train": {"max_tokens": 10}}, "train.max_tokens is 10, less than a row of data.max_len=16 tokens"),
        (
            {"data": {"valid_fraction": 0.0}},
            "data.valid is missing: set it to validation files, or set data.valid_fraction",
        ),
        ({"data": {"train": "nams.txt"}}, "data.train: no file 'nams.txt' in .*; did you mean 'names.txt'"),
        ({"data": {"train": "."}}, "is a directory; expected a text file .it contains: .*names.txt"),
        ({"data": {"train": "/dev/null"}}, "/dev/null is not a regular file"),
        (
            {"train": {"best_metric": "bleu"}},
            "train.best_metric: task 'language-model' does not measure 'bleu'; it measures loss",
        ),
        ({"train": {"eval_bleu": True}}, "train.eval_bleu: task 'language-model' does not measure 'bleu'"),
        (
            {"model": {"kind": "encoder"}},
            "task 'language-model' trains a model of kind 'decoder', not 'encoder'",
        ),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_learned(
    place: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run_training(recipe(place, "refused", **changes), report=Notes())
    assert not (place / "refused" / "checkpoints").exists()


def test_rows_too_long_for_the_model_are_told_before_the_tokenizer_learns(place: Path) -> None:
    for name, kind in (
        ("language-model", "decoder"),
        ("masked-lm", "encoder"),
        ("denoising", "encoder-decoder"),
    ):
        refused = recipe(
            place, "refused", data={"max_len": 64}, model={"kind": kind}, task=name, generation={}
        )
        with pytest.raises(UserError, match=r"more than model\.max_len=32"):
            TASK.get(name).check(refused)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"grammar": Choice("regex", pattern="[a-")},
            "generation.grammar: grammar 'regex': unclosed character class",
        ),
        (
            {"grammar": Choice("json", schema={"not": {}})},
            "generation.grammar: grammar 'json': unimplemented keys",
        ),
        ({"cache": Choice("state")}, "generation.cache: cache 'state' stores a recurrent state"),
        (
            {"chat": Choice("chatml")},
            "generation.chat: this chat format needs the token '<|im_end|>', which is not in the vocabulary",
        ),
    ],
)
def test_what_texts_would_be_refused_for_is_told_before_anything_is_learned(
    place: Path, changes: dict[str, Choice], message: str
) -> None:
    given = recipe(place, "no-form")
    settings = given.generation.model_copy(update=changes)
    with pytest.raises(UserError) as refused:
        run_training(given.model_copy(update={"generation": settings}), report=Notes())
    assert str(refused.value).startswith(message)
    assert not list((place / "no-form").glob("**/*.safetensors"))


def test_label_smoothing_is_the_tasks_own_where_none_is_given() -> None:
    data = {"data": {"train": ["a"], "valid": ["b"]}}
    for task, wanted in (("translation", 0.1), ("language-model", 0.0)):
        for given, found in ((None, wanted), (0.3, 0.3)):
            train = {"steps": 1, "label_smoothing": given}
            assert (
                Recipe.model_validate({**data, "task": task, "train": train}).train.label_smoothing == found
            )
        assert (
            Recipe.model_validate({**data, "task": task, "train": {"steps": 1}}).train.label_smoothing
            == wanted
        )


def test_beams_give_the_likeliest_texts(
    learned: tuple[Path, Notes], capsys: pytest.CaptureFixture[str]
) -> None:
    """Best first, each no less likely than what greedy decoding says, and cut where a stop string begins."""
    run = ph.load(learned[0])
    prompts, options = ["the ", "a dog "], {"beam_size": 4, "max_new_tokens": 12}
    found, hypotheses = run.generate(prompts, n=3, **options), run.hypotheses(prompts, n_best=3, **options)
    greedy = run.hypotheses(prompts, beam_size=1, max_new_tokens=12)
    for texts, best, (likely,), begin in zip(
        found, hypotheses, greedy, run.tokenizer.encode(prompts), strict=True
    ):
        (known, *whole) = run.tokenizer.decode([begin, *([*begin, *h.tokens] for h in best)])
        assert [known + text for text in texts] == whole
        assert best[0].score >= likely.score - 1e-6
        assert [h.score for h in best] == sorted((h.score for h in best), reverse=True)
    assert run.generate(prompts, **options) == [texts[0] for texts in found]
    assert run.generate(prompts, beam_size=1, max_new_tokens=12) == run.generate(
        prompts, temperature=0, max_new_tokens=12
    )
    stop = found[0][0][3:5]
    assert run.generate(prompts[:1], stop=stop, **options) == [found[0][0][: found[0][0].index(stop)]]
    code, out, _ = shell(capsys, learned[0], "the ", "--beam-size", "4", "--max-new-tokens", "12")
    assert (code, out) == (0, f"the {found[0][0]}\n")
