import ast
import base64
import hashlib
import math
import re
import runpy
import shutil
import subprocess
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.viz.html_pages import Page

import polyhead
from polyhead.core.errors import UserError
from polyhead.core.i18n import load_catalog
from polyhead.introspect.attention_map import AttentionMap
from polyhead.viz import run_page
from polyhead.viz.run_page import _METRIC_NAMES, SMALL_CHARTS, STATE_TITLES, add_learning_speed, write_report

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


write_figure = runpy.run_path(str(Path(__file__).parents[2] / "docs/demo.py"))["write_figure"]
SCRIPT, IMAGE = "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'
HOSTILE = [SCRIPT, "</script>", IMAGE, "&amp;", "'<!--", "星期五"]


def make_metrics(n=30):
    rows = []
    for i in range(1, n + 1):
        row = {"step": 10 * i, "split": "train", "loss": 6 / i}
        rows.append(row | {"lr": i / 1000, "tokens_per_s": 9000 + i})
        if i % 10 == 0:
            rows.append({"step": 10 * i, "split": "valid", "loss": 7 / i, "bleu": 3.0 * i})
    return rows


def make_uniform(n_layers, n_heads, t, s):
    return [[[[1 / s] * s] * t] * n_heads] * n_layers


@pytest.fixture
def html(tmp_path):
    maps = [AttentionMap(HOSTILE, HOSTILE[:3], make_uniform(2, 3, 3, 6), "</script><b>")] * 2
    texts = product(HOSTILE, HOSTILE, HOSTILE[:2])
    examples = [dict(zip(("source", "output", "reference"), row, strict=True)) for row in texts]
    facts = {"BLEU": 97.34, "Parameters": 1038336, "<script>": "</dd><script>", "recipe": {"<i>": "<b>" * 20}}
    path = tmp_path / "a" / "report.html"
    return write_report(path, SCRIPT, facts, make_metrics(), examples, maps, IMAGE).read_text()


def test_page_is_well_formed_and_runs_own_script(html):
    page = Page(html)
    assert [len(page.all(tag)) for tag in ("html", "head", "body", "main", "h1", "title")] == [1] * 6
    for text in ("97.3", "1,038,336", "recipe: <i>", *HOSTILE):
        assert text in page.words()
    assert page.data()[0] == [
        [[10 * i, float(f"{6 / i:.4g}")] for i in range(1, 31)],
        [[10 * i, float(f"{7 / i:.4g}")] for i in (10, 20, 30)],
    ]
    urls = set(re.findall(r"[a-z]+://[^\s\"'<>`;)]*", html))
    assert urls == {"http://www.w3.org/2000/svg"}  # a namespace
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", html)
    assert [a.get("href") for a in page.all("link")] == ["data:,"]
    assert not any("src" in attributes for _, attributes in page.elements)
    assert [a.get("type") for a in page.all("script")].count(None) == 1
    assert not page.all("img") and not page.all("i")
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    (policy,) = [a.get("content") for a in page.all("meta") if a.get("http-equiv")]
    script = [text for tag, text in page.texts if tag == "script"][-1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'") and f"script-src 'sha256-{digest}'" in policy


def list_charts(html):
    return [a.get("aria-label") or "" for a in Page(html).all("svg") if a.get("class") == "chart"]


def test_chart_for_each_measured_quantity(html, tmp_path):
    charts = list_charts(html)
    names = ["Loss", "Loss", "BLEU", "Learning rate", "Tokens / second"]
    assert [label.split(" by ")[0] for label in charts] == names
    assert "training from 6 to 0.2; validation from 0.7 to 0.233" in charts[0]
    path = write_report(tmp_path / "b.html", "t", {}, [{"step": 1, "loss": 2.0}], [])
    assert len(list_charts(path.read_text())) == 2


def test_report_of_diverged_or_long_run(tmp_path):
    path = tmp_path / "r.html"
    rows = [{"step": step, "split": "train", "loss": loss} for step, loss in ((1, 3.0), (2, math.nan))]
    assert Page(write_report(path, "t", {}, rows, []).read_text()).data() == [[[[1, 3.0]]]]
    assert "svg class" not in write_report(path, "t", {}, rows[1:], []).read_text()
    rows = [{"step": i, "split": "train", "loss": 5.0, "lr": 1e-3} for i in range(100_000)]
    assert write_report(path, "t", {}, rows, []).stat().st_size < 120_000
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]  # each replaces the one before


def test_differences_are_marked_and_equal_examples_counted():
    example = {"source": "Canada and Fiji", "output": "加拿大和芬兰", "reference": "加拿大和斐济"}
    section = run_page.outputs_section([example])
    for text in ("加拿大和<del>芬兰</del>", "加拿大和<ins>斐济</ins>", '<tr class="wrong">'):
        assert text in section.body
    equal = {**example, "output": "加拿大和斐济"}
    section = run_page.outputs_section([equal, example, equal])
    assert section.lead == "2 of these 3 equal their reference."
    assert section.body.count('<tr class="right">') == 2 and section.body.count("<del>") == 1


def test_figure_is_svg_for_light_and_dark(tmp_path):
    attention = AttentionMap(HOSTILE, HOSTILE, make_uniform(2, 2, 6, 6))
    path = write_figure(tmp_path / "figure.svg", make_metrics(), attention, layer=0, head=None)
    root = ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    cells = [e for e in root.iter() if e.get("class") == "cell"]
    assert len(cells) == 36
    assert {e.get("fill-opacity") for e in cells} == {f"{(1 / 6) ** 0.7:.3f}"}
    assert "prefers-color-scheme: dark" in path.read_text()
    curves = [e for e in root.iter() if e.get("class") in ("curve c0", "curve c1")]
    assert len([e for e in curves if e.tag.endswith("path")]) == 2
    with pytest.raises(UserError, match="no row of the metrics has a loss"):
        write_figure(path, [{"step": 1, "bleu": 3.0}], attention)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser: apt-get install chromium")
def test_browser_draws_maps_of_hostile_tokens(html, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(html.replace("alert(1)", "document.title='owned'"), encoding="utf-8")
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--dump-dom"]
    command = ["chromium", *switches, f"--user-data-dir={tmp_path / 'b'}", f"file://{file}"]
    page = Page(subprocess.run(command, capture_output=True, check=True).stdout.decode())
    assert len(page.all("select")) == 3
    assert len(page.all("canvas")) == (2 + 1) * (3 + 1)  # layers and heads, and the mean of each
    assert not page.all("img")
    title = "".join(words for tag, words in page.texts if tag == "title")
    assert title == SCRIPT.replace("alert(1)", "document.title='owned'")
    assert f"{title} looks at " in page.words()


def test_training_loss_is_not_label_smoothed():
    rows = [
        {"split": "train", "step": 10, "loss": 2.5, "nll": 1.5},
        {"split": "train", "step": 20, "loss": 2.0, "ppl": math.e},  # from before nll was logged
        {"split": "valid", "step": 20, "loss": 1.25, "ppl": math.exp(1.25)},
    ]
    curves = run_page.metric_curves(rows, "loss")
    losses = {curve.name: [y for _, y in curve.points] for curve in curves}
    assert losses == {"training": pytest.approx([1.5, 1.0]), "validation": pytest.approx([1.25])}
