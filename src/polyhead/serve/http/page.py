"""The web page at the root of the service. It is the same for every model and gets its content from the API.

Nothing is loaded from other hosts. A content security policy admits the style and the script by their hashes
and only allows connections to this service, so that script injected into a text can neither run nor send
data.
"""

from __future__ import annotations

from functools import cache

from polyhead.core.i18n import UI_LANGUAGES, get_chosen_language, get_language, load_catalog
from polyhead.viz.html_page import PAGE_STYLES, SCRIPTS, csp_hash, json_script, read_asset, script_texts

TOOL_SCRIPTS = ("base", "parts", "files", "translate", "write", "read", "shell")


@cache
def render_page(language: str) -> bytes:
    """Return the HTML document; it starts in ``language`` and contains the texts of all languages."""
    return f"""<!DOCTYPE html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>Polyhead</title>
<style>{_load_style()}</style>
</head>
<body>
<main>
<header>
<p class="brand">Polyhead</p>
<h1>…</h1>
<p class="lead"></p>
<p class="facts-line"></p>
<div class="top"><span class="state" role="status"></span>
<div class="site-switches"></div></div>
</header>
<noscript><p class="mistake">This page requires JavaScript; the API does not require this page.</p></noscript>
<div id="tools"></div>
<details class="program" hidden><summary></summary><pre tabindex="0" role="region"></pre></details>
<p id="announcement" class="unseen" role="status"></p>
<footer><p hidden><a href="explain"></a></p>
<nav hidden><a href="/openapi.json"></a><a href="/metrics"></a></nav></footer>
</main>
{json_script(_chinese_catalog(), ' id="catalog"')}
<script>{_load_script()}</script>
</body>
</html>
""".encode()


def choose_page_language(accept_language: str) -> str:
    """Return the language of the page.

    It is the language chosen for the process, else the first known one of Accept-Language, else the default.
    """
    if chosen := get_chosen_language():
        return chosen
    candidates = []
    for order, entry in enumerate(accept_language.split(",")):
        tag, _, weight = entry.strip().partition(";q=")
        candidates.append((-_parse_weight(weight), order, tag.strip().lower().partition("-")[0]))
    return next(
        (tag for weight, _, tag in sorted(candidates) if tag in UI_LANGUAGES and weight), get_language()
    )


@cache
def content_security_policy() -> str:
    """Return the Content-Security-Policy header of the page."""
    return (
        f"default-src 'none'; connect-src 'self'; img-src data:; style-src {csp_hash(_load_style())}; "
        f"script-src {csp_hash(_load_script())}; base-uri 'none'; form-action 'none'; frame-ancestors "
        "'none'"
    )


def _parse_weight(text: str) -> float:
    try:
        return float(text or 1)
    except ValueError:
        return 0.0


def _chinese_catalog() -> dict[str, str]:
    """Return the translations of the script's texts and of the messages; missing ones stay English."""
    catalog = load_catalog("zh")
    translations = {text: catalog[text] for text in script_texts(_load_script()) if text in catalog}
    return {**load_catalog("zh", "serve"), **translations}


def _load_style() -> str:
    return "".join(map(read_asset, PAGE_STYLES)) + read_asset("web/page.css", "polyhead.serve")


@cache
def _load_script() -> str:
    parts = [read_asset(f"web/{name}.js", "polyhead.serve") for name in TOOL_SCRIPTS]
    return "".join([*map(read_asset, SCRIPTS), *parts])
