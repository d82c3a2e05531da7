"""XLIFF 1.2 and 2: the sources of the units whose targets are missing, empty or not yet translated."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from xml.parsers import expat

from polyhead.core.errors import UserError, format_value
from polyhead.data.documents.segment import DocumentFormat, Piece, Segment, escape_xml
from polyhead.tokenizers.languages import normalize_language

_PAIRS = {"bpt": "ept", "bx": "ex", "sc": "ec", "sm": "em"}  # which belong together by their ids
MAX_ELEMENT_DEPTH = 100
_PAIRED_ELEMENTS = ("g", "pc", "mrk")
_TO_TRANSLATE = {"new", "needs-translation", "initial"}  # states of units


@dataclass
class _Node:
    """An element with what is in it, or a text, or a comment, at its place."""

    kind: str  # "element", "text" or "other"
    tag: str
    attributes: dict[str, str]
    start: int
    inner_start: int
    inner_end: int = 0
    end: int = 0
    text: str = ""
    children: list[_Node] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of an element without its namespace."""
        return self.tag.rpartition(":")[2]


def _read_tree(text: str) -> _Node:
    """The root element of an XML document without a document type."""
    data, events = text.encode(), list[tuple[str, str, dict[str, str], int]]()
    parser, place, byte = expat.ParserCreate("utf-8"), 0, 0

    def add(kind: str, content: str = "", attributes: dict[str, str] | None = None) -> None:
        nonlocal place, byte
        place += len(data[byte : parser.CurrentByteIndex].decode())
        byte = parser.CurrentByteIndex
        events.append((kind, content, attributes or {}, place))

    def add_other(content: str) -> None:
        add("text" if content in ("<![CDATA[", "]]>") else "other")

    def reject_doctype(*declaration: object) -> None:
        raise UserError("xliff: a document type is not supported; remove <!DOCTYPE ...>")

    parser.StartDoctypeDeclHandler, parser.DefaultHandler = reject_doctype, add_other
    parser.StartElementHandler = partial(add, "element")
    parser.EndElementHandler = partial(add, "close")
    parser.CharacterDataHandler = partial(add, "text")
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise UserError(f"xliff: the document is not well-formed XML: {error}") from None
    opened = [_Node("", "", {}, 0, 0)]
    ends = [*(start for _, _, _, start in events[1:]), len(text)]
    for (kind, content, attributes, start), end in zip(events, ends, strict=True):
        siblings = opened[-1].children
        if kind == "close":  # of <x/> at its end
            node = opened.pop()
            node.inner_end, node.end = start, end
        elif kind == "text" and siblings and siblings[-1].kind == "text":
            siblings[-1].text += content
            siblings[-1].end = end
        elif kind == "element":
            siblings.append(_Node(kind, content, attributes, start, end))
            opened.append(siblings[-1])
            if len(opened) > MAX_ELEMENT_DEPTH + 1:
                raise UserError(f"xliff: elements are nested more than {MAX_ELEMENT_DEPTH} deep")
        else:
            siblings.append(_Node(kind, "", {}, start, start, end, end, content))
    return next(node for node in opened[0].children if node.kind == "element")


def find_xliff_segments(text: str, target_language: str = "") -> Iterator[Segment]:
    """Yield the units to translate, at the places of their targets.

    A UserError if it is no XLIFF, or its targets are in another language.
    """
    root = _read_tree(text)
    version = root.attributes.get("version", "")
    if root.name != "xliff" or version[:2] not in ("1.", "2."):
        found = f"version {format_value(version)}" if root.name == "xliff" else f"<{root.name}>"
        raise UserError(f"xliff: the document is {found}; expected <xliff> of version 1.2 or 2.0")
    elements = (root, *root.children) if target_language else ()
    codes = [one.attributes.get(name) for one in elements for name in ("trgLang", "target-language")]
    for code in filter(None, codes):
        if normalize_language(code) != normalize_language(target_language):
            raise UserError(
                f"xliff: the targets of the document are in {format_value(code)}, but the translation is in "
                f"{format_value(target_language)}"
            )
    if version[0] == "2" and "trgLang" not in root.attributes and target_language:
        place = root.start + len(f"<{root.tag}")
        yield Segment(place, place, [], prefix=f' trgLang="{html.escape(target_language)}"')
    yield from _find_units(text, root, "yes")


def _find_units(text: str, node: _Node, translate: str) -> Iterator[Segment]:
    translate = node.attributes.get("translate", translate)
    found = {child.name: child for child in node.children}
    if node.name not in ("trans-unit", "segment"):
        for child in node.children:
            yield from _find_units(text, child, translate)
        return
    if translate != "yes" or "source" not in found:
        return
    source, target = found["source"], found.get("target")
    segment = Segment(0, 0, list(_read_pieces(text, source)))
    tag = source.tag.removesuffix("source") + "target"
    if target is None:
        blank = len(text[: source.start].rstrip())
        segment.start = segment.end = found.get("seg-source", source).end
        segment.prefix, segment.suffix = f"{text[blank : source.start]}<{tag}>", f"</{tag}>"
    elif target.inner_start == target.end:  # <target/>
        segment.start, segment.end = target.start, target.end
        segment.prefix, segment.suffix = f"{text[target.start : target.end - 2].rstrip()}>", f"</{tag}>"
    else:
        segment.start, segment.end = target.inner_start, target.inner_end
        states = {target.attributes.get("state"), node.attributes.get("state")}
        if text[segment.start : segment.end].strip() and not states & _TO_TRANSLATE:
            return
    if segment.has_letters:
        yield segment


def _read_pieces(text: str, node: _Node) -> Iterator[Piece]:
    """Yield the text and the inline elements of a source."""
    for child in node.children:
        raw, attributes = text[child.start : child.end], child.attributes
        key = attributes.get("rid") or attributes.get("startRef") or attributes.get("id") or ""
        is_protected = attributes.get("mtype") == "protected" or attributes.get("translate") == "no"
        if child.text:
            yield Piece("text", child.start, raw, child.text)
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


XLIFF = DocumentFormat(find_xliff_segments, escape_xml, (".xlf", ".xliff"))
