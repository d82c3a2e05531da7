"""Whole comparisons, their cells in this process."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polyhead.checkpoint.checkpoint import list_steps
from polyhead.cli import main
from polyhead.compare import run
from polyhead.compare.budget import Budget
from polyhead.compare.subprocess_runner import StopHandler
from polyhead.evaluate.translation_metrics import bleu, chrf
from polyhead.run.load import load

COMMAND = ["compare", "toy.yaml", "--budget", "4steps", "--vary", "norm=layernorm,rmsnorm"]
OUT = Path("runs/compare-toy")


def rows() -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads((OUT / "compare.json").read_text())["rows"]}


@pytest.mark.usefixtures("place", "unjudged")
def test_cells_are_runs_and_rows_hold_what_they_measure(
    in_process: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, "--seeds", "2"]) == 0
    out = capsys.readouterr().out
    assert in_process == ["base.s1", "base.s2", "norm=rmsnorm.s1", "norm=rmsnorm.s2"]
    found = rows()
    cell = load(OUT / "cells/norm=rmsnorm.s2")
    assert cell.recipe is not None
    assert (cell.config.norm.name, cell.recipe.train.seed, cell.recipe.train.steps) == ("rmsnorm", 2, 4)
    sources, references = (Path(f"test.{side}").read_text().splitlines() for side in ("de", "en"))
    results = [json.loads((OUT / f"cells/norm=rmsnorm.s{s}/result.json").read_text()) for s in (1, 2)]
    outputs = cell.translate(sources)
    assert results[1]["bleu"] == pytest.approx(bleu(outputs, references, "en").value)
    assert results[1]["chrf"] == pytest.approx(chrf(outputs, references).value)
    valid = [Path(f"valid.{side}").read_text().splitlines() for side in ("de", "en")]
    assert results[1]["ppl"] == pytest.approx(cell.perplexity(*valid), rel=1e-4)
    row = found["norm=rmsnorm"]
    for name in ("loss", "chrf"):
        values = [result[name] for result in results]
        assert row[name] == pytest.approx(sum(values) / 2)
        assert row[f"{name}_spread"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
        assert row[f"{name}_interval"][0] <= row[name] <= row[f"{name}_interval"][1]
    assert row["parameters"] == sum(p.numel() for p in cell.model.parameters())
    assert row["cache_per_token"] == 128
    assert [point[0] for point in row["curves"][0]] == list(range(1, 5))
    assert found["base"]["loss_p"] is None
    assert 0 < row["loss_p"] <= 1
    assert "norm=rmsnorm" in out
    assert "-> base" in out
    table = list(csv.DictReader((OUT / "compare.csv").open()))
    assert {line["name"]: float(line["loss"]) for line in table} == {n: r["loss"] for n, r in found.items()}
    assert (OUT / "compare.html").is_file()


@pytest.mark.usefixtures("place")
def test_what_is_finished_is_not_run_again_and_rows_may_be_added(in_process: list[str]) -> None:
    command = ["compare", "toy.yaml", "--budget", "2steps"]
    assert main(command) == 0
    before = (OUT / "cells/base.s1/result.json").read_bytes()
    assert main([*command, "--vary", "norm_first=true,false", "--seeds", "2"]) == 0
    assert in_process == ["base.s1", "base.s2", "norm_first=true.s1", "norm_first=true.s2"]
    assert (OUT / "cells/base.s1/result.json").read_bytes() == before
    text = json.loads((OUT / "cells/base.s1/cell.json").read_text())
    assert len(set(Path(OUT / "shared").glob("tokenizer-*"))) == 1
    assert len(list((OUT / "shared/tokens").glob("pairs-*"))) == 2, (
        "training and validation text, once for all"
    )
    assert text["tokenizer"].startswith(str(OUT / "shared/tokenizer-"))


def test_what_is_left_is_told_and_every_result_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    monkeypatch.setattr(
        run, "finished_result", lambda cell: read.append(cell) or ({} if cell == "b" else None)
    )
    plan: Any = SimpleNamespace(budget=Budget("time", 60.0))
    cells: Any = ["a", "b", "c", "d"]
    told = [left.partition("about ")[2] for _, left in run.iter_with_eta(cells, plan)]
    assert told[0] == "2 min 00 s left for the others" and told[-1] == ""
    assert read == cells


@pytest.mark.usefixtures("place", "in_process")
def test_another_comparison_in_the_same_place_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "toy.yaml", "--budget", "1steps"]) == 0
    for changed, message in [
        (["--budget", "9steps"], "budget differs; choose another directory with --out"),
        (["train.lr=1e-3"], "train.lr differs; choose"),
        (["model.d_ff=8", "train.clip_norm=2"], "model.d_ff, train.clip_norm differ; choose"),
        (["--match", "params"], "match differs; choose"),
    ]:
        capsys.readouterr()
        assert main(["compare", "toy.yaml", "--budget", "1steps", *changed]) == 2
        assert f"polyhead: runs/compare-toy has another comparison: {message}" in capsys.readouterr().err


@pytest.mark.usefixtures("in_process")
def test_other_text_or_another_design_of_the_same_name_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", "toy.yaml", "--budget", "1steps", "--design"]
    assert main([*command, "x: d_ff=8"]) == 0
    capsys.readouterr()
    assert main([*command, "x: d_ff=16"]) == 2
    assert "cells/x.s1 was created for another design named 'x'" in capsys.readouterr().err
    (place / "valid.en").write_text((place / "valid.en").read_text().replace("dog", "hound"))
    assert main([*command, "x: d_ff=8"]) == 2
    assert "has another comparison: text differs" in capsys.readouterr().err
    assert main([*command, "x: d_ff=8", "--out", "runs/other"]) == 0


@pytest.mark.usefixtures("place")
def test_an_interrupted_comparison_goes_on_as_if_it_had_not_been(
    in_process: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, "--out", "runs/whole"]) == 0
    whole = run.run_subprocess

    def stopped(directory: Path, stop: StopHandler) -> int:
        if "rmsnorm" not in str(directory):
            return whole(directory, stop)
        with monkeypatch.context() as patch:
            patch.setattr("polyhead.train.run_training.stop_on_signal", at_once)
            assert whole(directory, stop) == 0
        stop.is_requested = True
        return 130

    monkeypatch.setattr(run, "run_subprocess", stopped)
    assert main(COMMAND) == 130
    said = capsys.readouterr()
    assert "norm=rmsnorm: not run yet" in said.out
    assert said.err.endswith("The same command continues from there.\n")
    assert list_steps(OUT / "cells/norm=rmsnorm.s1/checkpoints") == [1]
    monkeypatch.setattr(run, "run_subprocess", whole)
    assert main(COMMAND) == 0
    for name in ("model.safetensors", "metrics.jsonl"):
        ours, theirs = (path / "cells/norm=rmsnorm.s1" / name for path in (OUT, Path("runs/whole")))
        if name == "metrics.jsonl":
            losses = [
                [json.loads(line).get("loss") for line in path.read_text().splitlines()]
                for path in (ours, theirs)
            ]
            assert losses[0] == losses[1]
        else:
            assert ours.read_bytes() == theirs.read_bytes()


def at_once(say: object) -> Any:
    """A signal that comes during the first step."""
    from contextlib import nullcontext

    return nullcontext(lambda: True)


@pytest.mark.usefixtures("place")
def test_all_seeds_of_a_design_learn_equally_long(
    in_process: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = iter([0.1, 0.05])
    monkeypatch.setattr("polyhead.compare.step_budget.measure_step_time", lambda *given: next(speeds))
    assert main(["compare", "toy.yaml", "--budget", "1s", "--seeds", "2"]) == 0
    taken = [json.loads((OUT / f"cells/base.s{s}/result.json").read_text())["steps"] for s in (1, 2)]
    assert taken == [10, 10]


@pytest.mark.usefixtures("place")
def test_a_plan_is_shown_without_training(in_process: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "train.schedule.warmup=0", "--plan", "--vary", "n_heads=3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "3 designs, 1 seed each, 4 steps, to runs/compare-toy",
        "  base",
        "  norm=rmsnorm  model.norm=rmsnorm",
        "  n_heads=3     cannot be built: model: d_model (16) must be divisible by n_heads (3); the nearest "
        "is 15; or give head_dim",
    ]
    assert in_process == []


@pytest.mark.usefixtures("in_process")
def test_a_run_is_not_written_over(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "toy.yaml", "train.steps=1", "out=runs/mine"]) == 0
    capsys.readouterr()
    assert main([*COMMAND, "--out", "runs/mine"]) == 2
    assert (
        capsys.readouterr().err == "polyhead: runs/mine is a run directory; choose another one with --out\n"
    )
    assert main([*COMMAND, "--out", "toy.yaml"]) == 2
    assert capsys.readouterr().err == "polyhead: --out toy.yaml is a file; give a directory\n"
