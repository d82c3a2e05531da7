"""One HTML file that needs nothing else: style, script and data inside, no request to anywhere, light and dark.

A content security policy names the one script by its hash, so nothing that slips into the text could ever run.
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
from polyhead.places import file_place, put

_TEXT = re.compile(r"""\bt\(\s*("(?:[^"\\]|\\.)*")""")


class Section(NamedTuple):
    """A heading, a sentence under it, and HTML that is already safe."""

    heading: str
    lead: str
    body: str


def page(
    title: str,
    lead: str,
    sections: Sequence[Section],
    note: str = "",
    *,
    style: str = "",
    script: str = "",
    connects: bool = False,
) -> str:
    """The whole document; title, lead, headings and note are plain text, style and script go after the page's own.

    Only a page that ``connects`` may send requests, to the service that it came from.
    """
    script = asset("page.js") + script
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {digest(script)}; img-src data:"
    policy += "; connect-src 'self'" if connects else ""
    body = "\n".join(section_html(section) for section in sections)
    return f"""<!DOCTYPE html>
<html lang="{get_language()}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="Polyhead">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{asset("page.css")}{style}</style>
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


def digest(text: str) -> str:
    """How a policy names a script or a style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def section_html(section: Section) -> str:
    """A section of the page."""
    lead = f'<p class="about">{escape(section.lead)}</p>' if section.lead else ""
    return f"<section>\n<h2>{escape(section.heading)}</h2>\n{lead}\n{section.body}\n</section>"


def scrollable(html: str, name: str, kind: str = "") -> str:
    """HTML that scrolls sideways where it does not fit, by the keyboard too; ``name`` is for who cannot see it."""
    return f'<div class="{f"scroll {kind}".strip()}" role="region" tabindex="0" aria-label="{escape(name)}">{html}</div>'


def data(value: Any, attributes: str = "") -> str:
    """Data for the page's script. "<" is written as an escape, so no text can close the element it stands in."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f'<script type="application/json"{attributes}>{text.replace("<", chr(92) + "u003c")}</script>'


def script_catalog(script: str) -> str:
    """The translations of all texts that a script passes to ``t("...")``, in the element where ``t`` finds them.

    Empty for English. It belongs before the script in the document.
    """
    if get_language() == "en":
        return ""
    return data({text: tr(text) for text in script_texts(script)}, ' id="catalog"') + "\n"


def script_texts(script: str) -> list[str]:
    """All texts that a script passes to ``t("...")``."""
    return sorted({json.loads(text) for text in _TEXT.findall(script)})


def asset(name: str, package: str = "polyhead.analysis") -> str:
    """The text of a file that lies in a package: beside this one, or beside another page."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def write(path: Path | str, text: str) -> Path:
    """Write the file whole or not at all, and make its directory."""
    path = file_place(Path(path), "")
    put(path, text.encode())
    return path
