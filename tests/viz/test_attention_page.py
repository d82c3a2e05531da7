from xml.etree import ElementTree

import numpy as np
import pytest
from tests.viz.html_pages import Page

from polyhead.core.errors import UserError
from polyhead.introspect.attention_map import AttentionMap
from polyhead.viz.attention_page import heat_map_svg, join_tokens, write_attention_page

WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(4), size=(2, 3, 5))


def test_heat_map_shows_each_weight():
    source, target = ["in", " 3", " days", "</s>"], ["3", "天", "后", "。", "</s>"]
    root = ElementTree.fromstring(heat_map_svg(AttentionMap(source, target, WEIGHTS), 0, 1))
    cells = [e for e in root.iter("rect") if e.get("class") == "cell"]
    opacities = {tuple(float(e.get(k)) for k in ("y", "x")): float(e.get("fill-opacity")) for e in cells}
    ys, xs = (sorted(set(values)) for values in zip(*opacities, strict=True))
    assert np.allclose(np.diff(xs), 26, atol=0.11)
    opacity = np.array([[opacities[y, x] for x in xs] for y in ys])
    assert np.allclose(opacity ** (1 / 0.7), WEIGHTS[0, 1], atol=2e-3)
    assert [e.text for e in root.iter("text")] == ["in", "3", "days", "</s>", *target]


def test_page_embeds_every_weight(tmp_path):
    attention = AttentionMap([" a", "b", "c\n", " "], list("vwxyz"), WEIGHTS)
    page = Page(write_attention_page(tmp_path / "a.html", attention, "Attention").read_text())
    ((data,),) = page.data()
    assert np.allclose(np.array(data["weights"]) / 1000, WEIGHTS, atol=5.1e-4)
    assert (data["source"], data["kind"]) == (["a", "b", "c⏎", "␣"], "cross-attention")
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
def test_join_tokens(tokens, text):
    assert join_tokens(tokens) == text
