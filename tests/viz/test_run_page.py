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
PAGES = ["viz/run_page.py", "viz/run_page.py", "viz/samples.py"]
PAGES += ["serve/http/run_pages.py", "train/report.py", "cli/report.py"]


def list_calls(path):
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]


def list_strings(nodes):
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def find_literals(path, function):
    calls = [call for call in list_calls(path) if call.args and isinstance(call.func, ast.Name)]
    return list_strings(call.args[0] for call in calls if call.func.id == function)


def test_every_text_is_in_chinese_catalog():
    texts = set().union(*(find_literals(ROOT / name, "tr") for name in PAGES))
    texts |= {run_page.LOSS_HELP, *STATE_TITLES.values(), *_METRIC_NAMES.values(), *SMALL_CHARTS.values()}
    texts |= set(re.findall(r'\bt\("([^"]+)"', (ROOT / "viz/report.js").read_text()))
    for module in (ROOT / "train/samples").glob("*.py"):
        texts |= find_literals(module, "break_down")
        for call in list_calls(module):
            options = {word.arg: word.value for word in call.keywords}
            columns = options.get("columns")
            columns = columns.elts if isinstance(columns, ast.Tuple) else []
            texts |= list_strings([options.get("about"), *columns])
    assert len(texts) > 80
    assert texts - load_catalog("zh").keys() == set()


def test_learning_speed_excludes_evaluation():
    """100 tokens a step, 0.1 s of training a step; 4 s of evaluation are in the time of the last row."""
    rows = [
        {"split": "train", "step": 10, "tokens_per_s": 1000.0, "ms_per_step": 100.0, "seconds": 1.0},
        {"split": "valid", "step": 10, "seconds": 4.0},
        {"split": "train", "step": 20, "tokens_per_s": 200.0, "ms_per_step": 500.0, "seconds": 2.0},
    ]
    result = add_learning_speed(rows)
    assert [result[i]["tokens_per_s"] for i in (0, 2)] == pytest.approx([1000, 1000])
    assert result[1] == rows[1]
