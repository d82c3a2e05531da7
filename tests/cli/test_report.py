"""``polyhead report``: the page of one run and of several, without their models."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe, write_texts
from tests.viz.test_training_report import Page

from polyhead.cli import main
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_facts, read_metrics


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


def test_several_runs_share_a_chart_and_show_what_differs(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(runs / "slow"), str(runs / "quick")]) == 0
    assert capsys.readouterr().out == "report: report.html\n"
    page = Page(Path("report.html").read_text())
    valid, train = page.data()[:2]
    for drawn, split in ((valid, "valid"), (train, "train")):
        assert len(drawn) == 2
        for curve, name in zip(drawn, ("slow", "quick"), strict=True):
            rows = [row for row in read_metrics(runs / name / "metrics.jsonl") if row["split"] == split]
            nats = [math.log(row["ppl"]) for row in rows]
            assert [x for x, _ in curve] == [row["step"] for row in rows]
            assert [y for _, y in curve] == pytest.approx(nats, rel=1e-3)
    words = [text for tag, text in page.texts if tag in ("th", "td")]
    at = words.index("train.lr")
    assert words[at : at + 3] == ["train.lr", "0.001", "0.01"]
    assert "train.steps" not in words and "model.d_model" not in words  # equal in both
    facts = [read_facts(runs / name / "README.md") for name in ("slow", "quick")]
    at = words.index("valid loss")
    assert words[at + 1 : at + 3] == [f["valid loss"] for f in facts]


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


def test_rows_without_nll_and_broken_values_are_read(runs: Path, tmp_path: Path) -> None:
    """As runs of before ``nll`` was logged wrote them."""
    old = tmp_path / "old"
    old.mkdir()
    rows = read_metrics(runs / "slow/metrics.jsonl")
    for row in rows:
        row.pop("nll", None)
    rows[0]["ppl"] = rows[0]["loss"] = None  # not finite
    (old / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["report", str(old)]) == 0
    train = Page((old / "report.html").read_text()).data()[0][0]
    kept = [row for row in rows[1:] if row["split"] == "train"]
    assert [y for _, y in train] == pytest.approx([math.log(row["ppl"]) for row in kept], rel=1e-3)


def test_mistakes_are_one_line(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = "wanted a directory that polyhead train wrote, with metrics.jsonl in it"
    for typed, said in (
        (["report", str(tmp_path / "none")], f"{tmp_path}/none is not there; {wanted}"),
        (["report", str(tmp_path)], f"{tmp_path} holds no training; {wanted}"),
        (["report", *[str(runs / "slow")] * 13, "--output", str(tmp_path / "x.html")],
         "13 runs; one chart shows at most 12: name fewer"),
        (["report", str(runs / "slow"), "--output", str(runs / "slow/metrics.jsonl")],
         f"--output {runs}/slow/metrics.jsonl is what is read here, and would be written over; name another file"),
    ):  # fmt: skip
        assert main(typed) == 2
        assert capsys.readouterr().err == f"polyhead: {said}\n"
