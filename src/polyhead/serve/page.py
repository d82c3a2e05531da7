"""The page at the root of the service: it is the same for every model, and asks the service what there is to show.

Nothing is loaded from elsewhere. A content security policy names the style and the script by their hashes and lets the page
talk to its own service alone, so nothing that slips into a text could ever run or be sent away.
"""

from __future__ import annotations

from functools import cache

from polyhead.analysis.page import asset, digest


@cache
def page() -> bytes:
    """The whole document."""
    return f"""<!DOCTYPE html>
<html lang="en">
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
<span class="state" role="status"></span>
</header>
<noscript><p class="mistake">This page needs its script; the service does not need this page.</p></noscript>
<div id="tools"></div>
<details class="program" hidden><summary>The same from a program</summary><pre></pre></details>
<footer><nav hidden><a href="/openapi.json">routes</a><a href="/metrics">metrics</a></nav></footer>
</main>
<script>{_script()}</script>
</body>
</html>
""".encode()


@cache
def policy() -> str:
    """What the page may do."""
    return (
        f"default-src 'none'; connect-src 'self'; img-src data:; style-src {digest(_style())}; script-src {digest(_script())}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _style() -> str:
    return asset("page.css") + asset("page.css", "polyhead.serve")


def _script() -> str:
    return asset("page.js") + asset("page.js", "polyhead.serve")
