"""The page of the demo in a browser: numbers, curves, examples and attention, in both languages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from tests.browser.conftest import CORNERS, SCREENS, check_accessibility
from tests.browser.reading import find_english, run_command

from polyhead.cli import demo_run

pytest.importorskip("babel")

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run of a demo of seconds, whose page is written in a language."""
    place = tmp_path_factory.mktemp("demo")
    settings = deepcopy(demo_run.SETTINGS)
    settings["tokenizer"]["vocab_size"] = 300
    settings["model"] |= {"d_model": 32, "n_layers": 2, "n_heads": 2}
    settings["train"] |= {"steps": 6, "max_tokens": 512, "log_every": 2, "eval_every": 2, "save_every": 2}

    def make_one(language: str) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(demo_run, "SETTINGS", settings)
            patch.setattr(demo_run, "CORPUS_SIZES", {"n": 300, "n_valid": 20, "n_test": 20})
            patch.chdir(place)
            run_command(language, "demo")
        return place / "runs" / "demo"

    return make_one


def test_the_page_shows_the_numbers_of_the_run(make: Callable[[str], Path], open_page: Open) -> None:
    run = make("en")
    page = open_page(run / "report.html")
    assert page.locator("h1").inner_text() == "English to Chinese"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = {
        split: [row["loss"] for row in rows if row.get("split") == split][-1] for split in ("train", "valid")
    }
    shown = [
        float(text) for text in page.locator("figure.plot").first.locator(".key output").all_inner_texts()
    ]
    assert shown == pytest.approx(list(losses.values()), rel=0.01)
    parameters = sum(p.numel() for p in demo_run.load(run).model.parameters())
    tiles = dict(
        zip(
            page.locator(".tiles dt").all_inner_texts(),
            page.locator(".tiles dd").all_inner_texts(),
            strict=True,
        )
    )
    assert tiles["Parameters"] == f"{parameters:,}"
    assert tiles["Steps"] == "6"


def test_the_examples_are_the_held_out_texts(make: Callable[[str], Path], open_page: Open) -> None:
    run = make("en")
    page = open_page(run / "report.html")
    corpus = {
        locale: (run / "corpus" / f"test.{locale}").read_text(encoding="utf-8").splitlines()
        for locale in ("en", "zh")
    }
    pairs = set(zip(corpus["en"], corpus["zh"], strict=True))
    lines = page.locator(".examples tbody tr").all()
    assert lines
    for line in lines:
        source, output, reference = line.locator("td[data-name]").all_text_contents()
        assert (source, reference) in pairs
        assert bool(line.locator(".yes").count()) == (output == reference)


def test_curves_are_read_by_the_pointer_and_details_opened_by_the_keyboard(
    make: Callable[[str], Path], open_page: Open
) -> None:
    page = open_page(make("en") / "report.html")
    figure = page.locator("figure.plot").first
    chart = figure.locator("svg").first
    before = figure.locator(".at output").inner_text()
    box = chart.bounding_box()
    chart.hover(position={"x": 70, "y": box["height"] / 2})
    assert int(figure.locator(".at output").inner_text()) < int(before)
    summary = page.locator("summary").first
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator(".facts").first.is_visible()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_barrier_stands_in_the_page(language: str, make: Callable[[str], Path], open_page: Open) -> None:
    page = open_page(make(language) / "report.html")
    page.locator("summary").first.click()
    page.locator(".thumb").first.click()
    check_accessibility(page, *(SCREENS if language == "en" else CORNERS))


def test_the_chinese_page_has_no_english(make: Callable[[str], Path], open_page: Open) -> None:
    run = make("zh")
    page = open_page(run / "report.html")
    assert page.locator("h1").inner_text() == "英语 → 中文"
    examples = {re.sub(r"\s+", " ", text) for text in page.locator(".examples td").all_text_contents()}
    tokens = set(page.locator(".attention .token, .chip").all_text_contents())
    recipe = set(page.locator(".facts dd").all_text_contents())
    options = set(page.locator(".attention option").all_text_contents())
    sections = set(demo_run.SETTINGS)
    names = {"BLEU", "chrF", "Chinese English"} | examples | tokens | recipe | options | sections
    assert find_english(page, names) == set()
