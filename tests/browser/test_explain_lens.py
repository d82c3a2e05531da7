"""Guesses after each layer, shares of logits and the grid of all heads on the page of ``explain``."""

import json

import numpy as np
import pytest
from tests.browser.conftest import check_accessibility
from tests.browser.explain_pages import go_to_station, read_data_values, read_numbers
from tests.explain.explain_helpers import DESIGNS, read_document

READ_ALPHA = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return [...data].filter((_, i) => i % 4 === 3);
}"""


def test_guesses_and_shares_are_those_of_document(open_design):
    _, document, page = open_design(DESIGNS["Vaswani et al."][0])
    lens = json.loads(json.dumps(document["lens"]))
    go_to_station(page, "lens")
    at = 3
    page.evaluate("at => explain.go({ tokens: [0, at], share: '0' })", at)
    rows = page.locator("#card-lens tbody tr").all()
    assert len(rows) == len(lens["rows"]) == 3
    for row, guesses in zip(rows, reversed(lens["rows"]), strict=True):
        words = row.locator(".guess-cell .pointable").all_inner_texts()
        assert len(words) == len(guesses["ids"])
        for word, top in zip(words, guesses["ids"], strict=True):
            text = lens["texts"][str(top[0])].replace(" ", "␣")
            assert word == text or (len(text) > 8 and word[:-1] == text[:7])
        right = row.locator(".guess-cell.right").count()
        assert right == sum(rank == 1 for rank in guesses["rank"])
    values = read_data_values(page.locator("#card-rise td[data-value]"))
    assert values == [row["p_expected"][at] for row in reversed(lens["rows"])]

    shares = read_document(document)(lens["shares"])[at, 0]
    numbers = [float(one["value"].replace("−", "-")) for one in read_numbers(page, "#card-shares")]
    largest = shares[np.argsort(-np.abs(shares))][:16]
    assert numbers == pytest.approx(largest.tolist(), rel=1e-3, abs=1e-5)
    (total,) = read_data_values(page.locator("#card-shares tr.on td[data-value]"))
    assert total == pytest.approx(shares.sum(), abs=1e-4)
    page.evaluate("explain.go({ share: '0-2' })")
    (difference,) = read_data_values(page.locator("#card-shares tr.on td[data-value]"))
    assert difference == pytest.approx(lens["logits"][at][0] - lens["logits"][at][2], abs=1e-6)
    check_accessibility(page)


def test_grid_has_weights_of_all_heads(open_design):
    _, document, page = open_design(DESIGNS["GPT-2"][0])
    go_to_station(page, "stack.layers.0.attn")
    weights = read_document(document)("stack.layers.1.attn.weights")
    alpha = page.locator("[data-focus='thumb-1-2'] canvas").evaluate(READ_ALPHA)
    assert np.abs(np.array(alpha) / 255 - weights[2].ravel() ** 0.7).max() < 0.01
    assert page.locator("#card-heads .thumb").count() == 8
    page.locator("[data-focus='thumb-1-2']").click()
    assert page.evaluate("[explain.state.station, explain.state.head]") == ["stack.layers.1.attn", 2]
    assert (
        page.locator("#card-heads .thumb[aria-pressed=true]").get_attribute("aria-label") == "layer 2, head 2"
    )
    check_accessibility(page)
