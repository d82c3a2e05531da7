"""Tests of cli/demo.py; `mistakes.txt` has its messages."""

import re
from pathlib import Path

import pytest
from tests.cli.demo_run_helpers import REPORT, weights
from tests.cli.demo_run_helpers import finished as finished
from tests.cli.demo_run_helpers import trained_demo as trained_demo
from tests.cli.demo_run_helpers import workdir as workdir

from polyhead.core.i18n import set_language

pytest.importorskip("babel")

WEIGHTS = Path("runs/demo/model.safetensors")


def test_output_in_chinese(workdir, cli):
    try:
        out = cli("--lang", "zh", "demo").out
    finally:
        set_language(None)
    for line in (
        "Polyhead 演示：英语 → 中文",
        "一个小型 Transformer 在这台机器上从零开始学习翻译。",
        "训练  Ctrl-C 会保存，再次运行同一命令就接着训练",
        f"报告  {REPORT}",
        "        学习曲线、全部错误，以及每个注意力头看哪里",
        "接下来可以试",
    ):
        assert line in out.splitlines()
    assert re.search(r"^文本  [\d,]+ 个句对，由 Unicode 的 CLDR 数据写成，例如$", out, re.M)
    assert re.search(r"^  完全相同     0\.0 %  \d+ 个中有 0 个与参考译文完全相同$", out, re.M)
    assert re.search(r"^ +\S+ +译文 +\S+", out, re.M)


def test_finished_demo_is_reused(finished, cli):
    times = [path.stat().st_mtime_ns for path in (WEIGHTS, REPORT)]
    out, err = cli("demo", "--translate", "in 3 days")
    assert out.count("\n") == 1 and err == ""
    assert [path.stat().st_mtime_ns for path in (WEIGHTS, REPORT)] == times
    assert "reused; --again trains a new one" in cli("demo").out
    assert WEIGHTS.stat().st_mtime_ns == times[0]


def test_again_trains_the_same_weights(finished, cli):
    old_weights, time = weights(), WEIGHTS.stat().st_mtime_ns
    first = cli("demo", "--translate", "in 3 days").out
    second = cli("demo", "--again", "--translate", "in 3 days")
    assert second.out == first and "Exact match" in second.err
    assert WEIGHTS.stat().st_mtime_ns != time and weights() == old_weights


def test_demo_of_another_pair_is_not_replaced(finished, cli):
    message = cli.error("demo", "--target", "de", "--out", "runs/demo", "--again")
    assert message.startswith("runs/demo has a demo from en to zh; choose another directory")
    assert REPORT.is_file()
