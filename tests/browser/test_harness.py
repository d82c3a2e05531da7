"""The harness finds what is wrong with a page, and a missing browser fails where CI is set."""

from __future__ import annotations

import pytest
from tests.browser.conftest import SCREENS, check_accessibility, find_chromium, refuse, watched_pages

GOOD = (
    '<!DOCTYPE html><html lang="en"><title>t</title><link rel="icon" '
    'href="data:,"><main><h1>good</h1>{}</main>'
)


@pytest.fixture
def good_page(tmp_path):
    def write(body: str = ""):
        path = tmp_path / "page.html"
        path.write_text(GOOD.format(body))
        return path

    return write


def test_a_page_without_fault_passes(open_page, good_page):
    check_accessibility(open_page(good_page()))


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ('<p style="color: #bbb; background: #fff">pale</p>', "color-contrast"),
        ("<input>", "label"),
        ('<button type="button"></button>', "button-name"),
        ('<p style="width: 900px">wide</p>', "px wider than the window"),
    ],
)
def test_a_barrier_is_found(open_page, good_page, body, rule):
    with pytest.raises(AssertionError, match=rule):
        check_accessibility(open_page(good_page(body)), SCREENS[0])


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("console.error('oh')", "console: oh"),
        ("throw new Error('oh')", "page: oh"),
        ("setTimeout(() => { undefined.map; })", "page: Cannot read properties of undefined"),
        ("fetch('nowhere.txt')", "request: GET .*nowhere.txt"),
    ],
)
def test_what_the_browser_complains_of_is_an_error_unless_expected(browser, good_page, script, complaint):
    path = good_page(f"<script>{script}</script>")
    with pytest.raises(AssertionError, match=complaint), watched_pages(browser) as open_one:
        open_one(path).wait_for_timeout(50)
    with watched_pages(browser) as open_one:
        open_one(path, expected=".").wait_for_timeout(50)


@pytest.mark.parametrize(("ci", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_browser_fails_ci_and_skips_elsewhere(monkeypatch, tmp_path, ci, outcome):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("POLYHEAD_CHROMIUM", raising=False)
    assert find_chromium() is None
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no browser"):
        refuse("no browser")


def test_the_browser_may_be_named(monkeypatch, tmp_path):
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("POLYHEAD_CHROMIUM", str(program))
    assert find_chromium() == str(program)
    monkeypatch.setenv("POLYHEAD_CHROMIUM", str(tmp_path / "other"))
    assert find_chromium() is None
