"""Markdown (CommonMark with tables and strikethrough): the text of paragraphs, headings and cells."""

from __future__ import annotations

import html
import re
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from polyhead.data.documents.segment import URL, DocumentFormat, Piece, Segment, group_pieces

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_FRONT_MATTER = re.compile(r"---[^\S\n]*\n.*?^---[^\S\n]*$", re.DOTALL | re.MULTILINE)
_TARGET = r"\((?:[^()\\\n]|\\.|\([^()\n]*\))*+\)|\[[^\[\]]*+\]"  # of a link
# what is copied: code, images, brackets without a target (references, footnotes, boxes of tasks), addresses
_PART = re.compile(
    r"(?P<note>(?m:^)\[\^[^\[\]]++\]:[ \t]*)"  # the mark of a footnote, before its text
    rf"|(?P<atom>(?P<ticks>`++)(?:(?!(?P=ticks)).){{1,1000}}?(?P=ticks)(?!`)|!\[[^\[\]]*+\](?:{_TARGET})?"
    rf"|\[[^\[\]]*+\](?!\(|\[)|<[a-z][\w+.-]*:[^\s<>]*+>|{URL.pattern})"
    rf"|(?P<html><(?P<slash>/?)(?P<tag>[a-zA-Z][\w-]*+)[^<>]*+>)"
    rf"|(?P<close>\](?:{_TARGET}))|(?P<open>\[)|(?P<mark>\*\*|__|~~|[*_])"
    r"|\\(?P<escaped>[!-/:-@\[-`{-~])|(?P<entity>&#?\w++;)|(?P<break>[ ]{2,}\n|\\\n)|(?P<text>[^\W_]++|.)",
    re.DOTALL,
)
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~]|&(?=#?\w+;))")
_BLOCK_START = re.compile(r"(\d*)([.)]|[-+=#])")


@cache
def make_parser() -> MarkdownIt:
    """The parser of the package markdown-it-py."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


def find_markdown_segments(text: str, target_language: str = "") -> Iterator[Segment]:
    """Yield the inline content of each block, between hard line breaks; code and HTML blocks stay."""
    front = _FRONT_MATTER.match(text)
    cursor = front.end() if front else 0
    env: dict[str, Any] = {}
    starts = [cursor, *(cursor + i for i in accumulate(len(line) + 1 for line in text[cursor:].split("\n")))]
    for token in make_parser().parse(text[cursor:], env):
        if token.type != "inline" or token.map is None:
            continue
        places, lines = list[int](), token.content.split("\n")  # where the lines of the content are
        for line, start, end in zip(lines, starts[token.map[0] :], starts[token.map[0] + 1 :], strict=False):
            places.append(text.find(line, max(cursor, start), end))
            cursor = max(cursor, places[-1] + len(line))
        if -1 not in places:  # else the block has escapes, such as \| in a table: it stays
            newline = text[places[0] + len(lines[0]) : places[1]] if len(places) > 1 else "\n"
            for segment in group_pieces(_read_pieces(token.content, places)):
                content = "".join(piece.raw for piece in segment.pieces)
                segment.finish = partial(check_markup, content, env, newline)
                yield segment


def _read_pieces(content: str, places: list[int]) -> Iterator[Piece]:
    """Yield the pieces of the content of a block, whose lines begin at ``places``."""
    line_starts, opened = [0, *(match.end() for match in re.finditer("\n", content))], set[str]()
    for match in _PART.finditer(content):
        line = bisect(line_starts, match.start()) - 1
        place, raw = places[line] + match.start() - line_starts[line], match[0]
        before = content[max(match.start() - 1, 0) : match.start()].strip()
        after = content[match.end() : match.end() + 1].strip()
        if match["mark"] and (raw != "_" or not (before.isalnum() and after.isalnum())) and (before or after):
            yield Piece("close" if before and raw in opened else "open", place, raw, name=raw)
            opened ^= {raw}
        elif match["note"] or match["break"] or (match["tag"] or "").lower() == "br":
            yield Piece("break", place, raw)
        elif match["tag"] and not raw.endswith("/>"):
            yield Piece("close" if match["slash"] else "open", place, raw, name=f"<{match['tag']}>")
        elif match["open"] or match["close"]:
            yield Piece("open" if match["open"] else "close", place, raw, name="[")
        elif match["atom"] or match["tag"]:
            yield Piece("atom", place, raw)
        else:
            yield Piece("text", place, raw, match["escaped"] or html.unescape(raw))


def check_markup(content: str, env: dict[str, Any], newline: str, output: str) -> str | None:
    """The translation of a block or of a part of it; None unless it is one paragraph with the same markup.

    ``newline`` is what is between the lines of the block, such as a line end and the mark of a quote.
    """
    escaped = _BLOCK_START.sub(r"\1\\\2", output, count=1) if _BLOCK_START.match(output) else output
    blocks = [token.type for token in make_parser().parse(escaped, dict(env))]
    is_same = _list_markup(escaped, env) == _list_markup(content, env)
    is_one = blocks == ["paragraph_open", "inline", "paragraph_close"]
    return escaped.replace("\n", newline) if is_same and is_one else None


def _list_markup(text: str, env: dict[str, Any]) -> Counter[str]:
    """What a text has besides its letters."""
    (inline,) = make_parser().parseInline(text, dict(env))
    kinds = ("text", "softbreak", "hardbreak")
    return Counter(
        f"{one.type} {one.attrs} {one.content}" for one in inline.children or [] if one.type not in kinds
    )


def escape_markdown(text: str) -> str:
    """Text whose characters have no meaning as markup."""
    return _SPECIAL.sub(r"\\\1", text)


MARKDOWN = DocumentFormat(find_markdown_segments, escape_markdown, (".md", ".markdown"))
