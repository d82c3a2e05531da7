"""What fits on the screens of the page of ``explain``: the first one, and those of a phone."""

import pytest
from tests.browser import explain_pages as pages
from tests.browser.conftest import DESKTOP, PHONE, mark_slow, show_on, wait_until
from tests.explain.explain_helpers import TARGET, TEXT, make_run

from polyhead.explain.chapters import load_chapters
from polyhead.explain.document import explain
from polyhead.explain.walk_page import render_walk_page
from polyhead.viz.html_page import save_page

DESIGNS = {
    "translator": {},
    "language model": {"kind": "decoder", "norm_first": True},
    "classifier": {"kind": "encoder", "labels": ["bad", "good", "fair"]},
    "lstm": {"kind": "decoder", "block": "lstm"},
    "linear": {"kind": "decoder", "attention": "linear", "position": "none"},
}
# tables of a station that go on beyond its edge, but for those with a column for each token
FIND_WIDE = """() => [...document.querySelectorAll("#stage .scroll:has(.bars:not(.heads))")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.ariaLabel)"""
# the distances of words of the first drawing that stand next to each other, in heights of a line
READ_DISTANCES = """() => [...document.querySelectorAll("svg.glance .words")].flatMap((group) => {
  const places = [...group.children].map((one) => one.getCTM());
  return places.slice(1).map((one, i) => Math.abs(one.a * (one.f - places[i].f) - one.b * (one.e - places[i].e)) / 11.5);
})"""  # noqa: E501
FIND_CUT_CHIPS = """() => [...document.querySelectorAll("#pickers .picker")].flatMap((row) => {
  const edge = row.getBoundingClientRect().left;
  return [...row.children].map((one) => one.getBoundingClientRect()).filter((box) => box.left < edge && box.right > edge);
}).length"""  # noqa: E501


@pytest.fixture
def open_lesson(open_page, tmp_path):
    """A function that opens the page of a design, with its chapters."""

    def open_one(design, text=TEXT, facts=None, **options):
        run = make_run(**DESIGNS[design])
        document = explain(run, text, TARGET if run.kind == "encoder-decoder" else None)
        document["run"] |= facts or {}
        chapters = {"en": load_chapters("en")}
        path = save_page(tmp_path / "page.html", render_walk_page(document, chapters=chapters))
        return pages.open_walk(open_page, path, **options)

    return open_one


def read_box(page, selector):
    """Top and bottom of an element in the window."""
    return page.evaluate(
        "s => (box => [box.top, box.bottom])(document.querySelector(s).getBoundingClientRect())", selector
    )


def test_first_screen_has_task_drawing_and_key(open_lesson):
    facts = {"languages": ["en", "zh"], "examples": [4000, "pairs"], "steps": 300}
    page = open_lesson("translator", TEXT + " and two cats sleep", facts)
    assert page.locator(".deed").inner_text() == (
        "Translates English to Chinese; 2 + 2 layers; trained on 4,000 pairs of texts for 300 steps"
    )
    page.get_by_role("button", name="中文").click()
    assert page.locator(".deed").inner_text() == "将英语译成中文；2 + 2 层；用 4,000 对文本训练了 300 步"
    page.get_by_role("button", name="English").click()
    for selector in (".glance-card .note", "svg.glance"):
        top, bottom = read_box(page, selector)
        assert 0 < top < bottom <= 800, selector
    distances = page.evaluate(READ_DISTANCES)
    assert len(distances) > 10 and min(distances) >= 1


def test_reading_names_the_part_it_passes(open_lesson):
    page = open_lesson("language model", reduced_motion="reduce")
    read = """at => {
      reading.at = at;
      setReading(document.querySelector("svg.glance"));
      const now = document.querySelector(".now");
      return [now.textContent, getComputedStyle(now).visibility];
    }"""
    assert page.evaluate(read, 0) == ["Embedding", "visible"]
    assert page.evaluate(read, 0.999) == ["Output", "visible"]
    assert page.evaluate(read, 1)[1] == "hidden"


@pytest.mark.parametrize("design", mark_slow(DESIGNS, "translator"))
def test_phone_has_no_sideways_tables_or_cut_chips(design, open_lesson):
    page = open_lesson(design, screen=PHONE)
    stations = pages.list_stations(page)
    assert {"glance", "levers", "cost"} <= set(stations)
    for station in stations:
        pages.go_to_station(page, station)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE.width, station
        assert page.evaluate(FIND_WIDE) == [], station
        assert page.evaluate(FIND_CUT_CHIPS) == 0, station


def test_choice_of_chapter_shows_its_beginning(open_lesson):
    page = open_lesson("translator", screen=PHONE)
    assert "A Transformer sees neither letters nor words" in page.locator(".lesson-line").inner_text()
    assert read_box(page, ".lesson-line")[1] < 800
    page.locator(".lesson-line").click()
    title = "#lesson h2"
    for _ in range(2):
        assert 0 <= read_box(page, title)[0] < 100
        page.get_by_role("button", name="Next chapter").click()
    page.locator("#lesson select").select_option("7")
    assert 0 <= read_box(page, title)[0] < 100
    page.get_by_role("button", name="Back to the drawings").click()
    assert -1 <= read_box(page, "#pickers")[0] < 130
    show_on(page, DESKTOP)
    wait_until(page, "!document.querySelector('.lesson-line').offsetParent")
    page.evaluate("document.querySelector('.beside').scrollTop = 1e4; window.before = scrollY")
    page.get_by_role("button", name="Next chapter").click()
    assert page.evaluate("[document.querySelector('.beside').scrollTop, scrollY - before]") == [0, 0]


def test_chapters_of_missing_parts_come_last(open_lesson):
    """A model without attention opens its own chapter first, and those of what it lacks after it."""
    page = open_lesson("lstm")
    names = "stop => chaptersOf()[stop.chapter].name"
    stops = page.evaluate(
        f"explain.page.stops.filter(({{ station }}) => station.kind === 'recurrent').map({names})"
    )
    own, missing = stops.index("recurrence"), ["queries-keys-values", "scale", "heads", "masks", "why-three"]
    assert all(stops.index(name) > own for name in missing)
    last = page.evaluate(f"({names})(explain.page.stops.findLast(({{ station }}) => station.layer))")
    assert last == "recurrence"


def test_marks_show_their_formula_under_the_pointer(open_lesson):
    """Lines, waves and dots are found by the distance of the pointer, not by a cell."""
    page = open_lesson("linear")
    page.evaluate(
        "explain.go({ station: explain.page.stations.find(({ kind }) => kind === 'feed_forward').id })"
    )
    spots, titles = page.locator(".small-plot circle.spot"), set()
    for spot in (spots.first, spots.last):
        spot.scroll_into_view_if_needed()
        box = spot.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        titles.add(page.locator("#inspector h2").inner_text())
    assert len(titles) == 2 and all(", unit " in title for title in titles)
