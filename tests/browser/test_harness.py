"""Tests of the browser harness: page errors and accessibility violations fail a test."""

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
    ("script", "message"),
    [
        ("console.error('oh')", "console: oh"),
        ("setTimeout(() => { undefined.map; })", "page: Cannot read properties of undefined"),
        ("fetch('nowhere.txt')", "request: GET .*nowhere.txt"),
    ],
)
def test_page_error_fails_unless_expected(browser, tmp_path, script, message):
    path = tmp_path / "page.html"
    path.write_text(PAGE.format(f"<script>{script}</script>"))
    with pytest.raises(AssertionError, match=message), watch_pages(browser) as open_one:
        open_one(path).wait_for_timeout(50)
    with watch_pages(browser) as open_one:
        open_one(path, expected=".").wait_for_timeout(50)
