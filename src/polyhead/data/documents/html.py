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
_MAX_OPEN_TAGS = 512  # deeper ones are not nested, as in browsers
# elements whose end tags may be left out, and the tags that then end them, besides the end of their parent
_OPTIONAL_ENDS = {
    "p": re.compile(
        "address|article|aside|blockquote|details|div|dl|fieldset|fig(caption|ure)|footer|form|h[1-6r]|header|"
        "hgroup|main|menu|nav|ol|p|pre|search|section|table|ul"
    ),
    "li": re.compile("li"),
    **dict.fromkeys(("dt", "dd"), re.compile("d[td]")),
    **dict.fromkeys(("td", "th"), re.compile("td|th|tr|tbody|tfoot")),
    "tr": re.compile("tr|tbody|tfoot"),
}


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


def _ends_copied(open_tags: list[str], kind: str, name: str) -> bool:
    """Whether a tag ends the copied element, the first of the open ones, whose end tag was left out."""
    if kind == "text" or not open_tags or open_tags[0] not in _OPTIONAL_ENDS:
        return False
    if kind == "close":
        return name not in open_tags and not _INLINE.fullmatch(name)
    is_next = _OPTIONAL_ENDS[open_tags[0]].fullmatch(name)
    return is_next is not None and all(tag in _OPTIONAL_ENDS for tag in open_tags)


def _read_pieces(text: str) -> Iterator[Piece]:
    """Yield the pieces of a document; tags that are not inline are breaks."""
    events = _Reader(text).events
    open_tags, copied_start = list[str](), 0  # of the element whose content is copied, and of those in it
    for (kind, name, start, is_copied), after in zip(events, [*events[1:], None], strict=False):
        end = after[2] if after else len(text)
        if _ends_copied(open_tags, kind, name):
            yield Piece("break", copied_start, text[copied_start:start])
            open_tags = []
        if not open_tags and kind == "open" and is_copied:
            copied_start = start
        if open_tags or (kind == "open" and is_copied):
            if kind == "open" and len(open_tags) < _MAX_OPEN_TAGS:
                open_tags.append(name)
            elif kind == "close" and name in open_tags:
                while open_tags.pop() != name:
                    pass
            if not open_tags or after is None:
                is_inline = _INLINE.fullmatch(name) or _INLINE_CODE.fullmatch(name)
                yield Piece("atom" if is_inline else "break", copied_start, text[copied_start:end])
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
