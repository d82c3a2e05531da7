import numpy as np
from tests.viz.html_pages import Page

from polyhead.introspect.attention_map import AttentionMap
from polyhead.introspect.head_scores import survey_heads
from polyhead.viz.heads_page import draw_links, write_heads_page

WEIGHTS = np.tril(np.random.default_rng(0).dirichlet(np.ones(4), size=(2, 2, 4)))
WEIGHTS /= WEIGHTS.sum(-1, keepdims=True)
WEIGHTS[0, 1] = [[1, 0, 0, 0], [0.9, 0.1, 0, 0], [0.05, 0.9, 0.05, 0], [0, 0.05, 0.9, 0.05]]
MAP = AttentionMap(
    ["<s>", " a", " <b>", "."], ["<s>", " a", " <b>", "."], WEIGHTS, "self-attention", layers=[1, 3]
)


def test_page_has_every_head(tmp_path):
    heads = survey_heads(lambda text: {"self": MAP}, [("a",)], {})
    page = Page(write_heads_page(tmp_path / "h.html", heads, None).read_text())
    figures = {one["id"]: one["class"] for one in page.all("figure")}
    cells = {one["href"]: one["class"] for one in page.all("a") if one["href"].startswith("#")}
    assert set(figures) == {"self-1-0", "self-1-1", "self-3-0", "self-3-1"}
    assert {f"#{name}" for name in figures} == set(cells)
    assert figures["self-1-1"] == "head kind-previous"
    assert all(kind == f"head {cells[f'#{name}']}" for name, kind in figures.items())
    assert "previous token 90% (equal weights 36%)" in page.words()
    assert "<b>" in page.words()  # a token is text


def test_links_are_the_weights():
    lines = [one for name, one in Page(draw_links(MAP, 0, 1)).elements if name == "line"]
    assert sorted(float(one["opacity"]) for one in lines) == [0.1, 0.9, 0.9, 0.9, 1.0]
    strongest = lines[-1]
    assert strongest["x1"] == strongest["x2"]
    assert all(float(one["x1"]) > float(one["x2"]) for one in lines[-4:-1])
