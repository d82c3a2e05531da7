"""The pages are read as a browser reads them: strictly, and without a network."""

import base64
import hashlib
import math
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.viz.html_pages import Page

from polyhead.core.errors import UserError
from polyhead.introspect.attention_map import AttentionMap
from polyhead.viz import training_report
from polyhead.viz.html_page import save_page
from polyhead.viz.training_report import write_report

write_figure = runpy.run_path(str(Path(__file__).parents[2] / "docs/demo.py"))["write_figure"]
HOSTILE = [
    "<script>alert(1)</script>",
    "</script>",
    '"><img src=x onerror=alert(1)>',
    "&amp;",
    "'<!--",
    "星期五",
]


def metrics(n=30):
    rows = []
    for i in range(1, n + 1):
        rows.append(
            {"step": 10 * i, "split": "train", "loss": 6 / i, "lr": i / 1000, "tokens_per_s": 9000 + i}
        )
        if i % 10 == 0:
            rows.append({"step": 10 * i, "split": "valid", "loss": 7 / i, "bleu": 3.0 * i})
    return rows


def uniform(n_layers, n_heads, t, s):
    return [[[[1 / s] * s for _ in range(t)] for _ in range(n_heads)] for _ in range(n_layers)]


@pytest.fixture
def text(tmp_path):
    maps = [
        AttentionMap(HOSTILE, HOSTILE[:3], uniform(2, 3, 3, len(HOSTILE)), "</script><b>") for _ in range(2)
    ]
    examples = [
        {"source": a, "output": b, "reference": c} for a in HOSTILE for b in HOSTILE for c in HOSTILE[:2]
    ]
    facts = {"BLEU": 97.34, "Parameters": 1038336, "<script>": "</dd><script>", "recipe": {"<i>": "<b>" * 20}}
    return write_report(
        tmp_path / "a" / "report.html", HOSTILE[0], facts, metrics(), examples, maps, HOSTILE[2]
    ).read_text()


def test_every_element_of_the_page_is_closed_in_order(text):
    page = Page(text)
    assert [len(page.all(tag)) for tag in ("html", "head", "body", "main", "h1", "title")] == [1] * 6


def test_nothing_is_fetched_from_anywhere(text):
    page = Page(text)
    addresses = set(re.findall(r"[a-z]+://[^\s\"'<>`;)]*", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not a request
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", text)
    assert [a.get("href") for a in page.all("link")] == ["data:,"]
    assert not any("src" in attributes for _, attributes in page.elements)


def test_hostile_text_stays_text(text):
    page = Page(text)
    scripts = page.all("script")
    assert [a.get("type") for a in scripts].count(None) == 1  # our own, the last
    assert not page.all("img")
    assert not page.all("i")
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    for token in HOSTILE:
        assert token in page.words()


def test_only_the_page_s_own_script_may_run(text):
    page = Page(text)
    (policy,) = [a.get("content") or "" for a in page.all("meta") if a.get("http-equiv")]
    script = [t for tag, t in page.texts if tag == "script"][-1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_the_facts_are_tiles_and_details(text):
    page = Page(text)
    words = page.words()
    assert "97.3" in words
    assert "1,038,336" in words
    assert "recipe: <i>" in words


def test_the_data_for_the_pointer_are_the_metrics(text):
    loss = Page(text).data()[0]
    assert loss == [
        [[10 * i, float(f"{6 / i:.4g}")] for i in range(1, 31)],
        [[10 * i, float(f"{7 / i:.4g}")] for i in (10, 20, 30)],
    ]


def test_there_is_a_chart_for_each_quantity_that_was_measured(text, tmp_path):
    charts = [a.get("aria-label") or "" for a in Page(text).all("svg") if a.get("class") == "chart"]
    assert [label.split(" by ")[0] for label in charts] == [
        "Loss",
        "Loss",
        "BLEU",
        "Learning rate",
        "Tokens / second",
    ]
    assert "training from 6 to 0.2; validation from 0.7 to 0.233" in charts[0]
    bare = write_report(tmp_path / "b.html", "t", {}, [{"step": 1, "loss": 2.0}], [])
    assert len([a for a in Page(bare.read_text()).all("svg") if a.get("class") == "chart"]) == 2


def test_a_run_that_diverged_still_has_a_report(tmp_path):
    rows = [{"step": 1, "split": "train", "loss": 3.0}, {"step": 2, "split": "train", "loss": float("nan")}]
    assert Page(write_report(tmp_path / "r.html", "t", {}, rows, []).read_text()).data() == [[[[1, 3.0]]]]
    assert "svg class" not in write_report(tmp_path / "r.html", "t", {}, rows[1:], []).read_text()


def test_a_long_run_stays_a_small_page(tmp_path):
    rows = [{"step": i, "split": "train", "loss": 5.0, "lr": 1e-3} for i in range(100_000)]
    assert write_report(tmp_path / "r.html", "t", {}, rows, []).stat().st_size < 120_000


def test_differences_are_marked_on_both_sides():
    example = {"source": "Canada and Fiji", "output": "加拿大和芬兰", "reference": "加拿大和斐济"}
    row = training_report.outputs_section([example]).body
    assert "加拿大和<del>芬兰</del>" in row
    assert "加拿大和<ins>斐济</ins>" in row
    assert '<tr class="wrong">' in row
    equal = training_report.outputs_section([{**example, "output": "加拿大和斐济"}]).body
    assert "<del>" not in equal
    assert '<tr class="right">' in equal


def test_the_number_of_right_examples_is_counted():
    rows = [{"source": "a", "output": output, "reference": "c"} for output in ("c", "b", "c")]
    assert training_report.outputs_section(rows).lead == "2 of these 3 equal their reference."


def test_a_report_replaces_the_one_before_it_whole(tmp_path):
    path = tmp_path / "r.html"
    write_report(path, "first", {}, metrics(), [])
    write_report(path, "second", {}, [], [])
    assert "second" in path.read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]


def test_the_still_picture_is_one_well_formed_svg_for_light_and_dark(tmp_path):
    attention = AttentionMap(HOSTILE, HOSTILE, uniform(2, 2, 6, 6))
    path = write_figure(tmp_path / "figure.svg", metrics(), attention, layer=0, head=None)
    root = ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    cells = [e for e in root.iter() if e.get("class") == "cell"]
    assert len(cells) == 36
    assert {e.get("fill-opacity") for e in cells} == {f"{(1 / 6) ** 0.7:.3f}"}
    assert "prefers-color-scheme: dark" in path.read_text()
    assert (
        len([e for e in root.iter() if e.get("class") in {"curve c0", "curve c1"} and e.tag.endswith("path")])
        == 2
    )


def test_a_still_picture_without_a_loss_is_refused(tmp_path):
    with pytest.raises(UserError, match="no row of the metrics has a loss"):
        write_figure(
            tmp_path / "f.svg", [{"step": 1, "bleu": 3.0}], AttentionMap(["a"], ["b"], uniform(1, 1, 1, 1))
        )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser: apt-get install chromium")
def test_a_browser_builds_the_interactive_maps_and_hostile_tokens_stay_inert(text, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(text.replace("alert(1)", "document.title='owned'"), encoding="utf-8")
    switches = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-sync",
    ]
    switches += [
        "--disable-background-networking",
        "--disable-component-update",
        f"--user-data-dir={tmp_path / 'b'}",
    ]
    done = subprocess.run(
        ["chromium", *switches, "--dump-dom", f"file://{file}"], capture_output=True, timeout=90
    )
    page = Page(done.stdout.decode())
    assert len(page.all("select")) == 3
    assert len(page.all("canvas")) == (2 + 1) * (3 + 1)  # layers and heads, each with their mean
    assert not page.all("img")
    title = "".join(words for tag, words in page.texts if tag == "title")
    assert title == HOSTILE[0].replace("alert(1)", "document.title='owned'")
    assert f"{title} looks at " in page.words()


def test_a_directory_is_no_place_for_a_page(tmp_path):
    (tmp_path / "pages").mkdir()
    with pytest.raises(UserError, match="pages is a directory; expected a file in it"):
        save_page(tmp_path / "pages", "<p>")
    assert list(tmp_path.rglob("*")) == [tmp_path / "pages"]


def test_the_loss_of_training_is_drawn_without_smoothing():
    rows = [
        {"split": "train", "step": 10, "loss": 2.5, "nll": 1.5},
        {"split": "train", "step": 20, "loss": 2.0, "ppl": math.e},  # of a run from before nll was logged
        {"split": "valid", "step": 20, "loss": 1.25, "ppl": math.exp(1.25)},
    ]
    drawn = {
        curve.name: [y for _, y in curve.points] for curve in training_report.metric_curves(rows, "loss")
    }
    assert drawn == {"training": pytest.approx([1.5, 1.0]), "validation": pytest.approx([1.25])}
