"""Segments of a document: text with inline markup, its sentences, and the same markup in a translation.

Sentences are those of the rules and abbreviations of a language.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from polyhead.tokenizers.languages import normalize_language
from polyhead.tokenizers.scripts import find_words, is_unspaced_char

URL = re.compile(
    r"(?:https?://|ftp://|www\.)[^\s<>\"\\]*[^\s<>\"\\.,;:!?)\]}'。，]|(?<![\w.+-])[\w.+-]{1,64}@[\w-]+(?:\.\w+)+"
)
MAX_MARKUP_DEPTH = 50  # of nested markup; deeper markup is copied where it is
WordLinks = Sequence[tuple[int, int]]
Range = tuple[int, int]
MarkupKind = Literal["text", "open", "close", "atom", "break"]


class Piece(NamedTuple):
    """A part of a document: text, inline markup, which is copied, or a break between segments."""

    kind: MarkupKind
    start: int
    raw: str
    text: str = ""  # without escapes
    name: str = ""  # what opens and closes belongs together if it has the same name


@dataclass
class Segment:
    """What is translated as one text; its translation replaces the characters from ``start`` to ``end``."""

    start: int
    end: int
    pieces: list[Piece]
    prefix: str = ""  # added before and after the translation
    suffix: str = ""
    finish: Callable[[str], str | None] = str  # the translation as it is written; None: the source stays

    @property
    def has_letters(self) -> bool:
        """Whether there is something to translate."""
        return any(map(str.isalpha, "".join(piece.text for piece in self.pieces)))


@dataclass
class MarkupSpan:
    """Markup around the characters from ``start`` to ``end``, or at one place."""

    raw: str
    start: int
    end: int
    name: str = ""
    close: str = ""
    children: list[MarkupSpan] = field(default_factory=list)


def group_pieces(pieces: Iterable[Piece], finish: Callable[[str], str | None] = str) -> Iterator[Segment]:
    """Yield the segments between breaks that have letters, without white space and atoms at their ends."""
    group = list[Piece]()
    for piece in [*pieces, Piece("break", 0, "")]:
        if piece.kind != "break":
            group.append(piece)
            continue
        kept = [i for i, one in enumerate(group) if one.text.strip() or one.kind in ("open", "close")]
        if kept:
            bare, last = group[kept[0] : kept[-1] + 1], group[kept[-1]]
            segment = Segment(bare[0].start, last.start + len(last.raw), bare, finish=finish)
            if segment.has_letters:
                yield segment
        group = []


class DocumentFormat(NamedTuple):
    """How a format is read and written; ``find_segments`` gets a document and the target language."""

    find_segments: Callable[[str, str], Iterator[Segment]]
    escape: Callable[[str], str]  # of translated text
    suffixes: tuple[str, ...]  # of files


class SentenceText(NamedTuple):
    """A sentence of a segment: its place there, and what is translated, empty without letters."""

    start: int
    end: int
    source: str
    places: list[int]  # where each character of the source comes from; -1: white space


class SegmentText:
    """The sentences of a segment, and the segment with their translations."""

    def __init__(self, segment: Segment, language: str, escape: Callable[[str], str]) -> None:
        self.segment, self.escape = segment, escape
        pieces = [part for piece in segment.pieces for part in _split_addresses(piece, escape)]
        self.text, self.root = build_tree(pieces)
        points = {*_list_points(self.root)}
        self.sentences = [self._clean(*span, points) for span in split_sentences(self.text, language)]

    def _clean(self, start: int, end: int, points: set[int]) -> SentenceText:
        """The sentence with one space for all the white space at a place.

        None before punctuation that markup without text separates from its word, nor between the lines of a
        script without spaces.
        """
        places = list[int]()
        for match in re.compile(r"\s+|\S+").finditer(self.text, start, end):
            a, b = match.span()
            if not match[0].isspace():
                places += range(a, b)
                continue
            is_gap = self.text[b] in ".,;:!?…)。，！？" and not points.isdisjoint(range(a, b + 1))
            is_unspaced = "\n" in match[0] and all(is_unspaced_char(self.text[i]) for i in (a - 1, b))
            places += [-1] * (not is_gap and not is_unspaced)
        source = "".join(self.text[i] if i >= 0 else " " for i in places)
        return SentenceText(start, end, source if any(map(str.isalpha, source)) else "", places)

    def render(self, translations: Sequence[str | None], alignments: Sequence[WordLinks]) -> str:
        """The segment with the translations of its sentences; one that is None stays."""
        target, ranges = "", list[Range]()  # of the target, for each character of the text so far

        def copy(end: int) -> None:
            nonlocal target
            shift = len(target) - len(ranges)
            target += self.text[len(ranges) : end]
            ranges.extend((place + shift, place + shift + 1) for place in range(len(ranges), end))

        for one, output, links in zip(self.sentences, translations, alignments, strict=True):
            is_first_or_spaced = not ranges or len(ranges) < one.start
            copy(one.start)
            if output is None:
                copy(one.end)
                continue
            output = output.strip()
            if not is_first_or_spaced and output and not is_unspaced_char(output[0]):
                target += " "  # between sentences, in a language that needs it
            offset, mapped = len(target), _map_characters(one.source, output, links)
            found = {one.places[i]: (a + offset, b + offset) for i, (a, b) in mapped.items()}
            for place in range(one.start, one.end):  # what is left out is after what is before it
                before = ranges[-1][1] if place > one.start else offset
                ranges.append(found.get(place, (before, before)))
            target += output
        copy(len(self.text))
        return _Placer(self, target, ranges).render()


class _Placer:
    """Writes the target with the markup of a text; ``ranges`` has the place of each of its characters."""

    def __init__(self, text: SegmentText, target: str, ranges: list[Range]) -> None:
        self.root, self.source, self.escape = text.root, text.text, text.escape
        self.target, self.ranges, self.done, self.parts = target, ranges, 0, [""]
        # places between the first and the last character of a sentence
        self.inside = {place for one in text.sentences for place in range(one.start + 1, one.end)}

    def render(self) -> str:
        self._emit(self.root.children, len(self.target))
        self._copy(len(self.target))
        return "".join(self.parts)

    def _emit(self, spans: Sequence[MarkupSpan], limit: int) -> None:
        """Append spans up to a place of the target; each begins where the one before has ended."""
        for (start, end), span in sorted(
            ((self._place(one), one) for one in spans), key=lambda pair: pair[0][0]
        ):
            start = min(max(start, self.done), limit)
            end = min(max(end, start), limit)
            self._copy(start)
            is_inside = span.start == span.end and span.start in self.inside
            if is_inside and self.source[span.start - 1].isspace() and self.parts[-1][-1:].strip():
                self._append(" ")
            self._append(span.raw)
            self._emit(span.children, end)
            self._copy(end)
            self._append(span.close)
            if is_inside and self.source[span.start].isspace() and self.target[end : end + 1].isalnum():
                self._append(" ")

    def _append(self, text: str) -> None:
        self.parts += [text] * bool(text)

    def _copy(self, end: int) -> None:
        """Append the target up to a place."""
        self._append(self.escape(self.target[self.done : end]))
        self.done = max(self.done, end)

    def _place(self, span: MarkupSpan) -> Range:
        """Start and end of a span in the target: around the longest part that belongs to its characters."""
        found = sorted(self.ranges[i] for i in range(span.start, span.end) if not self.source[i].isspace())
        runs = list[Range]()
        for start, end in found:
            if runs and (start <= runs[-1][1] or not any(map(str.isalnum, self.target[runs[-1][1] : start]))):
                runs[-1] = runs[-1][0], max(end, runs[-1][1])
            else:
                runs.append((start, end))
        places = [max(runs, key=lambda run: run[1] - run[0])] if runs else []
        places += [self._place(child) for child in span.children]
        if not places:
            place = span.start
            before, after = self.source[max(place - 1, 0) : place], self.source[place : place + 1]
            places_before = range(place - 1, -1, -1)
            last = next((i for i in places_before if self.source[i].strip() or i not in self.inside), -1)
            point = self.ranges[last][1] if last >= 0 else 0
            if before.isspace() and after.strip():  # with the word that follows without a space
                point = self.ranges[place][0]
            places = [(point, point)]
        return min(a for a, _ in places), max(b for _, b in places)


def _map_characters(source: str, target: str, alignment: WordLinks) -> dict[int, Range]:
    """The range of the target for each character of the words of a sentence.

    A word has the words aligned with it, or else the one at its relative place. Punctuation around it has the
    punctuation around them; the characters of a copied word have their copies.
    """
    words, others, mapped = find_words(source), find_words(target), dict[int, Range]()
    if not others:
        return dict.fromkeys(range(len(source)), (0, 0))
    for i, (start, end) in enumerate(words):
        linked = sorted({j for a, j in alignment if a == i and j < len(others)})
        linked = linked or [(2 * i + 1) * len(others) // (2 * len(words))]
        run = [j for k, j in enumerate(linked) if j == linked[0] + k]  # without those that are farther away
        first, last = others[run[0]][0], others[run[-1]][1]
        core, other_core = _find_core(source, start, end), _find_core(target, first, last)
        is_copy = source[start:end] == target[first:last]
        for place in range(start, end):
            if is_copy:
                mapped[place] = first + place - start, first + place - start + 1
            elif place < core[0]:
                mapped[place] = first, other_core[0]
            else:
                mapped[place] = other_core if place < core[1] else (other_core[1], last)
    return mapped


def _find_core(text: str, start: int, end: int) -> Range:
    """The part of a word without the punctuation around it."""
    letters = [i for i in range(start, end) if text[i].isalnum()]
    return (letters[0], letters[-1] + 1) if letters else (start, end)


def build_tree(pieces: Sequence[Piece]) -> tuple[str, MarkupSpan]:
    """The text of the pieces, and a root with their markup; what opens or closes nothing is at one place."""
    text, stack = "", [MarkupSpan("", 0, 0)]

    def close_unmatched(depth: int) -> None:
        while len(stack) > depth:
            span = stack.pop()
            stack[-1].children += [MarkupSpan(span.raw, span.start, span.start), *span.children]

    for piece in pieces:
        text += piece.text
        depth = next((i for i in range(len(stack) - 1, 0, -1) if stack[i].name == piece.name), 0)
        if piece.kind == "open" and len(stack) < MAX_MARKUP_DEPTH:
            stack.append(MarkupSpan(piece.raw, len(text), len(text), piece.name))
        elif piece.kind == "close" and depth:
            close_unmatched(depth + 1)
            span = stack.pop()
            span.end, span.close = len(text), piece.raw
            stack[-1].children.append(span)
        elif piece.kind != "text":
            stack[-1].children.append(MarkupSpan(piece.raw, len(text), len(text)))
    close_unmatched(1)
    return text, stack[0]


def _list_points(span: MarkupSpan) -> list[int]:
    """The places of all markup without text."""
    points = [child.start for child in span.children if child.start == child.end]
    return points + [point for child in span.children for point in _list_points(child)]


def _split_addresses(piece: Piece, escape: Callable[[str], str]) -> Iterator[Piece]:
    """Yield the parts of a text between addresses, which are copied."""
    done = 0
    for match in URL.finditer(piece.text):
        yield piece._replace(text=piece.text[done : match.start()])
        yield Piece("atom", piece.start, escape(match[0]))
        done = match.end()
    yield piece._replace(text=piece.text[done:])


def escape_xml(text: str) -> str:
    """Text as it is written between tags, without characters that XML has not."""
    text = re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text)
    return html.escape(text, quote=False)


MIN_WIDTH = 40  # characters of the longest line of a wrapped paragraph, at least
_ODD_SPACES = {ord(char): " " for char in map(chr, range(0x80, 0x3001)) if char.isspace()}


def split_sentences(text: str, language: str) -> list[tuple[int, int]]:
    """Start and end of each sentence, without the white space around it."""
    import sentencex

    sentences, start = list[tuple[int, int]](), 0
    # the library miscounts the bytes of other spaces before a full stop
    for part in sentencex.segment(normalize_language(language), text.translate(_ODD_SPACES)):
        if bare := part.strip():
            first = start + part.index(bare)
            sentences.append((first, first + len(bare)))
        start += len(part)
    return sentences


def find_paragraphs(text: str) -> list[tuple[int, int]]:
    """Start and end of each paragraph: between blank lines, or each line unless the lines are wrapped."""
    blocks, end = list[list[tuple[int, int]]](), -2
    for match in re.finditer(r"[^\n]+", text):
        if match.start() > end + 1:
            blocks.append([])
        if not match[0].isspace():
            blocks[-1].append(match.span())
            end = match.end()
    paragraphs = list[tuple[int, int]]()
    for lines in filter(None, blocks):
        is_one = is_wrapped([text[start:end] for start, end in lines])
        paragraphs += [(lines[0][0], lines[-1][1])] if is_one else lines
    return paragraphs


def is_wrapped(lines: list[str]) -> bool:
    """Whether lines of a usual width end where the next word had no room."""
    width = max(map(len, lines))
    heads = ["x" if is_unspaced_char(line.strip()[0]) else line.split()[0] for line in lines[1:]]
    is_full = all(len(a) + 1 + len(b) > width for a, b in zip(lines, heads, strict=False))
    return len(lines) > 1 and width >= MIN_WIDTH and is_full
