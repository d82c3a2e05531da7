"""``polyhead report``: the page of one run and of several, without their models."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe, write_texts
from tests.viz.html_pages import Page

from polyhead.cli import main
from polyhead.train.run_training import run_training


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trainings that differ in their learning rate."""
    place = tmp_path_factory.mktemp("place")
    write_texts(place)
    for name, lr in (("slow", 1e-3), ("quick", 1e-2)):
        run_training(task_recipe(place, "translation", place / "runs" / name, lr=lr), report=Notes())
    return place / "runs"


def test_the_page_of_a_run_is_the_one_that_its_training_wrote(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(runs / "slow"), "--output", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"report: {tmp_path / 'page.html'}\n"
    again, first = ((place).read_text() for place in (tmp_path / "page.html", runs / "slow/report.html"))
    assert Page(again).data() == Page(first).data() and Page(again).words() == Page(first).words()


def test_it_needs_no_model(runs: Path, tmp_path: Path) -> None:
    bare = tmp_path / "slow"
    bare.mkdir()
    for name in ("metrics.jsonl", "recipe.yaml", "report.json", "README.md"):
        shutil.copy(runs / "slow" / name, bare)
    assert main(["report", str(bare)]) == 0
    assert (
        Page((bare / "report.html").read_text()).data()
        == Page((runs / "slow/report.html").read_text()).data()
    )


def test_measures_of_the_card_appear_by_themselves(runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "slow"
    shutil.copytree(runs / "slow", copy, ignore=shutil.ignore_patterns("checkpoints", "data"))
    card = copy / "README.md"
    card.write_text(
        card.read_text().replace("| valid loss |", "| baseline \\| copied source | 1.25 |\n| valid loss |")
    )
    assert main(["report", str(copy)]) == 0
    words = [text for tag, text in Page((copy / "report.html").read_text()).texts if tag in ("dt", "dd")]
    assert words[words.index("baseline | copied source") + 1] == "1.25"


def test_mistakes_are_one_line(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = "expected a directory written by polyhead train, with metrics.jsonl"
    for typed, said in (
        (["report", str(tmp_path / "none")], f"{tmp_path}/none does not exist; {wanted}"),
        (["report", str(tmp_path)], f"{tmp_path} has no training; {wanted}"),
        (["report", *[str(runs / "slow")] * 13, "--output", str(tmp_path / "x.html")],
         "13 runs; a chart shows at most 12: pass fewer"),
        (["report", str(runs / "slow"), "--output", str(runs / "slow/metrics.jsonl")],
         f"--output {runs}/slow/metrics.jsonl is an input and would be overwritten; choose another file"),
    ):  # fmt: skip
        assert main(typed) == 2
        assert capsys.readouterr().err == f"polyhead: {said}\n"
