"""Experiments from the command line to their files. Times are never looked at."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polyhead.cli import main
from polyhead.lab.registry import EXPERIMENTS, LabContext, describe_experiment
from polyhead.lab.result import Claim, ExperimentResult

ROOT = Path(__file__).parents[2]
NAMES = (
    "activations",
    "caches",
    "heads",
    "linear",
    "norms",
    "paging",
    "parallelism",
    "positions",
    "prenorm",
    "recurrence",
    "scaling",
    "tied-qkv",
)
LONGER = {"activations", "caches", "heads", "norms", "paging", "positions", "recurrence", "tied-qkv"}


def test_the_experiments_are_these():
    assert EXPERIMENTS.names() == sorted(NAMES)


def test_without_a_name_they_are_listed_a_line_each(capsys):
    assert main(["lab"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == EXPERIMENTS.names()
    assert all(len(line.split()) > 5 and len(line) < 120 for line in lines)


def test_an_unknown_name_is_answered_with_the_nearest(capsys):
    assert main(["lab", "prenrom"]) == 2
    err = capsys.readouterr().err
    assert "did you mean 'prenorm'?" in err
    assert "all, " in err


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> list[LabContext]:
    """A catalogue of two experiments that measure nothing."""
    EXPERIMENTS.names()
    monkeypatch.setattr(EXPERIMENTS, "_parts", {})
    seen: list[LabContext] = []

    @EXPERIMENTS.register("toy")
    def toy(bench: LabContext) -> ExperimentResult:
        """What a toy does."""
        seen.append(bench)
        bench.info("half of it is done")
        return ExperimentResult(
            "A toy", "Why?", [Claim("It works.", "Me, today", f"seed {bench.seed}", None)]
        )

    @EXPERIMENTS.register("yo-yo")
    def yoyo(bench: LabContext) -> ExperimentResult:
        """Up and down."""
        seen.append(bench)
        return ExperimentResult("A yo-yo", "Why?", [Claim("It goes up.", "Me", "it went down", False)])

    return seen


def test_a_run_prints_claim_source_measurement_and_verdict_and_writes_both_files(toy, tmp_path, capsys):
    assert main(["lab", "toy", "--out", str(tmp_path / "new" / "place"), "--seed", "7"]) == 0
    out, err = capsys.readouterr()
    for text in ("UNDECIDED", "It works.", "[Me, today]", "seed 7", "toy.html", "toy.json"):
        assert text in out
    assert "half of it is done" in err
    assert "quick" not in out
    found = json.loads((tmp_path / "new/place/toy.json").read_text())
    assert (found["name"], found["seed"], found["quick"]) == ("toy", 7, False)
    assert found["claims"][0]["verdict"] == "undecided"
    assert "polyhead lab toy --seed 7" in (tmp_path / "new/place/toy.html").read_text()


def test_a_claim_that_does_not_hold_is_no_failure(toy, tmp_path, capsys):
    assert main(["lab", "yo-yo", "--out", str(tmp_path)]) == 0
    assert "DID NOT HOLD" in capsys.readouterr().out


def test_all_runs_all(toy, tmp_path, capsys):
    assert main(["lab", "all", "--out", str(tmp_path), "--quick"]) == 0
    assert [bench.quick for bench in toy] == [True, True]
    assert {path.name for path in tmp_path.iterdir()} == {"toy.html", "toy.json", "yo-yo.html", "yo-yo.json"}
    assert capsys.readouterr().out.count("quick run") == 2


def test_a_place_that_is_a_file_is_a_mistake(toy, tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    assert main(["lab", "toy", "--out", str(tmp_path / "taken")]) == 2
    assert "is a file" in capsys.readouterr().err
    assert not toy  # and was found before anything was measured


def test_sizes_and_seeds_of_quick_and_full_runs():
    assert LabContext(5).make_seeds(3) == [5, 6, 7]
    assert LabContext(5, quick=True).make_seeds(3) == [5, 6]
    assert (LabContext().pick_size("full", "quick"), LabContext(quick=True).pick_size("full", "quick")) == (
        "full",
        "quick",
    )


def numbers(value: Any) -> Iterator[Any]:
    """Every number of a JSON tree, and every null that stands for one that is none."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("is_supported",):
                yield from numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner)
    elif value is None or isinstance(value, int | float):
        yield value


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LONGER else ()) for n in NAMES]
)
def test_a_quick_run_of_every_experiment_gives_numbers_and_files(name, tmp_path, capsys):
    assert main(["lab", name, "--out", str(tmp_path), "--quick"]) == 0
    found = json.loads((tmp_path / f"{name}.json").read_text())
    assert found["quick"] is True
    assert all(isinstance(n, int | float) and math.isfinite(n) for n in numbers(found))
    assert len(found["claims"]) >= 3
    assert all(
        claim["sentence"] and claim["source"] and re.search(r"\d", claim["measurement"])
        for claim in found["claims"]
    )
    assert {figure["kind"] for figure in found["figures"]} >= {"plot", "table"}
    html = (tmp_path / f"{name}.html").read_text()
    assert "Quick run" in html
    assert html.count("<svg") >= 2
    assert "nan" not in capsys.readouterr().out.lower().replace("finance", "")


def test_the_guide_of_the_lab_tells_of_every_experiment():
    page = (ROOT / "docs/lab.md").read_text()
    for name in NAMES:
        assert f"\n## {name}\n" in page
        assert f"polyhead lab {name}\n" in page
        assert describe_experiment(name)
