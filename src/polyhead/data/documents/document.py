"""A document of some format: its sentences, and the document with their translations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from polyhead.core.errors import UserError, format_value, known_names_hint
from polyhead.data.documents.html import HTML
from polyhead.data.documents.markdown import MARKDOWN
from polyhead.data.documents.segment import (
    DocumentFormat,
    Piece,
    Segment,
    SegmentText,
    WordLinks,
    find_paragraphs,
    group_pieces,
)
from polyhead.data.documents.subtitles import SRT
from polyhead.data.documents.xliff import XLIFF


def find_text_segments(text: str, target_language: str = "") -> Iterator[Segment]:
    """Yield the paragraphs of a text."""
    for start, end in find_paragraphs(text):
        yield from group_pieces([Piece("text", start, text[start:end], text[start:end])])


_PLAIN = DocumentFormat(find_text_segments, str, (".txt",))
DOCUMENT_FORMATS = {"text": _PLAIN, "html": HTML, "markdown": MARKDOWN, "srt": SRT, "xliff": XLIFF}


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
        pairs = [
            (sentence.source, bool(one.root.children))
            for one in self.segments
            for sentence in one.sentences
            if sentence.source
        ]
        self.sentences, self.has_markup = [source for source, _ in pairs], [markup for _, markup in pairs]

    def render(self, translations: Sequence[str | None], alignments: Sequence[WordLinks]) -> str:
        """The document with a translation and aligned words for each sentence; one that is None stays."""
        answers, edits = iter(zip(translations, alignments, strict=True)), list[tuple[Segment, str]]()
        for one in self.segments:
            pairs = [next(answers) if sentence.source else (None, ()) for sentence in one.sentences]
            outputs = [None if output is None else " ".join(output.splitlines()) for output, _ in pairs]
            if any(outputs):
                finished = one.segment.finish(one.render(outputs, [links for _, links in pairs]))
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
