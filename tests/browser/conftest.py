"""Pages in a headless Chromium: browser errors fail the test, and axe-core checks accessibility.

def test_page_opens(open_page, tmp_path):
    page = open_page(tmp_path / "page.html")  # or a URL; a test may open several
    page.get_by_role("button", name="Translate").click()
    check_accessibility(page)  # in light at 390 px, in dark at 1280 px
"""

import asyncio
import os
import re
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from tests.browser.serving import run_services

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
WCAG = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")
AXE_OPTIONS = {"resultTypes": ["violations"], "runOnly": {"type": "tag", "values": list(WCAG)}}
TIMEOUT = 100_000  # milliseconds, for a busy machine


class Screen(NamedTuple):
    """Color scheme and viewport width of a page."""

    theme: Literal["light", "dark"]
    width: int


PHONE, DESKTOP = Screen("light", 390), Screen("light", 1280)
DARK_DESKTOP = Screen("dark", 1280)


def find_chromium():
    """The path of the browser: $POLYHEAD_CHROMIUM, else the first of CHROMIUM_NAMES on PATH, or None."""
    names = [os.environ["POLYHEAD_CHROMIUM"]] if os.environ.get("POLYHEAD_CHROMIUM") else CHROMIUM_NAMES
    return next(filter(None, map(shutil.which, names)), None)


def skip_or_fail(reason):
    """Fail where CI is set, which promises a browser; skip elsewhere."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def mark_slow(values, *default_values):
    """Parameters of which all but the default ones are slow."""
    return [pytest.param(v, marks=() if v in default_values else pytest.mark.slow) for v in values]


@pytest.fixture(scope="session")
def browser():
    """One Chromium for each worker process."""
    try:
        import axe_playwright_python  # noqa: F401
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        skip_or_fail(f"tests of pages need {error.name}: pip install -c constraints.txt -e '.[dev]'")
    path = find_chromium()
    if path is None:
        names = os.environ.get("POLYHEAD_CHROMIUM") or " or ".join(CHROMIUM_NAMES)
        skip_or_fail(f"tests of pages need a browser, and there is no {names}: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        # playwright marks its event loop as running between calls; asyncio.run would fail in other tests
        asyncio._set_running_loop(None)
        yield browser
        asyncio._set_running_loop(browser._loop)
        browser.close()


@pytest.fixture(scope="session")
def shared_page(browser):
    """A page that is emptied after each test: a new one costs half a second of a processor."""
    asyncio._set_running_loop(browser._loop)
    page = browser.new_context().new_page()
    asyncio._set_running_loop(None)
    return page


@pytest.fixture
def open_page(browser, shared_page):
    """The function of ``watch_pages``, for one test."""
    with watch_pages(browser, shared_page) as open_one:
        yield open_one


@pytest.fixture(scope="session")
def get_service():
    """The service of a model of ``serving.MODELS``."""
    with run_services() as get_service:
        yield get_service


@pytest.fixture
def open_tool(get_service, open_page):
    """A function that opens the page of a model's service, and a tool by its tab where there are several."""

    def open_one(model, tab=None, **options):
        page = open_page(get_service(model).url, **options)
        page.locator(".button.main:visible").wait_for()
        if tab:
            page.get_by_role("tab", name=tab).click()
        return page

    return open_one


@pytest.fixture
def open_design(open_page, tmp_path):
    """A function that explains a config and opens the page; it returns the run, the document and the page."""
    from tests.browser.explain_pages import open_document
    from tests.explain.explain_helpers import explain_design

    def open_one(config, **options):
        run, document = explain_design(config)
        return run, document, open_document(open_page, document, tmp_path / "page.html", **options)

    return open_one


@contextmanager
def watch_pages(browser, shared_page):
    """A function that opens a URL or a file, the first one without options in the shared page.

    AssertionError at the end if a page logged an error or a warning, threw an error, or a request failed,
    unless ``expected``, a regular expression, matches the message. Other options are those of a context of
    playwright (locale, timezone_id, ...).
    """
    pages, handlers, messages = [], [], []
    asyncio._set_running_loop(browser._loop)

    def open_one(location, screen=DESKTOP, *, expected=None, **options):
        def add_message(message):
            if expected is None or not re.search(expected, message):
                messages.append(message)

        is_shared = not options and shared_page not in pages
        page = shared_page if is_shared else browser.new_context(**options).new_page()
        pages.append(page)
        page.set_default_timeout(TIMEOUT)
        for event, handler in (
            ("console", lambda m: m.type in ("error", "warning") and add_message(f"console: {m.text}")),
            ("pageerror", lambda error: add_message(f"page: {error}")),
            (
                "requestfailed",  # but for one that the page gave up, as when it is left
                lambda r: (
                    r.failure == "net::ERR_ABORTED" or add_message(f"request: {r.method} {r.url} {r.failure}")
                ),
            ),
        ):
            page.on(event, handler)
            handlers.append((page, event, handler))
        show_on(page, screen)
        page.mouse.move(0, 0)
        page.goto(location.resolve().as_uri() if isinstance(location, Path) else location)
        return page

    try:
        yield open_one
    finally:
        for page, event, handler in handlers:
            page.remove_listener(event, handler)
        for page in pages:
            if page is shared_page:
                page.unroute_all()
                page.evaluate("localStorage.clear(); sessionStorage.clear()")
                page.emulate_media(media="null")
                page.goto("about:blank")
            else:
                page.context.close()
        asyncio._set_running_loop(None)
    assert not messages, "\n".join(messages)


def show_on(page, screen):
    page.emulate_media(color_scheme=screen.theme)
    page.set_viewport_size({"width": screen.width, "height": 800})


def check_accessibility(page, *screens):
    """No rule of WCAG 2.2 A or AA is violated and nothing is wider than the window, on each screen.

    By default on a light phone and a dark desktop, which have both themes and both widths.
    """
    from axe_playwright_python.base import AXE_SCRIPT

    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    for screen in screens or (PHONE, DARK_DESKTOP):
        show_on(page, screen)
        violations = page.evaluate("options => axe.run(options)", AXE_OPTIONS)["violations"]
        nodes = [(rule["id"], node["target"], node["html"]) for rule in violations for node in rule["nodes"]]
        assert not nodes, (screen, nodes)
        root = "document.documentElement"
        overflow = page.evaluate(f"{root}.scrollWidth - {root}.clientWidth")
        assert overflow <= 0, f"{screen}: the page is {overflow} px wider than the window"


def wait_until(page, expression):
    """Poll a JavaScript condition; the content security policy refuses playwright's wait_for_function."""
    while not page.evaluate(expression):
        page.wait_for_timeout(50)
