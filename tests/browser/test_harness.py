"""Tests of the browser harness: page errors and accessibility violations fail a test."""

from contextlib import nullcontext

import pytest
from tests.browser.conftest import PHONE, check_accessibility, watch_pages

PAGE = (
    '<!DOCTYPE html><html lang="en"><title>t</title><link rel="icon" href="data:,"><main><h1>t</h1>{}</main>'
)
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ('<p style="color: #bbb; background: #fff">pale</p>', "color-contrast"),
        ("<input>", "label"),
        ('<p style="width: 900px">wide</p>', "px wider than the window"),
    ],
)
def test_accessibility_violation_is_reported(open_page, tmp_path, body, rule):
    (tmp_path / "page.html").write_text(PAGE.format(body))
    with pytest.raises(AssertionError, match=rule):
        check_accessibility(open_page(tmp_path / "page.html"), PHONE)


@pytest.mark.parametrize(
    ("event", "script", "message"),
    [
        ("console", "console.error('oh')", "console: oh"),
        ("pageerror", "undefined.map", "page: Cannot read properties of undefined"),
        ("requestfailed", "fetch('nowhere.txt')", "request: GET .*nowhere.txt"),
    ],
)
def test_page_error_fails_unless_expected(browser, tmp_path, event, script, message):
    path = tmp_path / "page.html"
    path.write_text(PAGE.format(""))
    for expected in (None, "."):
        outcome = nullcontext() if expected else pytest.raises(AssertionError, match=message)
        with outcome, watch_pages(browser) as open_one:
            page = open_one(path, expected=expected)
            with page.expect_event(event):
                page.evaluate(f"setTimeout(() => {{ {script}; }})")
