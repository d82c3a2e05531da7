"""XLIFF 1.2 and 2: the sources of the units whose targets are missing, empty or not yet translated."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import NamedTuple
from xml.parsers import expat

from polyhead.core.errors import UserError, format_value
from polyhead.data.documents.segment import Piece, Segment

# of well-formed XML without a document type
_PART = re.compile(
    r"<!--.*?-->|<!\[CDATA\[(?P<cdata>.*?)\]\]>|<\?.*?\?>|</(?P<close>[^>\s]+)\s*>"
    r"|<(?P<open>[^>\s/]+)(?P<attributes>(?:[^>\"'/]|\"[^\"]*\"|'[^']*')*+)(?P<empty>/?)>|(?P<text>[^<]+)",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(r"([^\s=]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")
_PAIRS = {"bpt": "ept", "bx": "ex", "sc": "ec", "sm": "em"}  # which belong together by their ids
MAX_ELEMENT_DEPTH = 100
_PAIRED_ELEMENTS = ("g", "pc", "mrk")
_TO_TRANSLATE = ("new", "needs-translation", "initial")  # states of units


class _Part(NamedTuple):
    """A tag with all up to the one that closes it, or a text or comment, at its place."""

    name: str
    attributes: dict[str, str]
    start: int
    inner_start: int
    inner_end: int
    end: int
    text: str = ""


def find_xliff_segments(text: str, target_language: str = "") -> Iterator[Segment]:
    """Yield the units to translate, at the places of their targets; a UserError if it is no XLIFF."""
    parser = expat.ParserCreate("utf-8")
    parser.StartDoctypeDeclHandler, opened = _reject_doctype, list[str]()

    def open_element(name: str, attributes: dict[str, str]) -> None:
        opened.append(name)
        if len(opened) > MAX_ELEMENT_DEPTH:
            raise UserError(f"xliff: elements are nested more than {MAX_ELEMENT_DEPTH} deep")

    parser.StartElementHandler, parser.EndElementHandler = open_element, lambda name: opened.pop()
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        raise UserError(f"xliff: the document is not well-formed XML: {error}") from None
    root = next(part for part in _find_parts(text, 0, len(text)) if part.name)
    version = root.attributes.get("version", "")
    if root.name != "xliff" or version[:2] not in ("1.", "2."):
        found = f"version {format_value(version)}" if root.name == "xliff" else f"<{root.name}>"
        raise UserError(f"xliff: the document is {found}; expected <xliff> of version 1.2 or 2.0")
    if version[0] == "2" and "trgLang" not in root.attributes and target_language:
        place = text.index("xliff", root.start) + len("xliff")
        yield Segment(place, place, [], prefix=f' trgLang="{html.escape(target_language)}"')
    yield from _find_units(text, root, "yes")


def _reject_doctype(*declaration: object) -> None:
    raise UserError("xliff: a document type is not supported; remove <!DOCTYPE ...>")


def _find_parts(text: str, start: int, end: int) -> Iterator[_Part]:
    """Yield the parts of a range that are not inside of others."""
    depth, opened = 0, None
    for match in _PART.finditer(text, start, end):
        if match["close"]:
            depth -= 1
            if depth == 0 and opened:
                yield opened._replace(inner_end=match.start(), end=match.end())
        elif match["open"]:
            attributes = {a: html.unescape(b or c) for a, b, c in _ATTRIBUTE.findall(match["attributes"])}
            name = match["open"].rpartition(":")[2]
            part = _Part(name, attributes, match.start(), match.end(), match.end(), match.end())
            if depth == 0:
                opened = part
                yield from [part] * bool(match["empty"])
            depth += not match["empty"]
        elif depth == 0:
            content = match["cdata"] or html.unescape(match["text"] or "")
            yield _Part("", {}, match.start(), match.start(), match.end(), match.end(), content)


def _find_units(text: str, part: _Part, translate: str) -> Iterator[Segment]:
    children = list(_find_parts(text, part.inner_start, part.inner_end)) if part.name else []
    translate = part.attributes.get("translate", translate)
    found = {child.name: child for child in children}
    if part.name not in ("trans-unit", "segment"):
        for child in children:
            yield from _find_units(text, child, translate)
        return
    if translate != "yes" or "source" not in found:
        return
    source, target = found["source"], found.get("target")
    segment = Segment(0, 0, list(_read_pieces(text, source)))
    name = re.split(r"[\s>]", text[source.start + 1 :], maxsplit=1)[0].removesuffix("source") + "target"
    if target is None:
        blank = source.start
        while text[blank - 1].isspace():
            blank -= 1
        segment.start = segment.end = found.get("seg-source", source).end
        segment.prefix, segment.suffix = f"{text[blank : source.start]}<{name}>", f"</{name}>"
    elif target.inner_start == target.end:  # <target/>
        segment.start, segment.end = target.start, target.end
        segment.prefix, segment.suffix = f"{text[target.start : target.end - 2].rstrip()}>", f"</{name}>"
    else:
        segment.start, segment.end = target.inner_start, target.inner_end
        states = {target.attributes.get("state"), part.attributes.get("state")}
        if text[segment.start : segment.end].strip() and not states & {*_TO_TRANSLATE}:
            return
    yield from [segment] * segment.has_letters


def _read_pieces(text: str, part: _Part) -> Iterator[Piece]:
    """Yield the text and the inline elements of a source."""
    for child in _find_parts(text, part.inner_start, part.inner_end):
        raw, attributes = text[child.start : child.end], child.attributes
        key = attributes.get("rid") or attributes.get("startRef") or attributes.get("id") or ""
        is_protected = attributes.get("mtype") == "protected" or attributes.get("translate") == "no"
        if not child.name:
            yield Piece("text" if child.text else "atom", child.start, raw, child.text)
        elif child.name in _PAIRED_ELEMENTS and child.inner_start < child.end and not is_protected:
            name = f"{child.name} {child.start}"
            yield Piece("open", child.start, text[child.start : child.inner_start], name=name)
            yield from _read_pieces(text, child)
            yield Piece("close", child.inner_end, text[child.inner_end : child.end], name=name)
        elif child.name in _PAIRS:
            yield Piece("open", child.start, raw, name=f"{_PAIRS[child.name]} {key}")
        else:
            is_end = child.name in _PAIRS.values()
            yield Piece("close" if is_end else "atom", child.start, raw, name=f"{child.name} {key}" * is_end)
