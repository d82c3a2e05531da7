"""The page that walks a text through a model: one HTML file with its data, its script and its texts inline.

The script is the files of ``page/`` in the order of ``PAGE_SCRIPTS``, after d3.
Its texts are English in the script; the page carries the Chinese of all of them, so that a reader can switch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from polyhead.core.i18n import load_catalog
from polyhead.explain.arrays import encode_bytes
from polyhead.viz.html_page import csp_hash, json_script, read_asset, render_head, script_texts

PAGE_SCRIPTS = (
    "page/vendor/d3.min.js",
    "page/base.js",
    "page/state.js",
    "arrays.js",
    "page/model.js",
    "page/draw.js",
    "page/equations.js",
    "page/inspector.js",
    "page/formulas.js",
    "page/origins.js",
    "page/formulas_attention.js",
    "page/follow.js",
    "page/numpy.js",
    "page/parts_input.js",
    "page/parts_layer.js",
    "page/parts_attention.js",
    "page/parts_change.js",
    "page/parts_states.js",
    "page/parts_output.js",
    "page/parts_lens.js",
    "page/parts_patching.js",
    "page/parts_learnt.js",
    "page/levers.js",
    "page/live.js",
    "page/measures.js",
    "page/quiz.js",
    "page/lesson.js",
    "page/handout.js",
    "page/glance.js",
    "page/save.js",
    "page/classroom.js",
    "page/shell.js",
    "page/main.js",
)


def render_walk_page(
    document: Mapping[str, Any] | None,
    *,
    language: str = "en",
    live: Mapping[str, Any] | None = None,
    chapters: Mapping[str, Any] | None = None,
    links: Mapping[str, Any] | None = None,
) -> str:
    """The complete HTML document.

    ``document`` is what ``explain`` returns, None on a live page, which asks the service for it; ``live`` is
    what such a page starts from: endpoint, text, target, has_target, needs_key. ``chapters`` is the lesson
    as language -> list of chapters. ``links`` are those of ``find_run_links``.
    """
    script, style = load_walk_script(), load_walk_style()
    title = f"{document['run']['name']} · Polyhead" if document else "Polyhead"
    tag = "zh-CN" if language == "zh" else "en"
    if document is not None:
        document = pack_parts(document)
    data = [
        (' id="explain-data"', document),
        (' id="explain-live"', live),
        (' id="explain-chapters"', chapters),
        (' id="links"', links),
    ]
    elements = "\n".join(json_script(value, attributes) for attributes, value in data if value is not None)
    head = render_head(title, tag, walk_page_policy(live is not None), style)
    return f"""{head}<a id="skip" href="#stage">Skip to the stage</a>
<header id="top"></header>
<div id="ask"{"" if live else " hidden"}></div>
<div class="frame">
<nav id="path"></nav>
<main>
<div id="pickers" role="group"></div>
<div id="stage" tabindex="-1"></div>
</main>
<aside id="aside">
<div class="beside">
<section id="inspector" aria-live="polite"></section>
<section id="lesson"></section>
</div>
</aside>
</div>
{json_script(chinese_texts(script), ' id="catalog"')}
{elements}
<script>{script}</script>
</body>
</html>
"""


def pack_parts(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its largest parts after the arrays as one compressed text, "packed"."""
    parts = {name: document[name] for name in ("levers", "walk", "values") if name in document}
    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    rest = {name: value for name, value in document.items() if name not in parts}
    return {**rest, "packed": encode_bytes(text.encode())} if parts else rest


def render_pair_page(pages: Sequence[str], names: Sequence[str]) -> str:
    """One document with the pages of two runs in frames; what is chosen in one is chosen in the other."""
    # the frames have their own policy, and that of this document too
    style = read_asset("page/pair.css", "polyhead.explain")
    policy = walk_page_policy(is_live=False).replace("style-src", f"style-src {csp_hash(style)}")
    frames = "\n".join(
        f'<iframe title="{escape(name)}" srcdoc="{escape(page)}"></iframe>'
        for page, name in zip(pages, names, strict=True)
    )
    return f"""{render_head(f"{' · '.join(names)} · Polyhead", "en", policy, style)}{frames}
</body>
</html>
"""


def walk_page_policy(is_live: bool) -> str:
    """The content security policy of the page: its own script and style; only a live page sends requests."""
    style = csp_hash(load_walk_style())
    policy = (
        f"default-src 'none'; style-src {style}; script-src {csp_hash(load_walk_script())}; img-src data:"
    )
    return policy + ("; connect-src 'self'" if is_live else "")


def load_walk_script() -> str:
    """The script of the page: those of all pages, and all of ``PAGE_SCRIPTS``, one after the other."""
    scripts = (read_asset(name, "polyhead.explain") for name in PAGE_SCRIPTS)
    return "\n".join([read_asset("site.js"), *scripts, read_asset("thumbs.js")])


def load_walk_style() -> str:
    """The style of the page, after that of all pages."""
    return read_asset("site.css") + read_asset("page/page.css", "polyhead.explain")


def chinese_texts(script: str) -> dict[str, str]:
    """English text -> Chinese, of the texts that the script shows."""
    catalog = load_catalog("zh")
    return {text: catalog[text] for text in script_texts(script) if text in catalog}
