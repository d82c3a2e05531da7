"""The first drawing of the page of ``explain``: the whole model, with the numbers of its own pass."""

import re

import pytest
from tests.browser.conftest import PHONE, check_accessibility, mark_slow, wait_until
from tests.browser.explain_pages import open_walk
from tests.explain.explain_helpers import (
    DESIGNS,
    ReferenceWalk,
    explain_design,
    walk_model,
)

from polyhead.explain.chapters import load_chapters
from polyhead.explain.walk_page import render_walk_page
from polyhead.viz.html_page import save_page

KINDS = {
    "translator": {},
    "deep": {"kind": "decoder", "n_layers": 48, "norm_first": True},
    "deep translator": {"n_layers": 12},
    "classifier": {"kind": "encoder", "labels": ["bad", "good", "fair"]},
    "sentences": {"kind": "encoder", "lm_head": False, "pooling": "mean"},
    "replaced": {"kind": "encoder", "generator_layers": 1},
    "masked": {"kind": "encoder", "norm_first": True, "head_transform_activation": "gelu"},
    "lstm": {"kind": "encoder", "block": "lstm"},
    "linear": {"kind": "decoder", "attention": "linear", "position": "none"},
    "experts": {"kind": "decoder", "feed_forward": "moe", "position": "alibi"},
    "parallel": {"kind": "decoder", "block": "parallel", "norm_first": True},
    "convolution": {"kind": "decoder", "block": "gated_conv", "norm_first": True},
}
READ_BLOCKS = """() => [...document.querySelectorAll("svg.glance .block")]
  .map((one) => [one.dataset.focus, Number(one.querySelector(".weight")?.getAttribute("width") ?? 0)])"""


def read_table(page):
    """The table of the drawing as block -> numbers, as text."""
    page.locator("#stage details.numbers summary").click()
    page.locator("#stage details.numbers tbody").wait_for()  # built by an event after the click
    rows = page.locator("#stage details.numbers tbody tr").all()
    return {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in rows}


def test_lengths_and_weights_match_model(open_design):
    run, document, page = open_design(DESIGNS["GPT-2"][0])
    walk = ReferenceWalk()
    walk_model(run, document, walk)
    token = page.evaluate("explain.state.tokens[0]")
    table, layer = read_table(page), run.model.stack.layers[1]
    weights, _, added, after = table["Layer 2: Feed-forward"]
    n_weights = sum(p.numel() for part in (layer.ffn, layer.ffn_residual) for p in part.parameters())
    assert int(weights.replace(",", "")) == n_weights
    path = "stack.layers.1.ffn"
    for text, name in ((added, f"{path}.out"), (after, f"{path}_residual.out")):
        assert float(text) == pytest.approx(float(walk.arrays[name][token].norm()), rel=1e-3)
    bars = dict(page.evaluate(READ_BLOCKS))
    attn = layer.attn
    maps = (attn.q_proj, attn.k_proj, attn.v_proj, attn.o_proj, layer.attn_residual)
    attention = sum(p.numel() for part in maps for p in part.parameters())
    ratio = bars[f"block-{path}"] / bars["block-stack.layers.1.attn"]
    assert ratio == pytest.approx(n_weights / attention, rel=1e-3)


def test_note_counts_shared_weights(open_design):
    run, _, page = open_design(KINDS["translator"])
    uses = [p.numel() for _, p in run.model.named_parameters(remove_duplicate=False)]
    n = sum(p.numel() for p in run.model.parameters())
    note = page.locator(".glance-card .below .note").inner_text()
    numbers = [f"{x / 1000:.3g}\u2009k" for x in (sum(uses), sum(uses) - n, n)]
    assert sum(uses) > n
    assert re.findall(r"[\d.]+\u2009k", note) == numbers
    assert read_table(page)["the model, shared weights once"][0] == f"{n:,}"
    _, _, page = open_design(KINDS["translator"] | {"tie_embeddings": "none"})
    assert page.locator(".glance-card .below .note").count() == 0


def test_width_of_line_is_length_of_vector(open_design):
    run, document, page = open_design(DESIGNS["GPT-2"][0])
    walk = ReferenceWalk()
    walk_model(run, document, walk)
    lines = page.evaluate("""() => [...document.querySelectorAll("svg.glance .streams:not(.pale) .stream")]
      .map((one) => one.getAttribute("d"))""")
    x = walk.arrays["embedding.position.out"].norm(dim=-1)
    starts = [list(map(float, re.findall(r"[-\d.]+", line)[:2])) for line in lines]
    ends = [float(re.findall(r"[-\d.]+ [-\d.]+Z", line)[0].split()[0]) for line in lines]
    widths = [end - left for (left, _), end in zip(starts, ends, strict=True)]
    assert len(widths) == len(x)
    first = walk.arrays["embedding.scaled"].norm(dim=-1)  # what the embedding hands on
    assert [w / widths[0] for w in widths] == pytest.approx((first / first[0]).tolist(), rel=1e-3)


@pytest.mark.parametrize("head", [0, 2])
def test_links_are_weights_of_chosen_token(head, open_design):
    run, document, page = open_design(DESIGNS["GPT-2"][0])
    walk = ReferenceWalk()
    walk_model(run, document, walk)
    page.evaluate("head => explain.go({ head, tokens: [6] })", head)
    widths = page.evaluate("""() => [...document.querySelectorAll("svg.glance .links .link.on")]
      .map((one) => Number(one.getAttribute("stroke-width")))""")
    weights = [walk.arrays[f"stack.layers.{i}.attn.weights"][head, 6] for i in range(2)]
    expected = [w for row in weights for k, w in enumerate(row.tolist()) if w > 0.03 and k != 6]
    assert sorted(widths) == pytest.approx([0.4 + 6 * w for w in sorted(expected)], abs=0.01)


@pytest.mark.parametrize("kind", mark_slow(KINDS, "translator", "deep", "classifier"))
def test_every_kind_of_model_is_drawn(kind, open_design):
    _, document, page = open_design(KINDS[kind])
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(50)
        markup = page.locator("svg.glance").evaluate("svg => svg.outerHTML")
        assert not re.search(r"NaN|undefined|null|Infinity", markup)
        labels = page.locator("svg.glance .block").evaluate_all("all => all.map((one) => one.ariaLabel)")
        assert len(set(labels)) == len(labels) > 3
    streams = page.locator("svg.glance .streams:not(.pale) .stream").count()
    assert streams == sum(len(side["tokens"]) for side in document["sides"])
    guesses = page.locator("svg.glance .guess:not(.whole)").all_text_contents()
    if document["output"].get("classes"):
        assert sorted(guesses) == ["bad", "fair", "good"]
    elif document["output"].get("positions"):
        position = document["output"]["positions"][page.evaluate("explain.state.tokens.at(-1)")]
        assert len(guesses) == 3
        assert float(page.locator(".share.first").get_attribute("width")) == pytest.approx(
            max(1, 54 * position["top"][0]["p"]), rel=1e-6
        )


def test_blocks_open_their_stations(open_design):
    _, _, page = open_design({})
    names = page.locator("svg.glance .block").evaluate_all("all => all.map((one) => one.dataset.focus)")
    assert "block-decoder.layers.1.cross" in names
    for name in (names[1], "block-decoder.layers.1.cross", "block-output"):
        page.locator(f"[data-focus='{name}'] .ground").click()
        assert page.evaluate("explain.state.station") == name.removeprefix("block-")
        page.evaluate("explain.go({ station: 'glance' })")
        assert page.locator(".block.last").get_attribute("data-focus") == name


def test_keyboard_moves_among_blocks_and_tokens(open_design):
    _, _, page = open_design(KINDS["deep"])
    blocks = page.locator("svg.glance .block[tabindex='0']")
    blocks.focus()
    for key in ("Home", "ArrowUp", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
    name = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert name.startswith("Layer 1: Feed-forward") and blocks.count() == 1
    token = page.evaluate("explain.state.tokens[0]")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("explain.state.tokens[0]") == token + 1
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == name
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")  # a thin floor: the layer opens in the drawing
    assert page.evaluate("[explain.state.station, explain.state.layers.stack]") == ["glance", 1]


def test_part_of_open_chapter_is_lit(open_page, tmp_path):
    _, document = explain_design({})
    chapters = {"en": load_chapters("en")}
    path = save_page(tmp_path / "page.html", render_walk_page(document, chapters=chapters))
    page = open_walk(open_page, path)
    for title, blocks in {
        "Tokens": set(),
        "Queries, keys and values": {"attn"},
        "Feed-forward": {"ffn"},
    }.items():
        page.evaluate(
            "title => explain.go({ chapter: chaptersOf().findIndex((one) => one.title === title) })", title
        )
        lit = page.locator(".block:has(.ground.lit)").evaluate_all(
            "all => all.map((one) => one.dataset.focus)"
        )
        assert {name.rpartition(".")[2] for name in lit} == blocks
        assert (page.locator(".words.lit").count() > 0) == (title == "Tokens")


def test_text_is_read_once_and_again(open_page, tmp_path):
    _, document = explain_design({"kind": "decoder"})
    path = save_page(tmp_path / "page.html", render_walk_page(document))
    page = open_walk(open_page, path, reduced_motion="no-preference")
    wait_until(page, "document.querySelectorAll('svg.glance.reading').length === 1")
    page.evaluate("explain.go({ station: 'output' })")
    page.evaluate("explain.go({ station: 'glance' })")
    wait_until(page, "document.querySelectorAll('svg.glance.reading').length === 0")
    page.get_by_role("button", name="Read again").click()
    assert page.locator("svg.glance.reading").count() == 1
    page = open_walk(open_page, path, reduced_motion="reduce")
    assert page.locator("svg.glance").count() == 1 and page.locator("svg.glance.reading").count() == 0


@pytest.mark.parametrize("kind", mark_slow(KINDS, "deep translator"))
def test_glance_is_accessible(kind, open_design):
    _, _, page = open_design(KINDS[kind], screen=PHONE, reduced_motion="reduce")
    check_accessibility(page)
