"""The slider over the steps of a training on the page of ``explain``."""

import base64
import json
import re

import numpy as np
import pytest
from tests.browser.conftest import check_accessibility
from tests.browser.explain_pages import (
    check_numbers,
    find_dead_drawings,
    go_to_station,
    open_document,
    read_numbers,
)
from tests.explain.explain_helpers import TARGET, TEXT, explain_walk, make_run

from polyhead.explain.marks import describe_mark

KINDS = {"decoder": {"kind": "decoder"}, "translator": {}, "masked": {"kind": "encoder"}}
KINDS |= {
    "classifier": {"kind": "encoder", "labels": ("n", "y")},
    "gru": {"kind": "decoder", "block": "gru", "position": "none"},
}
MATRIX = """() => [...document.querySelectorAll("#card-mark-map .cell")]
  .map((cell) => Number(cell.getAttribute("fill-opacity")))"""


@pytest.mark.parametrize(
    "kind", [kind if kind == "decoder" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_slider_shows_the_marks(kind, open_page, tmp_path):
    target = TARGET if kind == "translator" else None
    runs = [make_run(seed, **KINDS[kind]) for seed in range(3)]
    marks = [{"step": 10 * i, "text": TEXT} | describe_mark(run, TEXT, target) for i, run in enumerate(runs)]
    marks = json.loads(json.dumps(marks))
    document = explain_walk(runs[-1], TEXT, target) | {"learnt": marks}
    page = open_document(open_page, document, tmp_path / "page.html")
    go_to_station(page, "learnt")
    assert page.locator("output.mark-step").inner_text() == "step 20"
    slider = page.locator("input.marks")
    slider.focus()
    slider.press("ArrowLeft")
    assert slider.evaluate("one => one === document.activeElement")
    mark = marks[1]
    assert page.locator("output.mark-step").inner_text() == "step 10"
    page.evaluate("explain.go({ map: 1, head: 2 })")
    if kind != "gru":
        entry = mark["attention"][1]
        weights = np.frombuffer(base64.b64decode(entry["data"]), np.uint8).reshape(entry["shape"])[2] / 255
        seen = (
            np.tril(np.ones(weights.shape, bool)) if kind == "decoder" else weights >= 0
        )  # others are hatched
        assert not weights[~seen].any()
        assert np.abs(np.array(page.evaluate(MATRIX)) - weights[seen] ** 0.7).max() < 0.001
    assert page.locator("#card-mark-map").count() == (kind != "gru")
    rows = page.locator("#card-mark-guesses tbody tr").all()
    assert len(rows) == len(mark["guesses"])
    losses = [loss for *_, loss in mark["guesses"] if loss is not None]
    numbers = read_numbers(page, "#card-mark-guesses")
    assert [float(one["value"]) for one in numbers] == pytest.approx(losses)
    check_numbers(numbers)
    assert page.locator("#card-mark-loss").count() == (kind != "classifier")
    assert find_dead_drawings(page) == []
    state = page.evaluate("location.hash")
    assert "mark=2" in state and "map=2" in state
    check_accessibility(page)
    page.get_by_role("button", name="中文").click()
    cards = " ".join(page.locator("#stage .card > h3, #stage .card > .about").all_inner_texts())
    assert "它的" in cards
    assert not re.search("step|loss|guess|slider|weights", cards)


def test_page_without_marks_has_no_slider(open_page, tmp_path):
    document = explain_walk(make_run(kind="decoder")) | {"learnt": []}
    page = open_document(open_page, document, tmp_path / "page.html")
    assert not page.evaluate("explain.page.stations.some(({ id }) => id === 'learnt')")
