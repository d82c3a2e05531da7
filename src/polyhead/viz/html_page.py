"""Self-contained HTML pages: style, script and data inline, no requests, light and dark mode.

A content security policy allows only the one script, by its hash, so that injected text cannot run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from html import escape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec
from urllib.parse import quote

from polyhead.core.atomic_io import read_regular_file
from polyhead.core.errors import UserError
from polyhead.core.i18n import get_language, load_catalog, use_language
from polyhead.core.output_paths import check_output_file, write_atomic

MAX_PAGE_BYTES = 64 << 20
REPOSITORY = "https://github.com/polyhead/polyhead/blob/main"
RUN_PAGES = ("report.html", "explain.html", "attention.html", "heads.html", "draw.html")
PAGE_STYLES, SCRIPTS = ("site.css", "page.css"), ("site.js", "page.js", "thumbs.js")
_TEXTS_HERE = "<!--texts-->"  # where a page has its texts in the other language
_LINKS = re.compile(r'<script type="application/json" id="links">(.*?)</script>')
_TEXT_ATTRIBUTES = {"aria-label", "title", "placeholder", "data-name", "alt"}
_TEXT = re.compile(r"""\bt\(\s*("(?:[^"\\]|\\.)*")""")

Text = str | Callable[[], str]  # a function where the text depends on the language
Parameters = ParamSpec("Parameters")


class PageSection(NamedTuple):
    """A section: a heading, a lead sentence, and HTML that is already escaped."""

    heading: str
    lead: str
    body: str


def render_html(
    title: Text,
    lead: Text,
    sections: Sequence[PageSection],
    note: str = "",
    *,
    style: str = "",
    script: str = "",
    allow_requests: bool = False,
    links: Mapping[str, Any] | None = None,
) -> str:
    """The complete document.

    Title, lead, headings and note are plain text; style and script follow those of the page. Only with
    ``allow_requests`` may the page send requests, to the server that it came from. ``links`` are
    those of ``find_run_links``.
    """
    title, lead = resolve_text(title), resolve_text(lead)
    script = "".join(map(read_asset, SCRIPTS)) + script
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {csp_hash(script)}; img-src data:"
    policy += "; connect-src 'self'" if allow_requests else ""
    body = "\n".join(
        f"<section>\n<h2>{escape(heading)}</h2>\n{paragraph(about)}\n{html}\n</section>"
        for heading, about, html in sections
    )
    style = "".join(map(read_asset, PAGE_STYLES)) + style
    document = f"""{render_head(title, get_language(), policy, style)}<main>
<header>
<div class="top-line"><p class="brand">Polyhead</p><div class="site-switches"></div></div>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>
{json_script(links, ' id="links"') if links else ""}<nav class="site-links"></nav>
</header>
{body}
<footer>{escape(note)}</footer>
</main>
{script_catalog(script)}{_TEXTS_HERE}<script>{script}</script>
</body>
</html>
"""
    return document.encode(errors="replace").decode()  # paths may have bytes that are no UTF-8


def render_head(title: str, language: str, policy: str, style: str) -> str:
    """The start of a document, down to its body; ``policy`` is its content security policy."""
    return f"""<!DOCTYPE html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="Polyhead">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
"""


def resolve_text(text: Text) -> str:
    """The text in the current language."""
    return text() if callable(text) else text


def find_run_links(run: Path, prefix: str = "", command: str = "") -> dict[str, Any]:
    """Links of a page to the pages of a run that exist, for the script; ``prefix`` leads to its directory.

    Without an explanation the page shows ``command``, which writes it.
    """
    pages = {name: quote(prefix) + name for name in RUN_PAGES if os.path.isfile(run / name)}
    return {"pages": pages, "command": command}


def link_run_pages(run: Path) -> None:
    """Put the links to all pages of a run into each of them, after one was written; damaged ones stay."""
    for name in find_run_links(run)["pages"]:
        with suppress(OSError, ValueError, TypeError, LookupError, UserError):
            text = read_regular_file(run / name, max_bytes=MAX_PAGE_BYTES).decode()
            if found := _LINKS.search(text):
                new = json_script(
                    find_run_links(run, "", str(json.loads(found[1])["command"])), ' id="links"'
                )
                if new != found[0]:
                    write_atomic(run / name, text.replace(found[0], new, 1).encode())


def in_both_languages(render: Callable[Parameters, str]) -> Callable[Parameters, str]:
    """Decorate a function that renders a page: its language can then be switched in the browser.

    It renders the page in each language. The document has the texts that differ, and its script swaps them.
    """

    @functools.wraps(render)
    def render_both(*args: Parameters.args, **options: Parameters.kwargs) -> str:
        page = render(*args, **options)
        with use_language("zh" if get_language() == "en" else "en"):
            texts = pair_texts(page, render(*args, **options))
        return page.replace(_TEXTS_HERE, json_script(texts, ' id="texts"') + "\n" if texts else "", 1)

    return render_both


def pair_texts(page: str, other: str) -> dict[str, str | list[str]]:
    """Text of a page -> the same in another language, of those that differ; empty if the pages do not match.

    What has several translations, as a word that is also a name in the data, has one for each occurrence.
    """
    own_texts, other_texts = _TextCollector(page).found, _TextCollector(other).found
    pairs: dict[str, list[str]] = {}
    if len(own_texts) != len(other_texts):
        return {}
    for own, translated in zip(own_texts, other_texts, strict=True):
        pairs.setdefault(own, []).append(translated)
    return {
        own: found[0] if len(set(found)) == 1 else found
        for own, found in pairs.items()
        if set(found) != {own}
    }


class _TextCollector(HTMLParser):
    """The texts and translated attributes of a document in their order, without styles and programs."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self._is_skipped = False
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = dict(attrs)
        self._is_skipped = tag == "style" or (tag == "script" and (own.get("type") is None or "id" in own))
        values = (_strip(value or "") for name, value in attrs if name in _TEXT_ATTRIBUTES)
        self.found += [text for text in values if text]

    def handle_endtag(self, tag: str) -> None:
        self._is_skipped = False

    def handle_data(self, data: str) -> None:
        if not self._is_skipped and (text := _strip(data)):
            self.found.append(text)


def _strip(text: str) -> str:
    return text.strip(" \n\t")


def paragraph(words: str) -> str:
    """HTML of a caption or a lead; '' if it has none."""
    return f'<p class="about">{escape(words)}</p>' if words else ""


def csp_hash(text: str) -> str:
    """The hash of a script or a style for the content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def scroll_region(html: str, name: str, kind: str = "") -> str:
    """HTML that scrolls horizontally if it does not fit, also by keyboard; ``name`` is for screen readers."""
    return (
        f'<div class="{f"scroll {kind}".strip()}" role="region" tabindex="0" '
        f'aria-label="{escape(name)}">{html}</div>'
    )


def json_script(value: Any, attributes: str = "") -> str:
    """Data for the script of the page. "<" is escaped, so that no text can close the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f'<script type="application/json"{attributes}>{text.replace("<", chr(92) + "u003c")}</script>'


def script_catalog(script: str) -> str:
    """The Chinese of all texts that a script passes to ``t("...")``, in the element that ``t`` reads.

    It must be before the script in the document.
    """
    catalog = load_catalog("zh")
    texts = {text: catalog[text] for text in script_texts(script) if text in catalog}
    return json_script(texts, ' id="catalog"') + "\n"


def script_texts(script: str) -> list[str]:
    """All texts that a script passes to ``t("...")``."""
    return sorted({json.loads(text) for text in _TEXT.findall(script)})


def read_asset(name: str, package: str = "polyhead.viz") -> str:
    """The text of a file of a package, by default of this one."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def save_page(path: Path | str, text: str) -> Path:
    """Write the file atomically; its directory is created."""
    path = check_output_file(Path(path), "")
    write_atomic(path, text.encode())
    return path
