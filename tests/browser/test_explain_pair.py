"""Two runs side by side on a page of ``explain``: what is chosen in one is chosen in the other."""

import pytest
from tests.browser.conftest import PHONE
from tests.explain.explain_helpers import TEXT, explain_design

from polyhead.explain.walk_page import render_pair_page, render_walk_page
from polyhead.viz.html_page import save_page

STATE = "() => [explain.state.station, explain.state.head, explain.state.tokens.at(-1)]"
DESIGNS = [{"kind": "decoder", "norm_first": True}, {"kind": "decoder", "norm_first": False, "n_layers": 1}]
TRANSLATORS = [{"seed": 1}, {"seed": 2}]


@pytest.fixture
def open_pair(open_page, tmp_path):
    """A function that opens the page of two designs; it returns the page and its frames."""

    def open_one(designs, texts=(TEXT, TEXT), address="", **options):
        pages = []
        for design, text in zip(designs, texts, strict=True):
            pages.append(render_walk_page(explain_design(design, text)[1]))
        path = save_page(tmp_path / "pair.html", render_pair_page(pages, ["a", "b"]))
        page = open_page(f"file://{path}{address}", **options)
        frames = page.frames[1:]
        for frame in frames:
            frame.wait_for_selector("html[data-ready]", state="attached")
        return page, frames

    return open_one


def test_other_page_follows(open_pair):
    page, (left, right) = open_pair(DESIGNS, address="#at=stack.layers.0.attn&head=1&tokens=3")
    assert left.evaluate(STATE) == right.evaluate(STATE) == ["stack.layers.0.attn", 1, 2]
    left.locator("[data-focus='station-stack.layers.0.ffn']").click()
    right.locator("[data-focus='token-0-4']").click()
    assert left.evaluate(STATE) == right.evaluate(STATE) == ["stack.layers.0.ffn", 1, 4]
    assert "at=stack.layers.0.ffn" in page.url and "tokens=5" in page.url
    # the second run has one layer
    left.evaluate("explain.go({ station: 'stack.layers.1.attn', head: 3 })")
    assert left.evaluate(STATE) == ["stack.layers.1.attn", 3, 4]
    assert right.evaluate(STATE) == ["stack.layers.0.ffn", 3, 4]
    assert "a part that this run lacks" in right.locator("#pickers").inner_text()
    assert left.locator("#pickers .note").count() == 0
    page.go_back()
    right.wait_for_function("explain.state.station === 'stack.layers.0.ffn' && !explain.page.isAstray")
    right.get_by_role("button", name="中文").click()
    right.get_by_role("button", name="深色").click()
    assert left.evaluate("[explain.page.language, explain.isDark()]") == ["zh", True]
    boxes = [frame.frame_element().bounding_box() for frame in (left, right)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["width"] == pytest.approx(boxes[1]["width"])


@pytest.mark.slow
def test_other_tokens_are_chosen_by_index(open_pair):
    page, (left, right) = open_pair(TRANSLATORS, (TEXT, "two cats sleep"), screen=PHONE)
    assert not any("lacks" in frame.locator("#pickers").inner_text() for frame in (left, right))
    for frame in (left, right):
        frame.evaluate("explain.go({ station: 'encoder.layers.0.attn' })")
        assert "matched by their index" in frame.locator("#pickers").inner_text()
    left.evaluate("explain.go({ tokens: [9, 2] })")
    assert right.evaluate("explain.state.tokens") == [
        min(9, right.evaluate("explain.page.data.sides[0].tokens.length") - 1),
        2,
    ]
    boxes = [frame.frame_element().bounding_box() for frame in (left, right)]
    assert boxes[0]["x"] == boxes[1]["x"]
    assert boxes[1]["y"] == pytest.approx(boxes[0]["y"] + boxes[0]["height"])
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
