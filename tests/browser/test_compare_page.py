"""The page of a comparison in a browser: each button shows its chart, each number is that of its row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.browser.conftest import CORNERS, check_accessibility
from tests.browser.reading import find_english
from tests.compare.conftest import RECIPE, write_text
from tests.compare.result_rows import refused, row

from polyhead.compare.budget import Budget
from polyhead.compare.plan import ComparisonPlan, make_plan
from polyhead.compare.report.charts import COST_AXES
from polyhead.compare.report.page import write_compare_page
from polyhead.core import i18n

Open = Callable[..., Any]

ROWS = [
    row("norm=rmsnorm", 1.5, note="d_ff 24 for equal parameters"),
    row("base", 1.6),
    *(row(f"heads={n}", 1.6 + n / 10) for n in range(1, 7)),
    row("position=rope(theta=10000)", 2.5, note="BLEU of 6 of 8 sentences, the others are too long"),
    refused("<b>bad</b>"),
    refused("later") | {"status": "waiting", "message": ""},
]
DONE = [one for one in ROWS if one["status"] == "done"]
NAMES = {
    "BLEU",
    "chrF",
    "FLOPs",
    "polyhead train",
    "const",
    "Koehn",
    "bootstrap",
    "MiB GiB",
    "no <such> thing",
    "d_ff",
    "tok:13a bleu",
    "10 min",
    "en",  # the budget and the language,
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ComparisonPlan:
    place = tmp_path_factory.mktemp("compare")
    write_text(place, train=30, valid=12, test=8)
    (place / "toy.yaml").write_text(RECIPE)
    given: dict[str, Any] = {"full_grid": False, "budget": Budget("time", 600), "seeds": 1, "match": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        return make_plan(place / "toy.yaml", (), (), (), **given, out=place / "out")


@pytest.fixture
def write(plan: ComparisonPlan, tmp_path: Path) -> Callable[..., Path]:
    """Write the page in a language."""

    def write_one(language: str, **changes: Any) -> Path:
        i18n.set_language(language)
        try:
            return write_compare_page(tmp_path / f"{language}.html", ROWS, replace(plan, **changes))
        finally:
            i18n.set_language(None)

    return write_one


def press(page: Any, group: int, button: int) -> Any:
    """Press a button of a switch; the button."""
    found = page.locator(".switch").nth(group).locator("button").nth(button)
    found.click()
    assert found.get_attribute("aria-pressed") == "true"
    assert page.locator(".switch").nth(group).locator("[aria-pressed=true]").count() == 1
    return found


def test_each_axis_shows_the_last_loss_of_every_design(write: Callable[..., Path], open_page: Open) -> None:
    page = open_page(write("en"))
    for axis, last in enumerate(("3,000", "10", "6.3e")):
        press(page, 0, axis)
        (figure,) = [one for one in page.locator("figure.many").all() if one.is_visible()]
        shown = [float(text) for text in figure.locator(".key output").all_inner_texts()]
        assert shown == [pytest.approx(one["loss"], rel=1e-3) for one in DONE]
        if axis < 2:
            assert figure.locator(".at output").inner_text() == last


def test_the_pointer_reads_the_step_of_a_curve_and_leaves_it(
    write: Callable[..., Path], open_page: Open
) -> None:
    page = open_page(write("en"))
    figure = page.locator("figure.many").first
    chart = figure.locator("svg").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 80, box["y"] + box["height"] / 2)
    assert figure.locator(".at output").inner_text() == "1,000"
    assert float(figure.locator(".key output").first.inner_text()) == DONE[0]["curves"][0][1][2]
    page.mouse.move(5, 5)
    assert figure.locator(".at output").inner_text() == "3,000"


def test_each_pair_of_quality_and_cost_shows_its_chart(write: Callable[..., Path], open_page: Open) -> None:
    page = open_page(write("en"))
    for quality, cost in product(range(3), range(4)):
        pressed = [press(page, 1, quality), press(page, 2, cost)]
        (chart,) = [one for one in page.locator("svg.pareto").all() if one.is_visible()]
        names = [button.inner_text() for button in pressed]
        assert chart.get_attribute("aria-label").startswith(f"{names[0]} against {names[1]};")
        titles = chart.locator("title").all_text_contents()
        values = [COST_AXES[cost].get_value(one) for one in DONE]
        assert len(titles) == len(values) == chart.locator(".point").count()
        assert all(title.startswith(one["name"] + ":") for title, one in zip(titles, DONE, strict=True))


def test_the_keyboard_presses_the_buttons_and_opens_the_recipes(
    write: Callable[..., Path], open_page: Open
) -> None:
    page = open_page(write("en"))
    page.locator(".switch button").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.locator(".switch button").nth(1).get_attribute("aria-pressed") == "true"
    summary = page.locator("summary").first
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("details pre").first.inner_text().strip() == DONE[0]["recipe"].strip()


def test_a_design_is_lit_wherever_it_is_drawn(write: Callable[..., Path], open_page: Open) -> None:
    page = open_page(write("en"))
    page.locator("tr.row").nth(2).hover()
    lit = page.locator(".on").all()
    assert len(lit) > 5
    assert all("c2" in one.get_attribute("class").split() for one in lit)
    page.mouse.move(5, 5)
    assert page.locator(".on").count() == 0


def test_the_tables_hold_the_numbers_of_the_rows(write: Callable[..., Path], open_page: Open) -> None:
    page = open_page(write("en"))
    quality, cost = page.locator("table.designs").all()
    for line, one in zip(quality.locator("tbody tr").all(), DONE, strict=True):
        cells = line.locator("td").all_inner_texts()
        assert (cells[0], cells[1]) == (f"{one['loss']:.3f}", f"{one['ppl']:.2f}")
        assert cells[4] == f"{one['bleu']:.2f}"
    memory = [line.locator("td").nth(6).inner_text() for line in cost.locator("tbody tr").all()]
    assert memory == ["763 MiB"] * len(DONE)


@pytest.mark.parametrize(("seeds", "language"), [(1, "en"), (3, "zh")])
def test_no_barrier_stands_in_the_page(
    seeds: int, language: str, write: Callable[..., Path], open_page: Open
) -> None:
    page = open_page(write(language, seeds=tuple(range(seeds))))
    check_accessibility(page, *CORNERS)
    press(page, 2, 3)
    press(page, 0, 2)
    page.locator("summary").first.click()
    check_accessibility(page)


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_chinese_page_has_no_english(seeds: int, write: Callable[..., Path], open_page: Open) -> None:
    page = open_page(write("zh", seeds=tuple(range(seeds))))
    names = {one["name"] for one in ROWS} | {" ".join(one["changes"]) for one in ROWS} | NAMES
    assert find_english(page, names) == set()
