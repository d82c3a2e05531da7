import csv
import json
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from tests.cli.cli_helpers import cli as cli
from tests.compare.compare_helpers import compare, read_rows

from polyhead.checkpoint.checkpoint import list_steps
from polyhead.cli import main
from polyhead.compare import run
from polyhead.compare.run import StopHandler, run_subprocess
from polyhead.compare.sweep import Budget
from polyhead.evaluate.metrics import KNOWN_METRICS, score_translations
from polyhead.run.load import load
from polyhead.viz.run_record import read_metrics

COMMAND = ["compare", "toy.yaml", "--budget", "2steps", "--vary", "norm=layernorm,rmsnorm"]
OUT = Path("runs/compare-toy")
CELL = "cells/norm=rmsnorm.s1"


@pytest.mark.usefixtures("no_baselines")
def test_rows_match_saved_runs(run_trials, capsys):
    rows = compare("toy", *COMMAND[4:], "--seeds", "2", budget="2steps")
    out = capsys.readouterr().out
    assert run_trials == ["base.s1", "base.s2", "norm=rmsnorm.s1", "norm=rmsnorm.s2"]
    cell = load(OUT / "cells/norm=rmsnorm.s2")
    train = cell.recipe.train
    assert (cell.config.norm.name, train.seed, train.steps) == ("rmsnorm", 2, 2)
    results = [json.loads((OUT / f"cells/norm=rmsnorm.s{s}/result.json").read_text()) for s in (1, 2)]
    sources, references = (Path(f"test.{side}").read_text().splitlines() for side in ("de", "en"))
    outputs = cell.translate(sources)
    assert results[1]["bleu"] == pytest.approx(
        score_translations(KNOWN_METRICS["bleu"], outputs, references, "en").value
    )
    assert results[1]["chrf"] == pytest.approx(
        score_translations(KNOWN_METRICS["chrf"], outputs, references).value
    )
    valid = [Path(f"valid.{side}").read_text().splitlines() for side in ("de", "en")]
    assert results[1]["ppl"] == pytest.approx(cell.perplexity(*valid), rel=1e-4)
    row = rows["norm=rmsnorm"]
    for name in ("loss", "chrf"):
        values = [result[name] for result in results]
        assert row[name] == pytest.approx(sum(values) / 2)
        assert row[f"{name}_spread"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
        assert row[f"{name}_interval"][0] <= row[name] <= row[f"{name}_interval"][1]
    assert row["parameters"] == sum(p.numel() for p in cell.model.parameters())
    assert row["cache_per_token"] == 128
    assert [point[0] for point in row["curves"][0]] == [1, 2]
    assert rows["base"]["loss_p"] is None and 0 < row["loss_p"] <= 1
    assert "norm=rmsnorm" in out and "-> base" in out
    lines = csv.DictReader((OUT / "compare.csv").read_text().splitlines())
    assert {line["name"]: float(line["loss"]) for line in lines} == {
        n: row["loss"] for n, row in rows.items()
    }


def test_finished_trials_are_reused_for_more_rows(run_trials):
    compare("toy", "--seeds", "2")
    result = (OUT / "cells/base.s1/result.json").read_bytes()
    compare("toy", "--vary", "norm_first=true,false", "--seeds", "2")
    assert run_trials == ["base.s1", "base.s2", "norm_first=true.s1", "norm_first=true.s2"]
    assert (OUT / "cells/base.s1/result.json").read_bytes() == result
    # tokenizer, training and validation text are stored once for all
    (tokenizer,) = (OUT / "shared").glob("tokenizer-*")
    assert len(list((OUT / "shared/tokens").glob("pairs-*"))) == 2
    cell = json.loads((OUT / "cells/base.s1/cell.json").read_text())
    assert Path(cell["tokenizer"]).is_relative_to(tokenizer)


def test_remaining_time_reads_every_result_once(monkeypatch):
    cells = ["a", "b", "c", "d"]
    reads = []
    monkeypatch.setattr(
        run, "finished_result", lambda cell: reads.append(cell) or ({} if cell == "b" else None)
    )
    plan = SimpleNamespace(budget=Budget("time", 60.0))
    texts = [text.partition("about ")[2] for _, text in run.iter_with_eta(cells, plan)]
    assert texts[0] == "2 min 00 s left for the others" and texts[-1] == ""
    assert reads == cells


@pytest.mark.usefixtures("run_trials")
def test_directory_of_another_comparison_is_an_error(workdir, cli):
    design = ("--design", "x: d_ff=8")
    compare("toy", *design)
    command = ["compare", "toy.yaml", "--budget", "1steps"]
    for changes, message in [
        (["--budget", "9steps"], "budget differs; choose another directory with --output"),
        (["model.d_ff=8", "train.clip_norm=2"], "model.d_ff, train.clip_norm differ; choose"),
        (["--match", "params"], "match differs; choose"),
    ]:
        message = f"runs/compare-toy has another comparison: {message}"
        assert cli.error(*command, *changes).startswith(message)
    message = "cells/x.s1 was created for another design named 'x'"
    assert message in cli.error(*command, "--design", "x: d_ff=16")
    (workdir / "valid.en").write_text((workdir / "valid.en").read_text().replace("dog", "hound"))
    assert "has another comparison: text differs" in cli.error(*command, *design)


@pytest.mark.slow
def test_interrupted_comparison_resumes_with_equal_weights(run_trials, monkeypatch, capsys):
    assert main([*COMMAND, "--out", "runs/whole"]) == 0
    run_here = run.run_subprocess

    def stop_in_first_step(directory, stop):
        if "rmsnorm" not in str(directory):
            return run_here(directory, stop)
        with monkeypatch.context() as patch:
            stopped = nullcontext(lambda: True)
            patch.setattr("polyhead.train.run_training.stop_on_signal", lambda report: stopped)
            assert run_here(directory, stop) == 0
        stop.is_requested = True
        return 130

    monkeypatch.setattr(run, "run_subprocess", stop_in_first_step)
    assert main(COMMAND) == 130
    out, err = capsys.readouterr()
    assert "norm=rmsnorm: not run yet" in out
    assert err.endswith("The same command continues from there.\n")
    assert list_steps(OUT / CELL / "checkpoints") == [1]
    monkeypatch.setattr(run, "run_subprocess", run_here)
    assert main(COMMAND) == 0
    resumed, whole = OUT / CELL, Path("runs/whole") / CELL
    assert (resumed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    resumed_rows, rows = (read_metrics(directory / "metrics.jsonl") for directory in (resumed, whole))
    assert [row.get("loss") for row in resumed_rows] == [row.get("loss") for row in rows]


def test_all_seeds_train_equally_many_steps(run_trials, monkeypatch):
    step_times = iter([0.5, 0.25])
    monkeypatch.setattr("polyhead.compare.trial.measure_step_time", lambda *args: next(step_times))
    compare("toy", "--seeds", "2", budget="1s")
    results = [json.loads((OUT / f"cells/base.s{s}/result.json").read_text()) for s in (1, 2)]
    assert [result["steps"] for result in results] == [2, 2]


def test_plan_option_shows_designs_without_training(run_trials, capsys):
    assert main([*COMMAND, "train.schedule.warmup=0", "--plan", "--vary", "n_heads=3"]) == 0
    first, *designs = capsys.readouterr().out.splitlines()
    assert first == "3 designs, 1 seed each, 2 steps, to runs/compare-toy"
    assert designs[:2] == ["  base", "  norm=rmsnorm  model.norm=rmsnorm"]
    assert designs[2].startswith("  n_heads=3     cannot be built: model: d_model (16) must be divisible by")
    assert run_trials == [] and len(designs) == 3


@pytest.mark.usefixtures("workdir")
def test_run_directory_or_file_is_not_overwritten(cli):
    assert main(["train", "toy.yaml", "train.steps=1", "out=runs/mine"]) == 0
    message = "runs/mine is a run directory; choose another one with --output"
    assert cli.error(*COMMAND, "--out", "runs/mine") == message
    assert cli.error(*COMMAND, "--output", "toy.yaml") == "--output toy.yaml is a file; give a directory"


def test_killed_trial_is_run_again(run_trials, monkeypatch):
    run_here, command = run.run_subprocess, [*COMMAND[:3], "1steps", *COMMAND[4:]]
    with monkeypatch.context() as patch:
        kill = {"base.s1": run_here, "norm=rmsnorm.s1": lambda directory, stop: -9}
        patch.setattr(run, "run_subprocess", lambda path, stop: kill[path.name](path, stop))
        assert main(command) == 0
    assert read_rows()["norm=rmsnorm"]["message"] == "killed by the system, most likely out of memory"
    assert main(command) == 0
    assert read_rows()["norm=rmsnorm"]["status"] == "done"
    assert run_trials == ["base.s1", "norm=rmsnorm.s1"]


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", -9)])
def test_exit_code_or_signal_of_trial(tmp_path, monkeypatch, script, code):
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\n[ "$*" = "-m polyhead compare --cell {tmp_path}" ] && {script}\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    stop = StopHandler()
    assert run_subprocess(tmp_path, stop) == code
    assert stop.child is None and not stop.is_requested


def test_stop_signal_is_forwarded_to_trial():
    stop = StopHandler()
    with pytest.raises(KeyboardInterrupt):
        stop(signal.SIGINT, None)
    stop.child = Mock()
    stop(signal.SIGINT, None)
    stop.child.send_signal.assert_called_once_with(signal.SIGTERM)
    assert stop.is_requested
