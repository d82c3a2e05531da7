"""A language model from plain text: it learns, goes on to the same bits after SIGKILL, and goes on from a text."""

from __future__ import annotations

import io
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.conftest import Notes
from tests.train.test_resume import KILLED, Deadly, in_child, result

import polyhead as ph
from polyhead.cli import main
from polyhead.config import yaml_io
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE, TASK
from polyhead.generation.text_generation import TextDelta
from polyhead.train.run_training import run_training

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("unsynced")]

NAMES = ["anna", "bert", "carl", "dora"]
STEPS = 30


def recipe(place: Path, out: str, *, documents: str = "line", steps: int = STEPS, **changes: Any) -> Recipe:
    model = {
        "d_model": 24,
        "n_layers": 1,
        "n_heads": 2,
        "d_ff": 48,
        "dropout": 0.1,
        "max_len": 32,
        "norm_first": True,
    }
    train = {
        "steps": steps, "max_tokens": 256, "lr": 1e-2, "precision": "fp32", "ema": 0.9, "seed": 3, "log_every": 1,
        "eval_every": 10, "save_every": 7, "schedule": {"name": "cosine", "warmup": 5},
    }  # fmt: skip
    return Recipe.model_validate(
        {
            "task": changes.pop("task", "language-model"),
            "data": {"root": place, "train": "names.txt", "valid_share": 0.1, "documents": documents, "max_len": 16,
                     "cache": place / "cache"} | changes.pop("data", {}),
            "tokenizer": {"kind": "char"},
            "model": model | changes.pop("model", {}),
            "train": train | changes.pop("train", {}),
            "generation": changes.pop("generation", {"max_new_tokens": 40}),
            "out": place / out,
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two different names a line, in all orders alike."""
    directory = tmp_path_factory.mktemp("names")
    rng = np.random.default_rng(1)
    pairs = [rng.choice(NAMES, 2, replace=False) for _ in range(400)]
    (directory / "names.txt").write_text("".join(f"{a} and {b}\n" for a, b in pairs))
    return directory


@pytest.fixture(scope="module")
def learned(unsynced: None, place: Path) -> tuple[Path, Notes]:
    notes = Notes()
    train = {"max_tokens": 512, "log_every": 100, "eval_every": 100, "save_every": 100}
    made = recipe(
        place, "learned", steps=600, data={"max_len": 32}, model={"d_model": 32, "dropout": 0.0}, train=train
    )
    run_training(made, report=notes)
    return made.out, notes


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
    assert "generation.beam_size has no effect on what a language model says" in capsys.readouterr().err
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
        data={"train": ["names.txt", "more.txt"], "valid": "more.txt", "valid_share": 0.0},
    )
    run_training(many, report=notes)
    assert any(line.startswith("train: names.txt + more.txt: 2 documents") for line in notes.said)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": {"max_len": 64}},
            "data.max_len is 64, more than model.max_len=32: rows do not fit; give data.max_len=32",
        ),
        ({"train": {"max_tokens": 10}}, "train.max_tokens is 10, less than a row of data.max_len=16 tokens"),
        (
            {"data": {"valid_share": 0.0}},
            "data.valid is missing: name files to measure progress on, or give data.valid_share",
        ),
        ({"data": {"train": "nams.txt"}}, "data.train: no file 'nams.txt' in .*; did you mean 'names.txt'"),
        ({"data": {"train": "."}}, "is a folder; wanted a text file .there: .*names.txt"),
        ({"data": {"train": "/dev/null"}}, "/dev/null is not a regular file"),
        (
            {"train": {"metric": "bleu"}},
            "train.metric: task 'language-model' does not measure 'bleu'; it has loss",
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
            {"form": Choice("regex", pattern="[a-")},
            "generation.form: form 'regex': unclosed character class",
        ),
        ({"form": Choice("json", schema={"not": {}})}, "generation.form: form 'json': unimplemented keys"),
        ({"cache": Choice("state")}, "generation.cache: cache 'state' keeps a state"),
        (
            {"chat": Choice("chatml")},
            "generation.chat: this chat format needs the token '<|im_end|>', which the vocabulary has not",
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


def test_options_without_effect_are_refused(
    learned: tuple[Path, Notes], capsys: pytest.CaptureFixture[str]
) -> None:
    run = ph.load(learned[0])
    with pytest.raises(
        UserError,
        match="length_penalty has no effect on drawn text; these have: batch_tokens, cache, ends, form, frequency_penalty",
    ):
        run.generate(["a"], length_penalty=2.0)
    with pytest.raises(
        UserError, match="top_p has no effect on the likeliest texts; these have: batch_tokens, beam_size"
    ):
        run.generate(["a"], beam_size=3, top_p=0.5)
    with pytest.raises(UserError, match="seed has no effect on the likeliest texts"):
        run.generate(["a"], beam_size=3, seed=0)
    assert main(["generate", str(learned[0]), "a", "--beam-size", "3", "--seed", "0"]) == 2
    assert capsys.readouterr().err.startswith("polyhead: seed has no effect on the likeliest texts; ")
    with pytest.raises(UserError, match="n says how many texts there are, not n_best"):
        run.generate(["a"], beam_size=3, n_best=2)
    with pytest.raises(UserError, match=r"^n \(4\) is more than beam_size \(3\)"):
        run.generate(["a"], n=4, beam_size=3)
    with pytest.raises(UserError, match=r"^n is 1,000,000,000, wanted 10,000 at most"):
        run.generate(["a"], n=10**9)
    assert main(["generate", str(learned[0]), "a", "--n", "1000000000"]) == 2
    with pytest.raises(UserError, match="unknown key; did you mean 'temperature'"):
        run.generate(["a"], temprature=3)


def test_a_prompt_that_is_the_name_of_a_file_is_told_to_be_a_text(
    learned: tuple[Path, Notes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = str(learned[0].resolve())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "begin.txt").write_text("the \n")
    assert main(["generate", run, "begin.txt", "--max-new-tokens", "3"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("begin.txt")
    assert err == "polyhead: 'begin.txt' is read as a text; for the lines of the file: - < begin.txt\n"
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    assert main(["generate", run, "table.parquet", "--max-new-tokens", "3"]) == 0
    assert capsys.readouterr().err == "polyhead: 'table.parquet' is read as a text\n"
    assert main(["generate", run, "begin", "--max-new-tokens", "3"]) == 0
    assert capsys.readouterr().err == ""


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


def shell(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["generate", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_generate_in_the_shell(learned: tuple[Path, Notes], capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    out = learned[0]
    run = ph.load(out)
    (said,) = run.generate(["anna"], temperature=0.0)
    assert shell(capsys, out, "anna", "--temperature", "0")[:2] == (0, f"anna{said}\n")
    begun = run.generate([""], n=3, seed=4, temperature=0.7)[0]
    assert shell(capsys, out, "-n", "3", "--seed", "4", "--temperature", "0.7")[:2] == (
        0,
        "".join(f"{t}\n" for t in begun),
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"anna\nbert a\n")))
    both = run.generate(["anna", "bert a"], max_new_tokens=6, top_k=2, stop=["x"])
    wanted = "".join(f"{a}{b}\n" for a, b in zip(["anna", "bert a"], both, strict=True))
    assert shell(capsys, out, "-", "--max-new-tokens", "6", "--top-k", "2", "--stop", "x")[:2] == (0, wanted)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--top-p", "2"], "top_p: 2.0 is out of range: should be less than or equal to 1"),
        (
            ["a", "--temperature", "-1"],
            "temperature: -1.0 is out of range: should be greater than or equal to 0",
        ),
        (["a", "--stop", ""], "a stop string is empty; it would end every text before it begins"),
        (["a" * 40], "prompt 1 has 41 tokens; this model takes 32 at most: give its end"),
        (
            ["a", "--cache", "state"],
            "cache 'state' keeps a state, layers of this model keep keys and values: use cache 'static'",
        ),
        (
            ["a", "--cache", "stat"],
            f"cache: unknown cache 'stat'; did you mean 'state'? Known: {', '.join(CACHE.names())}",
        ),
    ],
)
def test_mistakes_are_told_in_one_line_before_anything_is_shown(learned, capsys, arguments, message) -> None:
    assert shell(capsys, learned[0], *arguments) == (2, "", f"polyhead: {message}\n")
