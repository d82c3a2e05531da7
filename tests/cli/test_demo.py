"""Tests of cli/demo.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.demo_run_helpers import small as small
from tests.cli.demo_run_helpers import weights

from polyhead.cli import main
from polyhead.core.i18n import set_language

pytest.importorskip("babel")

REPORT = Path("runs/demo/report.html")


def written(run: str = "runs/demo") -> int:
    """When the weights were written."""
    return (Path(run) / "model.safetensors").stat().st_mtime_ns


def test_the_demo_is_told_in_chinese(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(["--lang", "zh", "demo"]) == 0
    finally:
        set_language(None)
    printed = capsys.readouterr().out
    for line in (
        "Polyhead 演示：英语 → 中文",
        "一个小型 Transformer 在这台机器上从零开始学习翻译。",
        "训练  Ctrl-C 会保存，再次运行同一命令就接着训练",
        f"报告  {REPORT}",
        "        学习曲线、全部错误，以及每个注意力头看哪里",
        "接下来可以试",
    ):
        assert line in printed.splitlines()
    assert re.search(r"^文本  [\d,]+ 个句对，由 Unicode 的 CLDR 数据写成，例如$", printed, re.M)
    assert re.search(r"^  完全相同     0\.0 %  \d+ 个中有 0 个与参考译文完全相同$", printed, re.M)
    assert re.search(r"^ +\S+ +译文 +\S+", printed, re.M)


def test_a_finished_demo_is_used_again(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--translate", "in 3 days"]) == 0
    first = capsys.readouterr()
    assert "Exact match" in first.err
    before, report, learned = written(), REPORT.stat().st_mtime_ns, weights()

    assert main(["demo", "--translate", "in 3 days"]) == 0
    second = capsys.readouterr()
    assert second.out == first.out
    assert second.out.count("\n") == 1
    assert second.err == ""
    assert written() == before and REPORT.stat().st_mtime_ns == report

    assert main(["demo"]) == 0
    assert "reused; --again trains a new one" in capsys.readouterr().out
    assert written() == before

    assert main(["demo", "--again"]) == 0
    assert written() != before
    assert weights() == learned, "the same recipe gives the same weights"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source", "klingon"], "unknown locale 'klingon'"),
        (["--target", "chinese"], "unknown locale 'chinese'; did you mean 'zh'?"),
        (["--target", "en"], "source and target locale are both 'en'"),
        (["--translate", "  "], "--translate: expected text"),
        (["--out", "file"], "--out file is a file; give a directory"),
    ],
)
def test_mistakes_are_one_line(
    small: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Path("file").write_text("")
    assert main(["demo", *arguments]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"polyhead: {message}")
    assert told.count("\n") == 1
    assert not Path("runs").exists()


def test_a_run_of_another_pair_is_left_alone(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    capsys.readouterr()
    assert main(["demo", "--target", "de", "--out", "runs/demo", "--again"]) == 2
    assert capsys.readouterr().err.startswith(
        "polyhead: runs/demo has a demo from en to zh; choose another directory"
    )
    assert REPORT.is_file()
