"""From a recipe to a finished directory: what is learned, what is written, what is refused."""

from __future__ import annotations

import json
import math
import re
import signal
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.conftest import Notes, small_recipe

import polyhead as ph
from polyhead.checkpoint import checkpoint
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.run.recipe import load_recipe
from polyhead.train.ema import copy_into
from polyhead.train.resume import check_directory
from polyhead.train.run_training import run_training
from polyhead.train.tasks.translation import TranslationTask
from polyhead.viz.run_record import read_metrics

pytestmark = pytest.mark.usefixtures("unsynced")

TEN = {
    "ein hund bellt .": "a dog is barking .",
    "zwei katzen schlafen auf dem sofa .": "two cats sleep on the sofa .",
    "der mann liest ein buch .": "the man reads a book .",
    "eine frau singt .": "a woman sings .",
    "kinder spielen im park und lachen .": "children play in the park and laugh .",
    "es regnet heute .": "it is raining today .",
    "das auto ist rot .": "the car is red .",
    "wir trinken tee .": "we drink tea .",
    "sie schreibt einen langen brief an ihre mutter .": "she writes a long letter to her mother .",
    "guten morgen": "good morning",
}


@pytest.fixture(scope="module")
def learned(unsynced: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ph.Run, Notes]:
    """Ten sentences, learned by heart."""
    place = tmp_path_factory.mktemp("ten")
    for split in ("train", "valid"):
        (place / f"{split}.de").write_text("".join(f"{line}\n" for line in TEN))
        (place / f"{split}.en").write_text("".join(f"{line}\n" for line in TEN.values()))
    recipe = small_recipe(
        place, steps=120, max_tokens=400, accumulate=1, lr=1e-2, ema=None, log_every=40, eval_every=60,
        save_every=60,
        eval_bleu=True, model={"d_model": 32, "dropout": 0.0, "d_ff": 64, "max_len": 64},
        generation={"beam_size": 3, "max_length_ratio": 2.0, "max_length_extra": 20},
            tokenizer={"vocab_size": 300},
    )  # fmt: skip
    notes = Notes()
    run, outcome = run_training(recipe, report=notes)
    assert (outcome.status, outcome.step) == ("done", 120)
    return recipe.out, run, notes


@pytest.mark.acceptance("A13")
def test_ten_sentences_are_learned_by_heart_and_every_output_ends(
    learned: tuple[Path, ph.Run, Notes],
) -> None:
    _, run, notes = learned
    assert run.translate(list(TEN)) == list(TEN.values())
    assert run.translate(list(TEN), beam_size=1) == list(TEN.values())
    (eos,) = {run.tokenizer.eos_id}
    for source, target in TEN.items():
        (best,) = run.hypotheses([source])[0]
        wanted = run.tokenizer.encode([target])[0]
        assert best.tokens == wanted  # shorter than the limit of twice the source and 20: the end was said
        ids = torch.tensor([[run.tokenizer.bos_id, *wanted]])
        with torch.inference_mode():
            logits = run.model(torch.tensor([[*run.tokenizer.encode([source])[0], eos]]), ids)
        assert int(logits[0, -1].argmax()) == eos
        assert float(logits.softmax(-1)[0, -1, eos]) > 0.8  # smoothing keeps it from 1
    assert notes.series("bleu", "valid")[-1] == pytest.approx(100)
    assert notes.series("chrf", "valid")[-1] == pytest.approx(100)
    assert any(line.startswith("valid bleu: 100.00 (nrefs:1|case:mixed") for line in notes.said)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"train": ["train.de", "train.de"]}, ["train"]),
        ({"train": ["train.de", "./train.de"], "valid": ["valid.en", "valid.en"]}, ["train, valid"]),
        ({"train": ["pairs.tsv"], "valid": ["pairs.tsv"], "source": 1, "target": 1}, ["train, valid"]),
    ],
)
def test_one_text_on_both_sides_is_told(changes: dict[str, Any], told: list[str], corpus: Path) -> None:
    sides = [(corpus / f"train.{side}").read_text().splitlines() for side in ("de", "en")]
    (corpus / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in zip(*sides, strict=True)))
    recipe = small_recipe(corpus, steps=1)
    notes = Notes()
    run_training(recipe.model_copy(update={"data": recipe.data.model_copy(update=changes)}), report=notes)
    said = [line for line in notes.said if "same text" in line]
    assert said == [f"{which}: source and target are the same text" for which in told]


@pytest.mark.parametrize(("lang", "is_warned"), [("en", True), ("tha_Thai", False), ("", False)])
def test_bleu_that_does_not_suit_the_script_is_warned_of(
    corpus: Path, lang: str, is_warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    n_lines = len((corpus / "valid.de").read_text().splitlines())
    (corpus / "valid.en").write_text("หมาเห่า\n" * n_lines)
    recipe = small_recipe(corpus, steps=1)
    data = recipe.data.model_copy(update={"target_lang": lang})
    run_training(recipe.model_copy(update={"data": data}), report=(notes := Notes()))
    assert any("(tok:13a) splits at spaces" in line for line in notes.said) is is_warned
    assert main(["eval", str(recipe.out), "--split", "valid"]) == 0
    shown = capsys.readouterr()
    assert ("(tok:13a) splits at spaces" in shown.err) is is_warned
    assert ("tok:13a" in shown.out) is is_warned and ("tok:char" in shown.out) is not is_warned


def test_validation_may_be_a_share_of_the_pairs(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = [(corpus / f"train.{side}").read_text().splitlines() for side in ("de", "en")]
    pairs = list(zip(*sides, strict=True))
    (corpus / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    recipe = small_recipe(corpus, steps=2)
    data = recipe.data.model_copy(update={"train": ["pairs.tsv"], "valid": None, "valid_fraction": 0.2})
    run_training(recipe.model_copy(update={"data": data}), report=(notes := Notes()))
    held = [source for source, _ in pairs if zlib.crc32(source.encode()) < 0.2 * 2**32]
    assert 0 < len(held) < len(pairs)
    told = [line.split(": ")[2] for line in notes.said if line.startswith(("train: pairs", "valid: pairs"))]
    counts = len(pairs) - len(held), len(held)
    assert told == [f"{n:,} of {n:,} pairs" for n in counts]
    assert main(["eval", str(recipe.out), "--split", "valid"]) == 0
    assert f"pairs.tsv: {len(held):,} of {len(held):,} pairs" in capsys.readouterr().err
    assert main(["eval", str(recipe.out)]) == 2
    assert "has no test files" in capsys.readouterr().err


@pytest.mark.acceptance("A15")
def test_a_run_directory_holds_all_and_loads_as_it_was_trained(learned: tuple[Path, ph.Run, Notes]) -> None:
    out, run, _ = learned
    files = {"README.md", "baseline.json", "config.json", "generation_config.json", "manifest.json",
             "metrics.jsonl", "model.safetensors", "recipe.yaml",
             "tokenizer.json", "tokenizer_config.json", "checkpoints", "report.html",
             "report.json"}  # fmt: skip
    assert {path.name for path in out.iterdir()} == files
    loaded = ph.load(out)
    assert loaded.translate(list(TEN)) == run.translate(list(TEN))
    ours, theirs = dict(run.model.named_parameters()), dict(loaded.model.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert loaded.model.head.weight.data_ptr() == loaded.model.encoder_embedding.token.weight.data_ptr()
    assert (loaded.generation, loaded.recipe) == (run.generation, run.recipe)
    assert not loaded.model.training
    assert load_recipe(out / "recipe.yaml") == run.recipe
    assert {row["split"] for row in read_metrics(out / "metrics.jsonl")} == {"train", "valid"}
    card = (out / "README.md").read_text()
    assert "| weights | checkpoint 120 |" in card
    table = [re.split(r"(?<!\\)\|", line)[1:-1] for line in card.splitlines() if line.startswith("|")]
    assert {len(cells) for cells in table} == {
        2
    }  # as GitHub counts them: what a third one holds is not shown
    (bleu,) = [value for name, value in table if name.strip() == "valid bleu"]
    assert re.fullmatch(r" 100\.00 \(nrefs:1\|case:mixed\|.*\|version:[\d.]+\) ", bleu.replace("\\|", "|"))


def test_a_warm_up_that_is_longer_than_the_run_is_told(corpus: Path) -> None:
    """That of the default schedule has 4,000 steps."""
    told = (
        "the warm-up ({} steps) is more than half of the 9 steps: train.lr is reached late or never; "
        "set train.schedule.warmup"
    )
    for schedule, lines in (("inverse_sqrt", [told.format("4,000")]), ({"name": "cosine", "warmup": 4}, [])):
        notes = Notes()
        run_training(small_recipe(corpus, f"warm-{len(lines)}", steps=9, schedule=schedule), report=notes)
        assert [line for line in notes.said if "warm-up" in line] == lines


def test_a_peak_given_to_a_schedule_that_wants_a_factor_is_told(corpus: Path) -> None:
    noam = {"name": "noam", "warmup": 2}
    for lr, told in (
        (0.001, ["train.lr is 0.001, and schedule noam multiplies it by 1/√d_model"]),
        (1.0, []),
    ):
        notes = Notes()
        run_training(small_recipe(corpus, f"factor-{lr}", steps=4, lr=lr, schedule=noam), report=notes)
        assert [line.split(":")[0] for line in notes.said if "schedule noam" in line] == told


def test_ctrl_c_and_the_return_are_the_same_run(corpus: Path) -> None:
    """The signal itself, between two steps of a run in this process."""

    class Impatient(Notes):
        def log_train(self, row: Any) -> None:
            super().log_train(row)
            if row["step"] == 5:
                signal.raise_signal(signal.SIGTERM)

    recipe, notes = small_recipe(corpus, steps=9, log_every=1), Impatient()
    before = signal.getsignal(signal.SIGTERM)
    _, outcome = run_training(recipe, report=notes)
    assert (outcome.status, outcome.step) == ("interrupted", 5)
    assert signal.getsignal(signal.SIGTERM) is before
    on = f"continue with: polyhead train {recipe.out}/recipe.yaml --resume"
    assert notes.said[-3:] == [
        "stopping after this step; interrupt again to stop immediately, without saving",
        f"saved at step 5; {on}",
        f"report: {recipe.out}/report.html",
    ]
    assert not (recipe.out / "model.safetensors").exists()
    assert ph.load(recipe.out).translate(["ein hund"])  # of the newest checkpoint
    _, outcome = run_training(load_recipe(recipe.out / "recipe.yaml"), resume=True, report=Notes())
    assert (outcome.status, outcome.step) == ("done", 9)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "during", ["polyhead.cli.train.load_recipe", "polyhead.train.tasks.translation.TranslationTask.open"]
)
def test_a_signal_before_the_first_step_ends_as_one_after_it(
    number: signal.Signals,
    during: str,
    corpus: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = small_recipe(corpus)
    (corpus / "early.yaml").write_text(recipe.dump_yaml())
    heard: list[int] = []
    # without a handler it would end the tests
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(during, lambda *_, **__: signal.raise_signal(number))
            assert main(["train", str(corpus / "early.yaml")]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not heard
    assert capsys.readouterr().err.splitlines()[-1] == "polyhead: interrupted"
    assert not (recipe.out / "run.lock").exists()


@pytest.mark.parametrize(("number", "patience"), [(signal.SIGTERM, None), (signal.SIGINT, 1)])
def test_a_signal_in_the_final_evaluation_loses_nothing(
    number: signal.Signals,
    patience: int | None,
    corpus: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The verb ends as an interrupted one, and going on gives the run that was never interrupted, bit for
    bit.
    """
    early: dict[str, Any] = (
        {"patience": patience, "lr": 1e-9, "eval_every": 1, "ema": None} if patience else {}
    )
    whole, cut = (small_recipe(corpus, **{"steps": 6, "out": name, **early}) for name in ("whole", "cut"))
    _, outcome = run_training(whole, report=Notes())
    assert outcome.status == ("stopped early" if patience else "done")
    (corpus / "cut.yaml").write_text(cut.dump_yaml())
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(TranslationTask, "collect_facts", lambda *_, **__: signal.raise_signal(number))
        assert main(["train", str(corpus / "cut.yaml")]) == 130
    assert signal.getsignal(number) is before
    said = capsys.readouterr().err.splitlines()
    on = f"continue with: polyhead train {cut.out}/recipe.yaml --resume"
    assert said[-3:] == [
        "training is finished, the final evaluation is not",
        f"saved at step {outcome.step}; {on}",
        f"report: {cut.out}/report.html",
    ]
    weights = (cut.out / "model.safetensors").read_bytes()  # there before anything else is measured
    assert weights == (whole.out / "model.safetensors").read_bytes()
    assert main(["train", str(cut.out / "recipe.yaml"), "--resume"]) == 0
    assert [(cut.out / name).read_bytes() for name in ("model.safetensors", "README.md")] == [
        (whole.out / name).read_bytes() for name in ("model.safetensors", "README.md")
    ]
    rows = [
        [
            {**row, "tokens_per_s": 0, "ms_per_step": 0, "seconds": 0}
            for row in read_metrics(r.out / "metrics.jsonl")
        ]
        for r in (whole, cut)
    ]
    assert rows[0] == rows[1]


@pytest.mark.acceptance("A7")
def test_a_rate_beyond_reason_ends_with_code_2_and_without_a_bad_checkpoint(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = small_recipe(corpus, lr=1e20, save_every=1, schedule={"name": "constant"}, ema=None)
    (corpus / "wild.yaml").write_text(recipe.dump_yaml())
    assert main(["train", str(corpus / "wild.yaml")]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"^polyhead: .* at step \d+; (the last good checkpoint is|no good checkpoint)", said)
    for step in checkpoint.list_steps(recipe.out / "checkpoints"):
        weights = checkpoint.read_checkpoint(recipe.out / "checkpoints" / f"step-{step}").tensors["model"]
        assert all(torch.isfinite(w).all() for w in weights.values())
    assert not (recipe.out / "model.safetensors").exists()


@pytest.mark.acceptance("A7")
def test_a_run_that_ends_before_it_is_found_to_have_diverged_is_no_success(corpus: Path) -> None:
    recipe = small_recipe(corpus, lr=1e20, steps=4, schedule={"name": "constant"}, ema=None)
    with pytest.raises(UserError, match=r"no finite loss on the validation text|the weights are not finite"):
        run_training(recipe, report=Notes())
    assert not (recipe.out / "model.safetensors").exists()


def begun(corpus: Path, **train: Any) -> Recipe:
    recipe = small_recipe(corpus, **{"steps": 4, **train})
    run_training(recipe, report=Notes())
    return recipe


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 1e-4}, "--resume: train.lr differs from the run's own recipe; use "),
        (
            {"seed": 2, "accumulate": 1},
            "--resume: train.accumulate, train.seed differ from the run's own recipe",
        ),
        ({"model": {"d_ff": 64}}, "--resume: model.d_ff differs from"),
    ],
)
def test_a_resumed_recipe_with_other_keys_is_refused(
    change: dict[str, Any], message: str, corpus: Path
) -> None:
    begun(corpus, steps=2)
    with pytest.raises(UserError, match=re.escape(message)):
        run_training(small_recipe(corpus, **{"steps": 2, **change}), resume=True, report=Notes())


def test_a_run_does_not_end_before_the_steps_that_it_has_done(corpus: Path) -> None:
    begun(corpus, steps=3)
    written = (corpus / "run/recipe.yaml").read_text()
    with pytest.raises(
        UserError, match=r"^--resume: the run has finished 3 steps, more than 2; set at least 3"
    ):
        run_training(small_recipe(corpus, steps=2), resume=True, report=Notes())
    assert (corpus / "run/recipe.yaml").read_text() == written


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("data.max_len=20", "data.max_len differs"),
        ("task.mask=0.5", "task differs"),
        ("distill.temperature=3", "distill differs"),
        ("distill.teacher=[other]", "distill differs"),
        ("data.root=elsewhere", ""),
        ("generation.normalize=true", ""),
    ],
)
def test_a_run_goes_on_with_the_rows_and_losses_it_began_with(change: str, key: str, tmp_path: Path) -> None:
    written = tmp_path / "recipe.yaml"
    written.write_text(
        "task: masked-lm\ndata: {train: a.txt, valid: b.txt}\ntrain: {steps: 3}\ndistill: {teacher: [one]}\n"
    )
    recipe = load_recipe(written, [f"out={tmp_path}", change])
    if not key:
        assert check_directory(recipe, resume=True) is not None
        return
    with pytest.raises(UserError, match=f"^--resume: {re.escape(key)} from the run's own recipe"):
        check_directory(recipe, resume=True)


def test_more_steps_continue_a_run_unless_they_would_change_its_past(corpus: Path) -> None:
    begun(corpus, steps=3)
    notes = Notes()
    _, outcome = run_training(small_recipe(corpus, steps=6), resume=True, report=notes)
    assert outcome.step == 6
    assert "resumed at step 3 of 6" in notes.said
    cosine = {"schedule": {"name": "cosine", "warmup": 1}, "out": "cosine"}
    begun(corpus, steps=3, **cosine)
    with pytest.raises(
        UserError,
        match=r"started with 3 steps; with 6 the schedule 'cosine' would have given the 3 "
        r"finished steps",
    ):
        run_training(small_recipe(corpus, **{"steps": 6, **cosine}), resume=True, report=Notes())


def edit_text(corpus: Path) -> None:
    path = corpus / "train.en"
    path.write_text(path.read_text().replace("dog", "cow", 1))


def edit_tokenizer(corpus: Path) -> None:
    other = small_recipe(corpus, "other", steps=1).model_copy()
    run_training(
        other.model_copy(update={"tokenizer": other.tokenizer.model_copy(update={"vocab_size": 270})}),
        report=Notes(),
    )
    (corpus / "run" / "tokenizer.json").write_bytes((corpus / "other" / "tokenizer.json").read_bytes())


@pytest.mark.acceptance("A14")
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (edit_text, "--resume: the train text differs from the text of the run; restore it"),
        (edit_tokenizer, "tokenizer.json is not the tokenizer that "),
    ],
)
def test_a_run_does_not_go_on_with_other_text_or_tokens(
    edit: Callable[[Path], None], message: str, corpus: Path
) -> None:
    recipe = begun(corpus, steps=2)
    edit(corpus)
    with pytest.raises(UserError, match=re.escape(message)):
        run_training(recipe, resume=True, report=Notes())


def test_a_text_that_is_read_in_another_way_is_refused_by_the_keys(corpus: Path) -> None:
    recipe = begun(corpus, steps=2)
    (corpus / "pairs.tsv").write_text("a\tb\n" * 9)
    data = recipe.data.model_copy(update={"train": ["pairs.tsv"], "target": 0})
    with pytest.raises(
        UserError,
        match=re.escape("differs from the text of the run (data.train, data.target changed); restore it"),
    ):
        run_training(recipe.model_copy(update={"data": data}), resume=True, report=Notes())


def test_a_finished_run_says_how_it_is_used(corpus: Path) -> None:
    notes, recipe = Notes(), small_recipe(corpus, "my run", steps=1)
    run_training(recipe, report=notes)
    assert notes.said[-2:] == [
        f"finished at step 1; next: polyhead translate '{recipe.out}' input.txt",
        f"report: {recipe.out}/report.html",
    ]


def test_a_directory_with_a_run_is_not_overwritten(corpus: Path) -> None:
    recipe = begun(corpus, steps=2)
    with pytest.raises(
        UserError, match=re.escape(f"{recipe.out} already has a run; continue with --resume, or choose")
    ):
        run_training(recipe, report=Notes())


@pytest.mark.parametrize("name", ["README.md", "target_tokenizer.json"])
def test_files_that_no_run_wrote_are_not_written_over(name: str, corpus: Path) -> None:
    recipe = small_recipe(corpus, steps=1)
    recipe.out.mkdir(parents=True)
    (recipe.out / "notes.txt").write_text("mine")  # nobody writes over that
    (recipe.out / name).write_text("mine")
    with pytest.raises(
        UserError,
        match=re.escape(
            f"{recipe.out} holds {name}, which does not belong to a run and would be overwritten"
        ),
    ):
        run_training(recipe, report=Notes())
    assert sorted(p.name for p in recipe.out.iterdir()) == sorted([name, "notes.txt"])
    (recipe.out / name).unlink()
    run_training(recipe, report=Notes())
    with pytest.raises(UserError, match=r"notes\.txt is a file; expected a directory"):
        run_training(recipe.model_copy(update={"out": recipe.out / "notes.txt"}), report=Notes())


def test_a_start_that_failed_leaves_nothing_that_a_new_one_would_take_over(corpus: Path) -> None:
    """A tokenizer of an attempt without a checkpoint is of that attempt's recipe, not of the next one's."""
    recipe = small_recipe(corpus, steps=2)
    with pytest.raises(UserError, match="max_tokens is 3"):
        run_training(small_recipe(corpus, steps=2, max_tokens=3), report=Notes())
    smaller = recipe.model_copy(update={"tokenizer": recipe.tokenizer.model_copy(update={"vocab_size": 266})})
    run, _ = run_training(smaller, report=Notes())
    assert run.tokenizer.vocab_size == 266


def test_files_that_are_missing_are_told_before_a_directory_is_made(corpus: Path) -> None:
    recipe = small_recipe(corpus)
    lacking = recipe.model_copy(
        update={"data": recipe.data.model_copy(update={"test": ["test.de", "train.en"]})}
    )
    with pytest.raises(UserError, match=r"data.test: no file 'test.de'"):
        run_training(lacking, report=Notes())
    assert not recipe.out.exists()


@pytest.mark.parametrize("columns", [{"source": "de"}, {"target": "en"}, {"source": 1, "target": 0}])
def test_columns_of_files_that_have_none_are_refused(corpus: Path, columns: dict[str, Any]) -> None:
    """Of a split in columns they are read, whatever the others are."""
    recipe = small_recipe(corpus)
    given = recipe.model_copy(update={"data": recipe.data.model_copy(update=columns)})
    with pytest.raises(UserError, match=r"train.de \+ train.en are .*: remove data.source and data.target$"):
        run_training(given, report=Notes())
    (corpus / "test.tsv").write_text("de\ten\nein hund\ta dog\n")
    TranslationTask.check(
        given.model_copy(update={"data": given.data.model_copy(update={"test": ["test.tsv"]})})
    )


@pytest.mark.acceptance("A8")
def test_validation_pairs_longer_than_a_batch_are_told_at_the_start(corpus: Path) -> None:
    for side in ("de", "en"):
        (corpus / f"valid.{side}").write_text("ein hund " * 10 + "\n")
    recipe = small_recipe(corpus, max_tokens=20, model={"max_len": 256})
    notes = Notes()
    with pytest.raises(UserError, match="max_tokens is 20, but row 0 alone has"):
        run_training(recipe, report=notes)
    assert notes.rows == []


def test_sentences_longer_than_the_model_are_skipped_and_counted(corpus: Path) -> None:
    for side in ("de", "en"):
        with (corpus / f"train.{side}").open("a") as file:
            file.write("hund " * 60 + "\n")
    notes = Notes()
    run_training(small_recipe(corpus, steps=1, max_tokens=400), report=notes)  # max_len 32
    assert "train: train.de + train.en: 40 of 41 pairs; skipped 1 overlong (first: line 41)" in notes.said


def test_the_end_of_a_run_is_written_in_its_config(corpus: Path) -> None:
    recipe = begun(corpus, steps=2, average_checkpoints=2, keep=2, save_every=1)
    saved = [
        checkpoint.read_checkpoint(recipe.out / "checkpoints" / f"step-{step}").tensors for step in (1, 2)
    ]
    first, last = (one["model"] for one in saved)
    mean = {name: ((tensor.double() + last[name]) / 2).float() for name, tensor in first.items()}
    trained = ph.load(recipe.out)
    kept = {name: p.detach().clone() for name, p in trained.model.named_parameters()}
    losses = []
    for tensors in (last, saved[1]["ema"], mean):
        copy_into(trained.model, tensors)
        sides = ((corpus / f"valid.{side}").read_text().splitlines() for side in ("de", "en"))
        losses.append(math.log(trained.perplexity(*sides)))
    single, ema, average = losses
    assert single < min(ema, average)  # the first steps only get better
    told = (
        f"checkpoint 2 (loss {single:.4f}; EMA at step 2: {ema:.4f}; mean of the checkpoints 1, 2: "
        f"{average:.4f})"
    )
    assert f"| weights | {told} |" in (recipe.out / "README.md").read_text()
    assert all(torch.equal(p, last[name]) for name, p in kept.items())
    config = json.loads((recipe.out / "config.json").read_text())
    assert (config["model_type"], config["vocab_size"]) == (
        "polyhead",
        ph.load(recipe.out).tokenizer.vocab_size,
    )
