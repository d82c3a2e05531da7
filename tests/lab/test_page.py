import json
import re
from html.parser import HTMLParser

from tests.lab.page_helpers import RESULT

from polyhead.lab.page import render_lab_page


class Texts(HTMLParser):
    """What a reader reads."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_data(self, data):
        self.found.append(data)


def texts(html):
    parser = Texts()
    parser.feed(html)
    return [text for text in parser.found if text.strip()]


def test_every_claim_stands_with_its_verdict_source_and_measurement():
    read = texts(render_lab_page(RESULT, False, "note"))
    for claim, verdict in zip(RESULT.claims, ("held", "did not hold", "undecided", "undecided"), strict=True):
        at = read.index(claim.sentence)
        assert read[at : at + 5] == [claim.sentence, verdict, claim.source, "Measured", claim.measurement]
    assert any("1 held, 1 did not hold, 2 undecided" in text for text in read)
    assert {"First.", "Second.", "note", "12,000", "0.0312", "About & so on"} <= set(read)


def test_what_comes_from_outside_is_only_ever_text():
    html = render_lab_page(RESULT, False, "")
    assert not re.search(
        r"<title>A <title>|<i>|<x>|<b>\W", html.replace("<b>Loss</b>", "").replace("<b>Measured</b>", "")
    )
    assert not re.search(r"""(?:src|href)=["'](?!data:,)""", html)


def test_a_quick_run_says_so():
    assert "Quick run" not in render_lab_page(RESULT, False, "")
    assert any(text.startswith("Quick run") for text in texts(render_lab_page(RESULT, True, "")))


def test_values_that_are_no_numbers_are_not_drawn():
    html = render_lab_page(RESULT, False, "")
    (points,) = re.findall(r'<script type="application/json">(.*?)</script>', html)
    assert json.loads(points) == [[[1, 4], [3, 2]]]  # the curve that has no number at all is left out
    assert "nan" not in re.sub(r"<(style|script)>.*?</\1>", "", html, flags=re.S).lower()
