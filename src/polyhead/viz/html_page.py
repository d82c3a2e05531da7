"""Self-contained HTML pages: style, script and data inline, no requests, light and dark mode.

A content security policy allows only the one script, by its hash, so that injected text cannot run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from polyhead.core.i18n import get_language, tr
from polyhead.core.output_paths import check_output_file, write_atomic

_TEXT = re.compile(r"""\bt\(\s*("(?:[^"\\]|\\.)*")""")


class PageSection(NamedTuple):
    """A section: a heading, a lead sentence, and HTML that is already escaped."""

    heading: str
    lead: str
    body: str


def render_html(
    title: str,
    lead: str,
    sections: Sequence[PageSection],
    note: str = "",
    *,
    style: str = "",
    script: str = "",
    allow_requests: bool = False,
) -> str:
    """The complete document.

    Title, lead, headings and note are plain text; style and script follow those of the page. Only with
    ``allow_requests`` may the page send requests, to the server that it came from.
    """
    script = read_asset("page.js") + script
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {csp_hash(script)}; img-src data:"
    policy += "; connect-src 'self'" if allow_requests else ""
    body = "\n".join(
        f"<section>\n<h2>{escape(heading)}</h2>\n{paragraph(about)}\n{html}\n</section>"
        for heading, about, html in sections
    )
    document = f"""<!DOCTYPE html>
<html lang="{get_language()}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="Polyhead">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{read_asset("page.css")}{style}</style>
</head>
<body>
<main>
<header>
<p class="brand">Polyhead</p>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>
</header>
{body}
<footer>{escape(note)}</footer>
</main>
{script_catalog(script)}<script>{script}</script>
</body>
</html>
"""
    return document.encode(errors="replace").decode()  # paths may have bytes that are no UTF-8


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
    """The translations of all texts that a script passes to ``t("...")``, in the element that ``t`` reads.

    Empty for English. It must be before the script in the document.
    """
    if get_language() == "en":
        return ""
    return json_script({text: tr(text) for text in script_texts(script)}, ' id="catalog"') + "\n"


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
