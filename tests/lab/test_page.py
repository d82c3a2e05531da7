import ast
import re
from pathlib import Path

from tests.lab.page_helpers import RESULT
from tests.source_files import ALL_MODULES, LAB, parse_file
from tests.viz.html_pages import Page

from polyhead.core.i18n import use_language
from polyhead.viz.html_page import REPOSITORY
from polyhead_lab.page import render_figure, render_lab_page, translate_result
from polyhead_lab.registry import AttentionPlot, ExperimentResult


def read_texts(html):
    return [text for _, text in Page(html).texts if text.strip()]


def test_claim_has_verdict_source_and_measurement():
    texts = read_texts(render_lab_page(RESULT, False, "note"))
    for claim, verdict in zip(
        RESULT.claims, ("held", "did not hold", "undecided", "undecided (toy task)"), strict=True
    ):
        at = texts.index(claim.sentence)
        assert texts[at : at + 5] == [claim.sentence, verdict, claim.source, "Measured", claim.measurement]
    assert any("1 held, 1 did not hold, 2 undecided" in text for text in texts)
    assert {"First.", "Second.", "note", "12,000", "0.0312", "About & so on"} <= set(texts)
    assert not any(text.startswith("Quick run") for text in texts)
    assert any(text.startswith("Quick run") for text in read_texts(render_lab_page(RESULT, True, "")))


def test_texts_are_escaped_and_nan_not_drawn():
    page = Page(html := render_lab_page(RESULT, False, ""))
    assert not page.all("i") and not page.all("x")
    assert not any("two" in text for tag, text in page.texts if tag == "b")
    assert not re.search(r"""(?:src|href)=["'](?!data:,)""", html)
    assert page.data() == [[[[1, 4], [3, 2]]]]  # without the curve of NaN alone
    assert "nan" not in re.sub(r"<(style|script)>.*?</\1>", "", html, flags=re.S).lower()


def test_page_links_documentation_and_chapters():
    root = Path(__file__).parents[2]
    page = Page(render_lab_page(RESULT, False, "", "scaling"))
    addresses = [link["href"] for link in page.all("a")]
    assert len(addresses) == 2 and all(address.startswith(REPOSITORY) for address in addresses)
    documentation, chapter = (address.removeprefix(f"{REPOSITORY}/") for address in addresses)
    assert documentation == "docs/lab.md#scaling" and "\n## scaling\n" in (root / "docs/lab.md").read_text()
    assert "- {name: scaling, " in (root / chapter).read_text()
    assert [text for tag, text in page.texts if tag == "a"][1] == "Chapter: Why the scale"


def test_attention_is_drawn_by_weight():
    page = Page(render_figure(AttentionPlot("It", ["a", "it"], [[1.0, 0.0], [0.25, 0.75]], "See it")))
    opacities = [float(cell["fill-opacity"]) for cell in page.all("rect") if cell["class"] == "cell"]
    assert opacities == [1.0, 0.0, round(0.25**0.7, 3), round(0.75**0.7, 3)]
    assert {"It", "See it", "a", "it"} <= {text.strip() for _, text in page.texts}


def read_titles():
    """The titles of the figures in the code of experiments, where they have no numbers."""
    for path in (path for path in ALL_MODULES if LAB in path.parents):
        for node in ast.walk(parse_file(path)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith(("Plot", "Table")):
                yield from (x.value for x in node.args[:1] if isinstance(x, ast.Constant))


def test_titles_of_figures_have_chinese():
    titles = sorted(set(read_titles()))
    with use_language("zh"):
        translated = [translate_result(ExperimentResult(title, "", [])).title for title in titles]
    assert len(titles) > 30
    assert [title for title, chinese in zip(titles, translated, strict=True) if title == chinese] == []
