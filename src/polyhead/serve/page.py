"""The page at the root of the service: it is the same for every model, and asks the service what there is to show.

Nothing is loaded from elsewhere. A content security policy names the style and the script by their hashes and lets the page
talk to its own service alone, so nothing that slips into a text could ever run or be sent away.
"""

from __future__ import annotations

from functools import cache

from polyhead.analysis.page import asset, data, digest, script_texts
from polyhead.core.i18n import LANGUAGES, get_chosen_language, get_language, load_catalog

SCRIPTS = ("base", "parts", "files", "translate", "write", "read", "shell")


@cache
def page(language: str) -> bytes:
    """The whole document, which begins in that language and holds the texts of all."""
    return f"""<!DOCTYPE html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>Polyhead</title>
<style>{_style()}</style>
</head>
<body>
<main>
<header>
<p class="brand">Polyhead</p>
<h1>…</h1>
<p class="lead"></p>
<p class="facts-line"></p>
<div class="top"><span class="state" role="status"></span>
<div class="languages" role="group">{_language_buttons()}</div></div>
</header>
<noscript><p class="mistake">This page needs its script; the service does not need this page.</p></noscript>
<div id="tools"></div>
<details class="program" hidden><summary></summary><pre tabindex="0" role="region"></pre></details>
<p id="announcement" class="unseen" role="status"></p>
<footer><nav hidden><a href="/openapi.json"></a><a href="/metrics"></a></nav></footer>
</main>
{data(_chinese(), ' id="catalog"')}
<script>{_script()}</script>
</body>
</html>
""".encode()


def page_language(accepted: str) -> str:
    """The language that the process was told to use, else the first of an Accept-Language header that there is, else its own."""
    if chosen := get_chosen_language():
        return chosen
    wanted = []
    for order, entry in enumerate(accepted.split(",")):
        tag, _, weight = entry.strip().partition(";q=")
        wanted.append((-_weight(weight), order, tag.strip().lower().partition("-")[0]))
    return next((tag for weight, _, tag in sorted(wanted) if tag in LANGUAGES and weight), get_language())


@cache
def policy() -> str:
    """What the page may do."""
    return (
        f"default-src 'none'; connect-src 'self'; img-src data:; style-src {digest(_style())}; script-src {digest(_script())}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _weight(text: str) -> float:
    try:
        return float(text or 1)
    except ValueError:
        return 0.0


def _language_buttons() -> str:
    names = LANGUAGES | {"en": "EN"}
    return "".join(
        f'<button type="button" lang="{code}" aria-pressed="false">{name}</button>'
        for code, name in names.items()
    )


def _chinese() -> dict[str, str]:
    """The texts of the script and the service's messages; what no catalog has stays English."""
    known = load_catalog("zh")
    found = {text: known[text] for text in script_texts(_script()) if text in known}
    return {**load_catalog("zh", "serve"), **found}


def _style() -> str:
    return asset("page.css") + asset("web/page.css", "polyhead.serve")


@cache
def _script() -> str:
    parts = [asset(f"web/{name}.js", "polyhead.serve") for name in SCRIPTS]
    return "".join([asset("page.js"), *parts])
