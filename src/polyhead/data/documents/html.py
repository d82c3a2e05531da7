"""HTML: the text of each block with its inline elements; code, scripts and attributes stay."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import accumulate

from polyhead.data.documents.segment import DocumentFormat, Piece, Segment, escape_xml, group_pieces

_INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|data|del|dfn|em|font|i|ins|label|mark|q|rp|rt|ruby|s|small|span|strike|"
    "strong|sub|sup|time|tt|u"
)
_ATOM = re.compile("img|wbr|input|embed|!")
_VOID = re.compile("img|wbr|input|embed|area|base|br|col|hr|link|meta|param|source|track")
_INLINE_CODE = re.compile("code|kbd|samp|var|math|svg|button|select|object|iframe|audio|video|canvas")
_BLOCK_CODE = re.compile("script|style|pre|textarea|template|noscript|xmp|plaintext")


class _Reader(HTMLParser):
    """Lists what the parser of the standard library finds: kind, name, place, and whether it is copied."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.line_starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
        self.events = list[tuple[str, str, int, bool]]()
        self.feed(text)
        self.close()

    def _add(self, kind: str, name: str = "", is_copied: bool = False) -> None:
        line, column = self.getpos()
        self.events.append((kind, name, self.line_starts[line - 1] + column, is_copied))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        is_copied = ("translate", "no") in attrs or "notranslate" in (dict(attrs).get("class") or "").split()
        is_copied |= bool(_BLOCK_CODE.fullmatch(tag) or _INLINE_CODE.fullmatch(tag))
        self._add("void" if _VOID.fullmatch(tag) else "open", tag, is_copied)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)  # the slash has no meaning in HTML

    def handle_endtag(self, tag: str) -> None:
        self._add("close", tag)

    def handle_data(self, data: str) -> None:
        self._add("text")

    def handle_comment(self, data: str) -> None:
        self._add("void", "!")

    def handle_decl(self, decl: str) -> None:
        self._add("void")

    def handle_pi(self, data: str) -> None:
        self._add("void")

    unknown_decl = handle_pi


def _read_pieces(text: str) -> Iterator[Piece]:
    """Yield the pieces of a document; tags that are not inline are breaks."""
    events = _Reader(text).events
    copied, depth, copied_start = "", 0, 0  # the element whose content is copied
    for (kind, name, start, is_copied), after in zip(events, [*events[1:], None], strict=False):
        end = after[2] if after else len(text)
        if not copied and kind == "open" and is_copied:
            copied, copied_start = name, start
        if copied:
            depth += (name == copied) * ((kind == "open") - (kind == "close"))
            if depth == 0 or after is None:
                is_inline = _INLINE.fullmatch(name) or _INLINE_CODE.fullmatch(name)
                yield Piece("atom" if is_inline else "break", copied_start, text[copied_start:end])
                copied = ""
            continue
        raw = text[start:end]
        if kind == "text":
            yield Piece("text", start, raw, html.unescape(raw))
        elif kind in ("open", "close") and _INLINE.fullmatch(name):
            yield Piece("open" if kind == "open" else "close", start, raw, name=name)
        else:
            yield Piece("atom" if _ATOM.fullmatch(name) else "break", start, raw)


def find_html_segments(text: str, target_language: str = "") -> Iterator[Segment]:
    """Yield the text of each block."""
    return group_pieces(_read_pieces(text))


HTML = DocumentFormat(find_html_segments, escape_xml, (".html", ".htm", ".xhtml"))
