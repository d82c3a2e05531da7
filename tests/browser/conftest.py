"""Pages in a headless Chromium: what a browser complains of fails the test, and axe-core looks for barriers.

def test_the_page_opens(open_page, tmp_path):
    page = open_page(tmp_path / "page.html")  # or a URL; a test may open several
    page.get_by_role("button", name="Translate").click()
    check_accessibility(page)  # light and dark, 390 and 1280 px wide
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
WCAG = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")


class Screen(NamedTuple):
    """What a page is looked at on."""

    theme: Literal["light", "dark"]
    width: int

    def __str__(self) -> str:
        return f"{self.theme}-{self.width}"


SCREENS = [Screen(theme, width) for theme in ("light", "dark") for width in (390, 1280)]
# both themes and both widths, for further variants of a page that is checked on all four
CORNERS = (SCREENS[0], SCREENS[-1])


def find_chromium() -> str | None:
    """The path of the browser: $POLYHEAD_CHROMIUM, else the first of NAMES on PATH."""
    names = (os.environ["POLYHEAD_CHROMIUM"],) if os.environ.get("POLYHEAD_CHROMIUM") else NAMES
    return next(filter(None, map(shutil.which, names)), None)


def refuse(reason: str) -> None:
    """Fail where CI is set, which promises a browser; skip elsewhere."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


# of a module, not of the session: while playwright runs, asyncio.run fails in its thread
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for the tests of a module."""
    try:
        import axe_playwright_python  # noqa: F401
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        refuse(f"tests of pages need {error.name}: pip install -c constraints.txt -e '.[dev]'")
    path = find_chromium()
    if path is None:
        asked = os.environ.get("POLYHEAD_CHROMIUM") or " or ".join(NAMES)
        refuse(f"tests of pages need a browser, and there is no {asked}: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """The function of ``watched_pages``, for one test."""
    with watched_pages(browser) as open_one:
        yield open_one


@contextmanager
def watched_pages(browser: Any) -> Iterator[Callable[..., Any]]:
    """A function that opens a URL or a file, each in a context of its own; all are closed at the end.

    AssertionError at the end if a page logged an error or a warning, threw an error, or asked for what did
    not come, unless
    ``expected``, a regular expression, is found in the message. Other options are those of a context of
    playwright (locale, timezone_id, ...).
    """
    contexts, complaints = [], []

    def open_one(
        place: str | Path, screen: Screen = SCREENS[1], *, expected: str | None = None, **options: Any
    ) -> Any:
        def complain(message: str) -> None:
            if expected is None or not re.search(expected, message):
                complaints.append(message)

        context = browser.new_context(
            color_scheme=screen.theme, viewport={"width": screen.width, "height": 800}, **options
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on(
            "console", lambda m: complain(f"console: {m.text}") if m.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: complain(f"page: {error}"))
        page.on(
            "requestfailed",
            lambda request: complain(f"request: {request.method} {request.url} {request.failure}"),
        )
        page.goto(place.resolve().as_uri() if isinstance(place, Path) else place)
        return page

    try:
        yield open_one
    finally:
        for context in contexts:
            context.close()
    assert not complaints, "\n".join(complaints)


def show_on(page: Any, screen: Screen) -> None:
    """Give an open page another theme and width."""
    page.emulate_media(color_scheme=screen.theme)
    page.set_viewport_size({"width": screen.width, "height": 800})


def check_accessibility(page: Any, *screens: Screen) -> None:
    """No rule of WCAG 2.2 A or AA is violated and nothing sticks out at the side, on each screen (all if
    none is named).
    """
    from axe_playwright_python.sync_playwright import Axe

    rules = {"resultTypes": ["violations"], "runOnly": {"type": "tag", "values": list(WCAG)}}
    for screen in screens or SCREENS:
        show_on(page, screen)
        found = Axe().run(page, options=rules)
        assert not found.violations_count, f"{screen}: {found.generate_report()}"
        sideways = page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert sideways <= 0, f"{screen}: the page is {sideways} px wider than the window"
