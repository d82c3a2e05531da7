"""What mkdocs.yml needs beyond settings: the READMEs as first pages, the Chinese pages, the ready pages of
`polyhead explain`, links that leave docs/, and formulas as MathML.

The pages stay as they are read in the repository: a link to a file outside of docs/ becomes one to the
  repository's page.
"""

from __future__ import annotations

import posixpath
import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
FIRST_PAGES = {"README.md": "index.md", "README.zh-CN.md": "index.zh-CN.md"}
CHINESE = ".zh-CN.md"
READY_PAGES = ROOT / "build" / "pages"  # of ready_pages.py
READY_PAGE = re.compile(r"\*\*([^*]+)\*\*\s?[(（]`build/pages/([\w-]+\.html)`[)）]")
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")
FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)
CODE = re.compile(r"<(pre|code)\b.*?</\1>", re.S)
TABLE_CELL = re.compile(r"<td[^>]*>.*?</td>", re.S)
PATH_BREAK = re.compile(r"(?<=[^<][/.])(?=\w{3})")  # in a path or a key, but not before .py
CHINESE_BREAK = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef])\n(?=[\u3000-\u9fff\uff00-\uffef])")
LATEX = re.compile(r"\\[\w|(\[]+|\$\$|\$[^\s$][^$\n<]*\$")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the Chinese page of each page that has one, in the same order."""
    names = [name.removesuffix(".md") + CHINESE for name in page_names(config.nav or [])]
    there = [name for name in names if (ROOT / "docs" / name).is_file()]
    config.nav = [*(config.nav or []), {"中文": ["index" + CHINESE, *there]}]
    return config


def page_names(nav: Any) -> list[str]:
    """The files that a nav lists, in order."""
    if isinstance(nav, str):
        return [nav]
    return [name for item in (nav.values() if isinstance(nav, dict) else nav) for name in page_names(item)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The READMEs are the first pages; the ready pages are included if they were built."""
    for path in sorted(READY_PAGES.glob("*.html")):
        files.append(File.generated(config, f"pages/{path.name}", abs_src_path=str(path)))
    for readme, page in FIRST_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / readme).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let every link lead to a page of the site, or else to the repository; link the ready pages."""
    origin = next((name for name, first in FIRST_PAGES.items() if first == page.file.src_uri), None)
    base = posixpath.dirname(origin or f"docs/{page.file.src_uri}")

    def lead(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(base, link[1]))
        if target in FIRST_PAGES or target.startswith("docs/"):
            inside = FIRST_PAGES.get(target, target.removeprefix("docs/"))
            return "](" + posixpath.relpath(inside, posixpath.dirname(page.file.src_uri) or ".")
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"]({config.extra['repository']}/{kind}/main/{target}"

    parts = FENCE.split(markdown)
    parts[::2] = [READY_PAGE.sub(link_ready_page, LINK.sub(lead, part)) for part in parts[::2]]
    if page.file.src_uri.endswith(CHINESE):  # a break between two characters would be drawn as a space
        parts[::2] = [CHINESE_BREAK.sub("", part) for part in parts[::2]]
    return "".join(parts)


def link_ready_page(named: re.Match[str]) -> str:
    """A link in place of the name and the file of a ready page, if it was built."""
    return f"[{named[1]}](pages/{named[2]})" if (READY_PAGES / named[2]).is_file() else named[0]


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write formulas as MathML, which browsers draw without a script; raw LaTeX on a page fails the build."""
    html = FORMULA.sub(lambda m: convert(unescape(m[3]), display="block" if m[2] == "[" else "inline"), html)
    if raw := LATEX.search(CODE.sub("", html)):
        raise PluginError(f"{page.file.src_uri}: {raw[0]!r} is left as raw LaTeX")
    return TABLE_CELL.sub(lambda cell: write_cell(cell[0]), html)


def write_cell(html: str) -> str:
    """A cell whose paths and keys break into lines, so that the last columns of wide tables are seen."""
    # a bar in a cell of Markdown needs a backslash, which Python-Markdown keeps within code
    return CODE.sub(lambda code: PATH_BREAK.sub("<wbr>", code[0]), html.replace("\\|", "|"))


def on_page_context(context: Any, page: Page, config: MkDocsConfig, nav: Any) -> Any:
    """The texts of the theme have the language of the page, and its switch leads to its twin."""
    name = page.file.src_uri
    config.theme["language"] = "zh" if name.endswith(CHINESE) else "en"
    plain = name.removesuffix(CHINESE).removesuffix(".md")
    twin = plain if (ROOT / "docs" / (plain + CHINESE)).is_file() else "index"
    for entry, ending in zip(config.extra["alternate"], (".html", ".zh-CN.html"), strict=True):
        entry["link"] = f"./{twin}{ending}"
    return context


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The theme calls its Chinese zh; fonts and screen readers need to know which."""
    return output.replace('<html lang="zh"', '<html lang="zh-CN"', 1)
