"""The page of ``compare`` in a browser: charts by button, pointer and keyboard, and numbers in tables."""

from dataclasses import replace
from itertools import product

import pytest
from tests.browser.conftest import check_accessibility
from tests.browser.page_texts import find_english
from tests.compare.compare_helpers import make_toy_plan, write_toy_files
from tests.compare.result_rows import make_refused_row, make_row

from polyhead.compare.report.page import COST_AXES, write_compare_page
from polyhead.core.i18n import use_language

ROWS = [
    make_row("norm=rmsnorm", 1.5, note="d_ff 24 for equal parameters"),
    make_row("base", 1.6),
    *(make_row(f"heads={n}", 1.6 + n / 10) for n in range(1, 7)),
    make_row("position=rope(theta=10000)", 2.5, note="BLEU of 6 of 8 sentences, the others are too long"),
    make_refused_row("<b>bad</b>"),
    make_refused_row("later") | {"status": "waiting", "message": ""},
]
DONE_ROWS = [one for one in ROWS if one["status"] == "done"]
# technical terms, the budget and the language
NAMES = {"BLEU bleu chrF FLOPs polyhead train const Koehn bootstrap MiB GiB no <such> thing d_ff"}
NAMES |= {"tok:13a 10 min en"}


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    directory = tmp_path_factory.mktemp("compare")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        write_toy_files(directory)
        return make_toy_plan(budget="600s", seeds=1, out=directory / "out")


@pytest.fixture
def write_page(plan, tmp_path):
    """Write the page in a language."""

    def write_one(language="en", **changes):
        with use_language(language):
            return write_compare_page(tmp_path / f"{language}.html", ROWS, replace(plan, **changes))

    return write_one


def press(page, group, button):
    """Press a button of a switch; the button."""
    switch = page.locator(".switch").nth(group)
    control = switch.locator("button").nth(button)
    control.click()
    assert control.get_attribute("aria-pressed") == "true"
    assert switch.locator("[aria-pressed=true]").count() == 1
    return control


def test_curves_show_last_losses_and_pointed_steps(write_page, open_page):
    page = open_page(write_page())
    for axis, last in enumerate(("3,000", "10", "6.3e")):
        press(page, 0, axis)
        (figure,) = [one for one in page.locator("figure.many").all() if one.is_visible()]
        values = [float(text) for text in figure.locator(".key output").all_inner_texts()]
        assert values == [pytest.approx(one["loss"], rel=1e-3) for one in DONE_ROWS]
        if axis < 2:
            assert figure.locator(".at output").inner_text() == last
    press(page, 0, 0)
    figure = page.locator("figure.many").first
    chart = figure.locator("svg").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 80, box["y"] + box["height"] / 2)
    assert figure.locator(".at output").inner_text() == "1,000"
    assert float(figure.locator(".key output").first.inner_text()) == DONE_ROWS[0]["curves"][0][1][2]
    page.mouse.move(5, 5)
    assert figure.locator(".at output").inner_text() == "3,000"


def test_each_quality_and_cost_has_its_chart(write_page, open_page):
    page = open_page(write_page())
    for quality, cost in product(range(3), range(4)):
        names = [press(page, group, i).inner_text() for group, i in ((1, quality), (2, cost))]
        (chart,) = [one for one in page.locator("svg.pareto").all() if one.is_visible()]
        assert chart.get_attribute("aria-label").startswith(f"{names[0]} against {names[1]};")
        titles = chart.locator("title").all_text_contents()
        values = [COST_AXES[cost].get_value(one) for one in DONE_ROWS]
        assert len(titles) == len(values) == chart.locator(".point").count()
        assert all(title.startswith(one["name"] + ":") for title, one in zip(titles, DONE_ROWS, strict=True))


def test_tables_highlight_designs_and_open_recipes(write_page, open_page):
    page = open_page(write_page())
    quality, cost = page.locator("table.designs").all()
    for line, one in zip(quality.locator("tbody tr").all(), DONE_ROWS, strict=True):
        cells = line.locator("td").all_inner_texts()
        assert (cells[0], cells[1]) == (f"{one['loss']:.3f}", f"{one['ppl']:.2f}")
        assert cells[4] == f"{one['bleu']:.2f}"
    memory = [line.locator("td").nth(6).inner_text() for line in cost.locator("tbody tr").all()]
    assert memory == ["763 MiB"] * len(DONE_ROWS)
    page.locator("tr.row").nth(2).hover()
    elements = page.locator(".on").all()
    assert len(elements) > 5
    assert all("c2" in one.get_attribute("class").split() for one in elements)
    page.mouse.move(5, 5)
    assert page.locator(".on").count() == 0
    page.locator(".switch button").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.locator(".switch button").nth(1).get_attribute("aria-pressed") == "true"
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details pre").first.inner_text().strip() == DONE_ROWS[0]["recipe"].strip()


@pytest.mark.parametrize(("seeds", "language"), [(1, "en"), (1, "zh"), (3, "zh")])
def test_page_is_accessible_and_translated(seeds, language, write_page, open_page):
    page = open_page(write_page(language, seeds=tuple(range(seeds))))
    if language == "zh":
        names = {one["name"] for one in ROWS} | {" ".join(one["changes"]) for one in ROWS} | NAMES
        assert find_english(page, names) == set()
    press(page, 2, 3)
    press(page, 0, 2)
    page.locator("summary").first.click()
    check_accessibility(page)
