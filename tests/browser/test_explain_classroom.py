"""Class mode of the page of ``explain``, and drawings saved as pictures."""

import struct
import xml.etree.ElementTree as ET

import pytest
from tests.browser import explain_pages as pages
from tests.browser.conftest import DARK_DESKTOP, DESKTOP, PHONE, check_accessibility, mark_slow, show_on
from tests.explain.explain_helpers import DESIGNS

OTHER = {
    "lstm": {"kind": "decoder", "block": "lstm"},
    "linear": {"kind": "decoder", "attention": "linear", "position": "none"},
    "experts": {"kind": "decoder", "feed_forward": "moe", "position": "rope"},
    "classes": {"kind": "encoder", "labels": ["bad", "good", "fair"]},
}
CONFIGS = {design: config for design, (config, _) in DESIGNS.items()} | OTHER
LEAST = 14  # pixels of the smallest words of a stage
WINDOWS = ((1280, 800), (1920, 1080))
# the size of the smallest words of the stage, as they are seen
READ_SIZE = """() => Math.min(...[...document.querySelectorAll("#stage *")]
  .filter((one) => one.getClientRects().length && !one.closest(".unseen") && [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()))
  .map((one) => {
    const svg = one.closest("svg"), size = parseFloat(getComputedStyle(one).fontSize);
    return size * (svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : one.currentCSSZoom);
  }))"""  # noqa: E501


def read_stage(page):
    return page.evaluate("[explain.state.stage, explain.state.station, explain.state.card]")


def check_fit(page, stage):
    """The stage is in the window without scrolling, and its words can be read from afar."""
    root = "document.documentElement"
    assert (
        page.evaluate(f"[{root}.scrollWidth <= innerWidth, {root}.scrollHeight <= innerHeight]") == [True] * 2
    ), stage
    inside = "(one => [one.scrollWidth - one.clientWidth, one.scrollHeight - one.clientHeight])"
    assert page.evaluate(f"{inside}(document.querySelector('.staged'))") == [0, 0], stage
    assert page.evaluate(READ_SIZE) >= LEAST, stage


@pytest.mark.parametrize("design", mark_slow(CONFIGS, "GPT-2"))
def test_arrow_keys_go_through_stages(design, open_design):
    """At most 12 stages of one card each, for one token, each in one window; Escape leaves."""
    _, _, page = open_design(CONFIGS[design])
    page.get_by_role("button", name="Class mode").click()
    tokens, seen = page.evaluate("explain.state.tokens"), []
    while not seen or read_stage(page) != seen[-1]:
        seen.append(read_stage(page))
        assert page.locator("#stage .card:visible").count() == 1
        assert page.locator(f"#card-{seen[-1][2]}").is_visible()
        check_fit(page, seen[-1])
        page.keyboard.press("PageDown" if len(seen) % 2 else "ArrowRight")
    assert 5 <= len(seen) <= 12
    assert [stage for stage, *_ in seen] == list(range(len(seen)))
    assert page.evaluate("explain.state.tokens") == tokens
    page.keyboard.press("ArrowLeft")
    assert read_stage(page) == seen[-2]
    page.set_viewport_size(dict(zip(("width", "height"), WINDOWS[1], strict=True)))
    for stage in range(len(seen)):
        page.evaluate("stage => goStage(stage)", stage)
        check_fit(page, seen[stage])
    page.evaluate("stage => goStage(stage)", len(seen) - 2)
    page.keyboard.press("Escape")
    page.locator("#path").wait_for()
    assert read_stage(page) == [None, *seen[-2][1:]]


def test_address_has_stage_token_and_number(open_design):
    _, _, page = open_design(CONFIGS["GPT-2"])
    page.evaluate("explain.go({ tokens: [2], station: 'output' }); goStage(4)")
    page.locator(".staged .heat").focus()
    page.keyboard.press("ArrowRight")
    pages_address = "number=scores"
    while pages_address not in page.url:
        page.wait_for_timeout(50)
    title = page.locator("#inspector h2").inner_text()
    address, stage = page.url, read_stage(page)
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("html[data-ready]", state="attached")
    assert read_stage(page) == stage
    assert page.evaluate("explain.state.tokens") == [2]
    assert page.locator("#inspector h2").inner_text() == title
    check_accessibility(page, DESKTOP, DARK_DESKTOP)
    show_on(page, PHONE)
    page.evaluate("goStage(3)")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE.width


def test_drawing_is_saved_as_svg_and_png(open_design, tmp_path, open_page):
    """The SVG has its own styles: without the page it has the same pixels."""
    _, _, page = open_design(CONFIGS["GPT-2"])
    pages.go_to_station(page, "stack.layers.0.attn")
    menu = page.locator("#card-scores .save")
    menu.locator("summary").click()
    paths = {}
    for kind in ("SVG", "PNG"):
        with page.expect_download() as download:
            menu.get_by_role("button", name=f"{kind}: Scores").click()
        assert download.value.suggested_filename == f"stack.layers.0.attn-scores.{kind.lower()}"
        paths[kind] = tmp_path / download.value.suggested_filename
        download.value.save_as(paths[kind])
    size = page.evaluate(
        "(box => [box.width, box.height])(document.querySelector('#card-scores .heat').viewBox.baseVal)"
    )
    head = paths["PNG"].read_bytes()[:24]
    assert head[1:4] == b"PNG"
    assert list(struct.unpack(">II", head[16:24])) == [2 * side for side in size]
    svg = ET.parse(paths["SVG"]).getroot()
    assert not [one for one in svg.iter() if "class" in one.attrib]
    fill = "one => getComputedStyle(one).fill"
    shown = page.locator("#card-scores .heat rect.cell").evaluate_all(f"all => all.map({fill})")
    texts = page.locator("#card-scores .heat text").all_text_contents()
    other = open_page(paths["SVG"])
    saved = other.locator("rect").evaluate_all(f"all => all.map({fill})")
    assert set(shown) <= set(saved)
    assert any("hidden-2" in one for one in saved)
    assert [one.text for one in svg.iter() if one.tag.endswith("text")] == texts
    page.emulate_media(media="print")
    assert not page.locator("#card-scores .save").is_visible()
