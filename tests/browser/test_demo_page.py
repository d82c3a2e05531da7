"""The page of ``demo`` in a browser: numbers, curves, examples and attention, in both languages."""

import json
import re
from copy import deepcopy

import pytest
from tests.browser.conftest import check_accessibility
from tests.browser.page_texts import find_english, run_command

from polyhead.cli import demo_run

pytest.importorskip("babel")
# dear: the command is tested in tests/cli, the page of a translation run in test_report_page.py
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def make_run_dir(tmp_path_factory):
    """The run of a demo of seconds, whose page is written in a language."""
    directory = tmp_path_factory.mktemp("demo")
    settings = deepcopy(demo_run.SETTINGS)
    settings["tokenizer"]["vocab_size"] = 300
    settings["model"] |= {"d_model": 32, "n_layers": 2, "n_heads": 2}
    settings["train"] |= {"steps": 4, "max_tokens": 512, "log_every": 2, "eval_every": 2, "save_every": 2}

    def make_one(language):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(demo_run, "SETTINGS", settings)
            patch.setattr(demo_run, "CORPUS_SIZES", {"n": 100, "n_valid": 8, "n_test": 8})
            patch.chdir(directory)
            run_command(language, "demo")
        return directory / "runs" / "demo"

    return make_one


def test_page_shows_run_metrics_and_examples(make_run_dir, open_page):
    run_dir = make_run_dir("en")
    page = open_page(run_dir / "report.html")
    assert page.locator("h1").inner_text() == "English to Chinese"
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    losses = [[row["loss"] for row in rows if row.get("split") == split][-1] for split in ("train", "valid")]
    texts = page.locator("figure.plot").first.locator(".key output").all_inner_texts()
    assert [float(text) for text in texts] == pytest.approx(losses, rel=0.01)
    names, values = (page.locator(f".tiles {tag}").all_inner_texts() for tag in ("dt", "dd"))
    tiles = dict(zip(names, values, strict=True))
    n_parameters = sum(p.numel() for p in demo_run.load(run_dir).model.parameters())
    assert (tiles["Parameters"], tiles["Steps"]) == (f"{n_parameters:,}", "4")
    # the examples are those of the test set
    corpus = [
        (run_dir / f"corpus/test.{lang}").read_text(encoding="utf-8").splitlines() for lang in ("en", "zh")
    ]
    pairs = set(zip(*corpus, strict=True))
    lines = page.locator(".examples tbody tr").all()
    assert lines
    for line in lines:
        source, output, reference = line.locator("td[data-name]").all_text_contents()
        assert (source, reference) in pairs
        assert bool(line.locator(".yes").count()) == (output == reference)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_page_is_accessible_and_translated(language, make_run_dir, open_page):
    page = open_page(make_run_dir(language) / "report.html")
    figure = page.locator("figure.plot").first
    chart, step = figure.locator("svg").first, figure.locator(".at output")
    last_step = int(step.inner_text())
    chart.hover(position={"x": 70, "y": chart.bounding_box()["height"] / 2})
    assert int(step.inner_text()) < last_step
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator(".facts").first.is_visible()
    page.locator(".thumb").first.click()
    check_accessibility(page)
    if language == "zh":
        assert page.locator("h1").inner_text() == "英语 → 中文"
        cells = {re.sub(r"\s+", " ", text) for text in page.locator(".examples td").all_text_contents()}
        selector = ".attention .token, .chip, .facts dd, .attention option"
        names = {*cells, *page.locator(selector).all_text_contents(), *demo_run.SETTINGS}
        assert find_english(page, names | {"BLEU", "chrF", "Chinese English"}) == set()
