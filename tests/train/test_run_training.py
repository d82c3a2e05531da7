import json
import math
import re
import signal
import sys
import zlib
from unittest.mock import Mock

import pytest
import torch
from tests.train.conftest import (
    Notes,
    equal_tensors,
    small_recipe,
    user_error,
    with_data,
    with_train,
    without_clock,
    write_corpus,
)

import polyhead as ph
from polyhead.checkpoint import checkpoint
from polyhead.cli import main
from polyhead.run.recipe import load_recipe
from polyhead.train.ema import copy_into
from polyhead.train.resume import check_directory
from polyhead.train.run_training import run_training
from polyhead.train.tasks.translation import TranslationTask
from polyhead.viz.run_record import read_facts, read_metrics

pytestmark = pytest.mark.usefixtures("no_report")

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


def log_training(recipe) -> list[str]:
    notes = Notes()
    run_training(recipe, report=notes)
    return notes.lines


@pytest.fixture(scope="module")
def memorized_run(no_report, tmp_path_factory):
    directory = tmp_path_factory.mktemp("ten")
    for split in ("train", "valid"):
        (directory / f"{split}.de").write_text("".join(f"{line}\n" for line in TEN))
        (directory / f"{split}.en").write_text("".join(f"{line}\n" for line in TEN.values()))
    train = {"steps": 120, "max_tokens": 400, "accumulate": 1, "lr": 1e-2, "ema": None, "eval_bleu": True}
    intervals = {"log_every": 60, "eval_every": 120, "save_every": 120}
    model = {"d_model": 32, "dropout": 0.0, "d_ff": 64, "max_len": 64}
    generation = {"beam_size": 3, "max_length_ratio": 2.0, "max_length_extra": 20}
    sections = {"model": model, "generation": generation, "tokenizer": {"vocab_size": 300}}
    recipe, notes = small_recipe(directory, **train, **intervals, **sections), Notes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyhead.core.progress.INTERVAL", 0)
        run, outcome = run_training(recipe, report=notes)
    assert (outcome.status, outcome.step) == ("done", 120)
    return recipe.out, run, notes


@pytest.mark.acceptance("A13")
def test_ten_sentences_are_memorized_with_their_ends(memorized_run):
    run_dir, run, notes = memorized_run
    assert run.translate(list(TEN)) == list(TEN.values())
    assert run.translate(list(TEN), beam_size=1) == list(TEN.values())
    eos = run.tokenizer.eos_id
    for source, target in TEN.items():
        (best,) = run.hypotheses([source])[0]
        expected = run.tokenizer.encode([target])[0]
        assert best.tokens == expected  # shorter than the limit: it ends by the end token
        ids = torch.tensor([[run.tokenizer.bos_id, *expected]])
        with torch.inference_mode():
            logits = run.model(torch.tensor([[*run.tokenizer.encode([source])[0], eos]]), ids)
        assert int(logits[0, -1].argmax()) == eos
        assert float(logits.softmax(-1)[0, -1, eos]) > 0.8  # smoothing keeps it from 1
    assert notes.series("bleu", "valid")[-1] == pytest.approx(100)
    assert notes.series("chrf", "valid")[-1] == pytest.approx(100)
    assert read_facts(run_dir / "README.md")["valid bleu"].startswith(
        "100.00 ±0.00 (nrefs:1|bs:1000|seed:12345|case:mixed"
    )
    assert re.fullmatch(
        r"finished at step \d+: valid BLEU 100.00 \(baseline [\d.]+, .*\), chrF 100.00 \(baseline .*\)\n"
        "it beats the baseline",
        "\n".join(notes.lines[-3:-1]),
    )
    assert notes.lines[-4] == "evaluating: 100%"


@pytest.mark.acceptance("A15")
def test_run_directory_is_complete_and_loads(memorized_run):
    run_dir, run, _ = memorized_run
    files = "README.md baseline.json config.json examples.json generation_config.json manifest.json "
    files += "metrics.jsonl model.safetensors recipe.yaml tokenizer.json tokenizer_config.json "
    files += "checkpoints"  # and a report
    assert {path.name for path in run_dir.iterdir()} == {*files.split()}
    loaded_run = ph.load(run_dir)
    assert loaded_run.translate(list(TEN)) == run.translate(list(TEN))
    assert equal_tensors(dict(run.model.named_parameters()), dict(loaded_run.model.named_parameters()))
    model = loaded_run.model
    assert model.head.weight.data_ptr() == model.encoder_embedding.token.weight.data_ptr()
    assert (loaded_run.generation, loaded_run.recipe) == (run.generation, run.recipe)
    assert not loaded_run.model.training
    assert load_recipe(run_dir / "recipe.yaml") == run.recipe
    assert {row["split"] for row in read_metrics(run_dir / "metrics.jsonl")} == {"train", "valid"}
    card = (run_dir / "README.md").read_text()
    assert "| weights | checkpoint 120 |" in card
    table = [re.split(r"(?<!\\)\|", line)[1:-1] for line in card.splitlines() if line.startswith("|")]
    assert {len(cells) for cells in table} == {2}  # as GitHub counts cells: a third one would not be shown
    (bleu,) = [value for name, value in table if name.strip() == "valid bleu"]
    assert re.fullmatch(
        r" 100\.00 ±0\.00 \(nrefs:1\|bs:1000\|seed:12345\|case:mixed\|.*\|version:[\d.]+\) ",
        bleu.replace("\\|", "|"),
    )


def write_pairs(corpus_dir) -> list[tuple[str, str]]:
    sides = [(corpus_dir / f"train.{side}").read_text().splitlines() for side in ("de", "en")]
    pairs = list(zip(*sides, strict=True))
    (corpus_dir / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    return pairs


NOAM = {"name": "noam", "warmup": 2}
PAIRS = {"train": ["pairs.tsv"], "valid": ["pairs.tsv"], "source": 1, "target": 1}


@pytest.mark.parametrize(
    ("data", "train", "warning"),
    [
        ({}, {"lr": 1.0, "schedule": NOAM}, ""),
        (PAIRS, {}, "train, valid: source and target are the same text"),
        ({}, {"tokenizer": {"vocab_size": 900}}, "tokenizer: 314 tokens in "),
        ({}, {"schedule": "inverse_sqrt"}, "the warm-up (4,000 steps) is more than half of the 4 steps: "),
        ({}, {"lr": 1e-3, "schedule": NOAM}, "train.lr is 0.001, and schedule noam multiplies it by 1/√"),
    ],
)
def test_unsuitable_text_or_schedule_is_a_warning(data, train, warning, corpus_dir):
    write_pairs(corpus_dir)
    options = {"steps": 4, "schedule": {"name": "constant"}} | train
    lines = log_training(with_data(small_recipe(corpus_dir, **options), **data))
    signs = ("same text", "warm-up", "schedule noam", "; the text has no more, though vocab_size is 900")
    warnings = [line for line in lines if any(sign in line for sign in signs)]
    assert len(warnings) == bool(warning) and all(line.startswith(warning) for line in warnings)


@pytest.mark.parametrize(("lang", "is_warned"), [("en", True), ("tha_Thai", False), ("", False)])
def test_bleu_tokenizer_unfit_for_script_is_a_warning(lang, is_warned, corpus_dir, capsys):
    n_lines = len((corpus_dir / "valid.de").read_text().splitlines())
    (corpus_dir / "valid.en").write_text("หมาเห่า\n" * n_lines)
    recipe = with_data(small_recipe(corpus_dir, steps=1), target_lang=lang)
    warning = "(tok:13a) splits at spaces"
    assert any(warning in line for line in log_training(recipe)) is is_warned
    assert main(["eval", str(recipe.out), "--split", "valid"]) == 0
    streams = capsys.readouterr()
    assert (warning in streams.err) is is_warned
    assert ("tok:13a" in streams.out) is is_warned and ("tok:char" in streams.out) is not is_warned


def test_valid_fraction_holds_out_pairs(corpus_dir, capsys):
    pairs = write_pairs(corpus_dir)
    recipe = small_recipe(corpus_dir, steps=2)
    recipe = with_data(recipe, train=["pairs.tsv"], valid=None, valid_fraction=0.2)
    lines = log_training(recipe)
    n_valid = sum(zlib.crc32(source.encode()) < 0.2 * 2**32 for source, _ in pairs)
    n_train = len(pairs) - n_valid
    assert n_valid and n_train
    counts = [line.split(": ")[2] for line in lines if line.startswith(("train: pairs", "valid: pairs"))]
    assert counts == [f"{n:,} of {n:,} pairs" for n in (n_train, n_valid)]
    assert main(["eval", str(recipe.out), "--split", "valid"]) == 0
    assert f"pairs.tsv: {n_valid:,} of {n_valid:,} pairs" in capsys.readouterr().err
    assert main(["eval", str(recipe.out)]) == 2
    assert "has no test files" in capsys.readouterr().err


def test_signal_between_steps_saves_and_resumes(corpus_dir):
    class StopAtFive(Notes):
        def log_train(self, row):
            super().log_train(row)
            if row["step"] == 5:
                signal.raise_signal(signal.SIGTERM)

    recipe, notes = small_recipe(corpus_dir, steps=9, log_every=1), StopAtFive()
    handler = signal.getsignal(signal.SIGTERM)
    _, outcome = run_training(recipe, report=notes)
    assert (outcome.status, outcome.step) == ("interrupted", 5)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert notes.lines[-3].startswith("stopping after this step; interrupt again to stop immediately")
    command = f"polyhead train {recipe.out}/recipe.yaml --resume"
    assert notes.lines[-2] == f"saved at step 5; continue with: {command}"
    assert not (recipe.out / "model.safetensors").exists()
    assert ph.load(recipe.out).translate(["ein hund"])  # of the newest checkpoint
    _, outcome = run_training(load_recipe(recipe.out / "recipe.yaml"), resume=True, report=Notes())
    assert (outcome.status, outcome.step) == ("done", 9)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "function", ["polyhead.cli.train.load_recipe", "polyhead.train.tasks.translation.TranslationTask.open"]
)
def test_signal_before_first_step_interrupts(number, function, corpus_dir, capsys, monkeypatch):
    recipe = small_recipe(corpus_dir)
    (corpus_dir / "early.yaml").write_text(recipe.dump_yaml())
    signals_received = []
    # without a handler it would end the tests
    handler = signal.signal(signal.SIGTERM, lambda number, _: signals_received.append(number))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(function, lambda *_, **__: signal.raise_signal(number))
            assert main(["train", str(corpus_dir / "early.yaml")]) == 130
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert not signals_received
    assert capsys.readouterr().err.splitlines()[-1] == "polyhead: interrupted"
    assert not (recipe.out / "run.lock").exists()


@pytest.mark.parametrize(("number", "patience"), [(signal.SIGTERM, None), (signal.SIGINT, 1)])
def test_signal_in_final_evaluation_resumes_bit_for_bit(number, patience, corpus_dir, capsys, monkeypatch):
    early = {"patience": patience, "lr": 1e-9, "eval_every": 1, "ema": None} if patience else {}
    expected, cut = (small_recipe(corpus_dir, **{"steps": 6, "out": out, **early}) for out in ("all", "cut"))
    _, outcome = run_training(expected, report=Notes())
    assert outcome.status == ("stopped early" if patience else "done")
    (corpus_dir / "cut.yaml").write_text(cut.dump_yaml())
    handler = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(TranslationTask, "collect_facts", lambda *_, **__: signal.raise_signal(number))
        assert main(["train", str(corpus_dir / "cut.yaml")]) == 130
    assert signal.getsignal(number) is handler
    assert capsys.readouterr().err.splitlines()[-3:] == [
        "training is finished, the final evaluation is not",
        f"saved at step {outcome.step}; continue with: polyhead train {cut.out}/recipe.yaml --resume",
        f"report: {cut.out}/report.html",
    ]
    weights = (cut.out / "model.safetensors").read_bytes()  # written before anything else is measured
    assert weights == (expected.out / "model.safetensors").read_bytes()
    assert main(["train", str(cut.out / "recipe.yaml"), "--resume"]) == 0
    for name in ("model.safetensors", "README.md"):
        assert (cut.out / name).read_bytes() == (expected.out / name).read_bytes()
    rows = [without_clock(read_metrics(recipe.out / "metrics.jsonl")) for recipe in (expected, cut)]
    assert rows[0] == rows[1]


@pytest.mark.acceptance("A7")
def test_divergence_exits_with_code_2(corpus_dir, capsys):
    recipe = small_recipe(corpus_dir, lr=1e20, save_every=1, schedule={"name": "constant"}, ema=None)
    (corpus_dir / "wild.yaml").write_text(recipe.dump_yaml())
    assert main(["train", str(corpus_dir / "wild.yaml")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"^polyhead: .* at step \d+; (the last good checkpoint is|no good checkpoint)", line)
    for step in checkpoint.list_steps(recipe.out / "checkpoints"):
        weights = checkpoint.read_checkpoint(recipe.out / "checkpoints" / f"step-{step}").tensors["model"]
        assert all(torch.isfinite(w).all() for w in weights.values())
    assert not (recipe.out / "model.safetensors").exists()


@pytest.fixture(scope="module")
def finished(no_report, tmp_path_factory):
    directory = tmp_path_factory.mktemp("finished")
    write_corpus(directory)
    run_training(small_recipe(directory, steps=3), report=Notes())
    return directory


@pytest.mark.parametrize(
    ("changes", "resume", "message"),
    [
        ({"lr": 1e-4}, True, "--resume: train.lr differs from the run's own recipe; use "),
        ({"seed": 2, "accumulate": 1}, True, "--resume: train.accumulate, train.seed differ from the run's"),
        ({"model": {"d_ff": 64}}, True, "--resume: model.d_ff differs from"),
        ({"steps": 2}, True, "--resume: the run has finished 3 steps, more than 2; set at least 3"),
        ({}, False, "{out} already has a run; continue with --resume, or choose"),
    ],
)
def test_changed_or_second_run_in_directory_is_refused(changes, resume, message, finished):
    expected_recipe = (finished / "run/recipe.yaml").read_text()
    with user_error(f"^{re.escape(message.format(out=finished / 'run'))}"):
        run_training(small_recipe(finished, **{"steps": 3, **changes}), resume=resume, report=Notes())
    assert (finished / "run/recipe.yaml").read_text() == expected_recipe


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("data.max_len=20", "data.max_len"),
        ("task.mask=0.5", "task"),
        ("distill.temperature=3", "distill"),
        ("distill.teacher=[other]", "distill"),
        ("data.root=elsewhere", ""),
        ("generation.normalize=true", ""),
    ],
)
def test_resume_keeps_rows_and_losses(change, key, tmp_path):
    file = tmp_path / "recipe.yaml"
    data, distill = "data: {train: a.txt, valid: b.txt}", "distill: {teacher: [one]}"
    file.write_text(f"task: masked-lm\n{data}\ntrain: {{steps: 3}}\n{distill}\n")
    recipe = load_recipe(file, [f"out={tmp_path}", change])
    if not key:
        assert check_directory(recipe, resume=True) is not None
        return
    with user_error(f"^--resume: {key} differs from the run's own recipe"):
        check_directory(recipe, resume=True)


def test_resume_with_more_steps_unless_schedule_changes(corpus_dir):
    run_training(small_recipe(corpus_dir, steps=3), report=Notes())
    notes = Notes()
    _, outcome = run_training(small_recipe(corpus_dir, steps=6), resume=True, report=notes)
    assert outcome.step == 6
    assert "resumed at step 3 of 6" in notes.lines
    cosine = {"schedule": {"name": "cosine", "warmup": 1}, "out": "cosine"}
    run_training(small_recipe(corpus_dir, steps=3, **cosine), report=Notes())
    message = "started with 3 steps; with 6 the schedule 'cosine' would have given the 3 finished steps"
    with user_error(message):
        run_training(small_recipe(corpus_dir, steps=6, **cosine), resume=True, report=Notes())


@pytest.mark.acceptance("A14")
def test_resume_with_other_text_or_tokenizer_is_refused(corpus_dir, monkeypatch):
    recipe = small_recipe(corpus_dir, steps=2)
    run_training(recipe, report=Notes())
    (corpus_dir / "pairs.tsv").write_text("a\tb\n" * 9)
    changed_text = "differs from the text of the run (data.train, data.target changed); restore it"
    with user_error(re.escape(changed_text)):
        run_training(with_data(recipe, train=["pairs.tsv"], target=0), resume=True, report=Notes())
    text = (corpus_dir / "train.en").read_text()
    (corpus_dir / "train.en").write_text(text.replace("dog", "cow", 1))
    with (recipe.out / "metrics.jsonl").open("a") as file:
        file.write('{"split": "train", "step": 99}\n')
    metrics, board = (recipe.out / "metrics.jsonl").read_text(), Mock()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    with user_error("--resume: the train text differs from the text of the run; restore it"):
        run_training(with_train(recipe, tensorboard=True), resume=True, report=Notes())
    assert (recipe.out / "metrics.jsonl").read_text() == metrics and not board.SummaryWriter.called
    (corpus_dir / "train.en").write_text(text)
    run_training(small_recipe(corpus_dir, "other", steps=1, tokenizer={"vocab_size": 270}), report=Notes())
    (recipe.out / "tokenizer.json").write_bytes((corpus_dir / "other" / "tokenizer.json").read_bytes())
    with user_error(r"tokenizer\.json is not the tokenizer that "):
        run_training(recipe, resume=True, report=Notes())


@pytest.mark.parametrize("name", ["README.md", "target_tokenizer.json"])
def test_files_of_no_run_are_not_overwritten(name, corpus_dir):
    recipe = small_recipe(corpus_dir, "my run", steps=1)
    recipe.out.mkdir(parents=True)
    for file in (name, "notes.txt"):  # no run writes the second one
        (recipe.out / file).write_text("mine")
    message = f"{recipe.out} holds {name}, which does not belong to a run and would be overwritten"
    with user_error(re.escape(message)):
        run_training(recipe, report=Notes())
    assert sorted(p.name for p in recipe.out.iterdir()) == sorted([name, "notes.txt"])
    (recipe.out / name).unlink()
    line = f"report: {recipe.out}/report.html; next: polyhead translate '{recipe.out}' input.txt"
    assert log_training(recipe)[-1] == line
    with user_error(r"notes\.txt is a file; expected a directory"):
        run_training(recipe.model_copy(update={"out": recipe.out / "notes.txt"}), report=Notes())


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    "name", ["README.md", "metrics.jsonl", "baseline.json", "tracker.json", "checkpoints/latest"]
)
def test_directory_in_place_of_file_is_refused(name, resume, corpus_dir):
    """Before training, and not at its end, when it writes the file."""
    recipe = small_recipe(corpus_dir, "damaged", steps=1)
    (recipe.out / name).mkdir(parents=True)
    with user_error(f"^{re.escape(str(recipe.out / name))} is a directory; expected a file"):
        check_directory(recipe, resume=resume)


@pytest.mark.acceptance("A8")
def test_failed_start_leaves_no_files(corpus_dir):
    recipe = small_recipe(corpus_dir, steps=2)
    columns = [{"source": "de"}, {"target": "en"}, {"source": 1, "target": 0}]
    for data, message in (
        ({"test": ["test.de", "train.en"]}, "data.test: no file 'test.de'"),
        *((names, r"train.de \+ train.en are .*: remove data.source and data.target$") for names in columns),
    ):
        with user_error(message):
            run_training(with_data(recipe, **data), report=Notes())
        assert not recipe.out.exists()
    (corpus_dir / "test.tsv").write_text("de\ten\nein hund\ta dog\n")  # one split has columns
    TranslationTask.check(with_data(recipe, source="de", target="en", test=["test.tsv"]))
    with user_error("max_tokens is 3"):
        run_training(with_train(recipe, max_tokens=3), report=Notes())
    run, _ = run_training(small_recipe(corpus_dir, steps=2, tokenizer={"vocab_size": 266}), report=Notes())
    assert run.tokenizer.vocab_size == 266
    for side in ("de", "en"):
        (corpus_dir / f"valid.{side}").write_text("ein hund " * 10 + "\n")
    with user_error("max_tokens is 20, but row 1 alone has"):
        run_training(small_recipe(corpus_dir, "long", max_tokens=20, model={"max_len": 256}), report=Notes())


def test_final_weights_are_described_in_the_card(corpus_dir):
    recipe = small_recipe(corpus_dir, steps=2, average_checkpoints=2, keep=2, save_every=1)
    run, _ = run_training(recipe, report=Notes())
    first, last = (checkpoint.read_checkpoint(recipe.out / f"checkpoints/step-{n}").tensors for n in (1, 2))
    mean = {name: ((w.double() + last["model"][name]) / 2).float() for name, w in first["model"].items()}
    assert all(torch.equal(p, last["model"][name]) for name, p in run.model.named_parameters())
    sides = [(corpus_dir / f"valid.{side}").read_text().splitlines() for side in ("de", "en")]
    losses = []
    for tensors in (last["model"], last["ema"], mean):
        copy_into(run.model, tensors)
        losses.append(math.log(run.perplexity(*sides)))
    single, ema, average = losses
    assert single < min(ema, average)  # the first steps only improve
    candidates = f"EMA at step 2: {ema:.4f}; mean of the checkpoints 1, 2: {average:.4f}"
    card = (recipe.out / "README.md").read_text()
    assert f"| weights | checkpoint 2 (loss {single:.4f}; {candidates}) |" in card
    config = json.loads((recipe.out / "config.json").read_text())
    assert (config["model_type"], config["vocab_size"]) == ("polyhead", run.tokenizer.vocab_size)
