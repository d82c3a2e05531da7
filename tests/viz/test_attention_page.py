from xml.etree import ElementTree

import numpy as np
import pytest
from tests.viz.html_pages import Page

from polyhead.core.errors import UserError
from polyhead.introspect.attention_map import AttentionMap
from polyhead.viz.attention_page import heat_map_svg, join_tokens, write_attention_page

WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(4), size=(2, 3, 5))
MAP = AttentionMap(["in", " 3", " days", "</s>"], ["3", "天", "后", "。", "</s>"], WEIGHTS)


def test_the_picture_shows_each_weight_in_its_place():
    root = ElementTree.fromstring(heat_map_svg(MAP, 0, 1, cell=26))
    cells = [e for e in root.iter("rect") if e.get("class") == "cell"]
    xs = sorted({float(e.get("x", "")) for e in cells})
    ys = sorted({float(e.get("y", "")) for e in cells})
    assert np.allclose(np.diff(xs), 26, atol=0.11)
    drawn = {(float(e.get("y", "")), float(e.get("x", ""))): float(e.get("fill-opacity", "")) for e in cells}
    opacities = np.array([[drawn[y, x] for x in xs] for y in ys])
    assert np.allclose(opacities ** (1 / 0.7), WEIGHTS[0, 1], atol=2e-3)
    assert [e.text for e in root.iter("text")] == ["in", "3", "days", "</s>", "3", "天", "后", "。", "</s>"]


def test_the_attention_page_holds_every_weight(tmp_path):
    weights = np.random.default_rng(1).dirichlet(np.ones(4), size=(2, 3, 5))
    attention = AttentionMap([" a", "b", "c\n", " "], list("vwxyz"), weights)
    page = Page(write_attention_page(tmp_path / "a.html", attention, "Attention").read_text())
    ((shown,),) = page.data()
    assert np.allclose(np.array(shown["weights"]) / 1000, weights, atol=5.1e-4)
    assert shown["source"] == ["a", "b", "c⏎", "␣"]
    assert shown["kind"] == "cross-attention"


def test_an_attention_page_without_maps_is_refused(tmp_path):
    with pytest.raises(UserError, match="no attention map"):
        write_attention_page(tmp_path / "a.html", [])


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["Friday", ",", " November", " 20", "</s>"], "Friday, November 20"),
        (["2026", "年", "11", "月", "</s>"], "2026年11月"),
        (["in", " 3", " days", "■"], "in 3 days"),
        (["ein", "Hund"], "ein Hund"),
    ],
)
def test_tokens_are_read_as_a_sentence(tokens, text):
    assert join_tokens(tokens) == text
