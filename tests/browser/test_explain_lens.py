"""The grid of all heads on the page of ``explain``."""

import numpy as np
import pytest
from tests.browser.conftest import check_accessibility
from tests.browser.explain_pages import go_to_station, open_document
from tests.explain.explain_helpers import DESIGNS, TARGET, TEXT, explain_walk, make_run, read_document

READ_ALPHA = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return [...data].filter((_, i) => i % 4 === 3);
}"""


@pytest.fixture
def open_design(open_page, tmp_path):
    """A function that opens the page of a design; it returns its document and page."""

    def open_one(design):
        run = make_run(**DESIGNS[design][0])
        document = explain_walk(run, TEXT, TARGET if run.kind == "encoder-decoder" else None)
        return document, open_document(open_page, document, tmp_path / "page.html")

    return open_one


def test_grid_has_weights_of_all_heads(open_design):
    document, page = open_design("GPT-2")
    go_to_station(page, "stack.layers.0.attn")
    weights = read_document(document)("stack.layers.1.attn.weights")
    alpha = page.locator("[data-focus='thumb-1-2'] canvas").evaluate(READ_ALPHA)
    assert np.abs(np.array(alpha) / 255 - weights[2].ravel() ** 0.7).max() < 0.01
    assert page.locator("#card-heads .thumb").count() == 8
    page.locator("[data-focus='thumb-1-2']").click()
    assert page.evaluate("[explain.state.station, explain.state.head]") == ["stack.layers.1.attn", 2]
    assert (
        page.locator("#card-heads .thumb[aria-pressed=true]").get_attribute("aria-label") == "layer 2, head 3"
    )
    check_accessibility(page)
