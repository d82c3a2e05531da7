"""A document of some format: its sentences, and the document with their translations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from polyhead.core.errors import UserError, format_value, known_names_hint
from polyhead.data.documents.html import read_html
from polyhead.data.documents.markdown import escape_markdown, find_markdown_segments
from polyhead.data.documents.segment import (
    Piece,
    Segment,
    SegmentText,
    WordLinks,
    escape_xml,
    group_pieces,
)
from polyhead.data.documents.sentences import find_paragraphs
from polyhead.data.documents.subtitles import find_srt_segments
from polyhead.data.documents.xliff import find_xliff_segments


class DocumentFormat(NamedTuple):
    """How a format is read and written."""

    find_segments: Callable[[str, str], Iterator[Segment]]  # of a document and the target language
    escape: Callable[[str], str]  # of translated text
    suffixes: tuple[str, ...]  # of files


def find_text_segments(text: str) -> Iterator[Segment]:
    """Yield the paragraphs of a text."""
    for start, end in find_paragraphs(text):
        yield from group_pieces([Piece("text", start, text[start:end], text[start:end])])


DOCUMENT_FORMATS = {
    "text": DocumentFormat(lambda text, _: find_text_segments(text), str, (".txt",)),
    "html": DocumentFormat(
        lambda text, _: group_pieces(read_html(text)), escape_xml, (".html", ".htm", ".xhtml")
    ),
    "markdown": DocumentFormat(
        lambda text, _: find_markdown_segments(text), escape_markdown, (".md", ".markdown")
    ),
    "srt": DocumentFormat(lambda text, _: find_srt_segments(text), str, (".srt",)),
    "xliff": DocumentFormat(find_xliff_segments, escape_xml, (".xlf", ".xliff")),
}


class Document:
    """A document, of which ``sentences`` are translated; ``has_markup`` tells whose words must be aligned.

    All else stays as it is, to the byte.
    """

    def __init__(self, text: str, format: str, language: str = "", target_language: str = "") -> None:
        if format not in DOCUMENT_FORMATS:
            raise UserError(
                f"unknown document format {format_value(format)}{known_names_hint(format, DOCUMENT_FORMATS)}"
            )
        self.text, reader = text, DOCUMENT_FORMATS[format]
        segments = reader.find_segments(text, target_language)
        self.segments = [SegmentText(segment, language, reader.escape) for segment in segments]
        sources = [
            (source, bool(one.root.children)) for one in self.segments for source in one.sources if source
        ]
        self.sentences, self.has_markup = [source for source, _ in sources], [markup for _, markup in sources]

    def render(self, translations: Sequence[str | None], alignments: Sequence[WordLinks]) -> str:
        """The document with a translation and aligned words for each sentence; one that is None stays."""
        answers, edits = iter(zip(translations, alignments, strict=True)), list[tuple[Segment, str]]()
        for one in self.segments:
            pairs = [next(answers) if source else (None, ()) for source in one.sources]
            outputs = [None if output is None else " ".join(output.splitlines()) for output, _ in pairs]
            finished = (
                one.segment.finish(one.render(outputs, [found for _, found in pairs]))
                if any(outputs)
                else None
            )
            edits += [] if finished is None else [(one.segment, finished)]
        if edits:
            edits += [(one.segment, "") for one in self.segments if not one.segment.pieces]
        parts, done = list[str](), 0
        for segment, output in sorted(edits, key=lambda edit: edit[0].start):
            parts += [self.text[done : segment.start], segment.prefix, output, segment.suffix]
            done = segment.end
        return "".join([*parts, self.text[done:]])


def format_of_file(path: str) -> str | None:
    """The format that belongs to the end of a file name."""
    suffix = Path(path).suffix.lower()
    return next((name for name, reader in DOCUMENT_FORMATS.items() if suffix in reader.suffixes), None)
