"""The pieces of a report: groups, marks, speeds, and that all of its text has a Chinese translation."""

import ast
import re
from pathlib import Path

import pytest

import polyhead
from polyhead.core.i18n import load_catalog
from polyhead.viz import run_page
from polyhead.viz.run_page import _METRIC_NAMES, STATE_TITLES, add_learning_speed
from polyhead.viz.training_report import SMALL_CHARTS

ROOT = Path(polyhead.__file__).parent
PAGES = ("viz/run_page.py", "viz/runs_page.py", "viz/samples_section.py", "serve/http/run_pages.py",
         "train/report.py", "cli/report.py")  # fmt: skip


def literals(path, *functions):
    """The first argument of every call of these functions, where it is a literal."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in functions]
    return {
        call.args[0].value
        for call in named
        if call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    }


def test_every_text_of_the_pages_is_in_the_chinese_catalog():
    texts = set().union(*(literals(ROOT / name, "tr") for name in PAGES))
    texts |= {run_page.LOSS_HELP, *STATE_TITLES.values(), *_METRIC_NAMES.values(), *SMALL_CHARTS.values()}
    texts |= set(re.findall(r'\bt\("([^"]+)"', (ROOT / "viz/report.js").read_text()))
    for module in (ROOT / "train/samples").glob("*.py"):
        tree = ast.parse(module.read_text())
        texts |= literals(module, "break_down")
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            given = {word.arg: word.value for word in call.keywords}
            texts |= {v.value for k, v in given.items() if k == "about" and isinstance(v, ast.Constant)}
            if isinstance(columns := given.get("columns"), ast.Tuple):
                texts |= {name.value for name in columns.elts if isinstance(name, ast.Constant)}
    assert len(texts) > 80
    assert texts - load_catalog("zh").keys() == set()


def test_the_speed_of_learning_leaves_evaluations_out():
    """100 tokens a step, 0.1 s of learning a step; 4 s of evaluation lie in the second row's time."""
    rows = [
        {"split": "train", "step": 10, "tokens_per_s": 1000.0, "ms_per_step": 100.0, "seconds": 1.0},
        {"split": "valid", "step": 10, "seconds": 4.0},
        {"split": "train", "step": 20, "tokens_per_s": 200.0, "ms_per_step": 500.0, "seconds": 2.0},
    ]
    found = add_learning_speed(rows)
    assert [row["tokens_per_s"] for row in found if row["split"] == "train"] == pytest.approx([1000, 1000])
    assert found[1] == rows[1]
