"""Read pairs of texts for embeddings: JSONL of texts that belong together or of scored texts, or a corpus.

Lines that cannot be used are counted, never dropped silently.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError, format_value
from polyhead.data.readers.labeled import is_number
from polyhead.data.readers.parallel_corpus import CorpusFormat, ParallelFiles, open_corpus
from polyhead.data.readers.rows import ReadReport
from polyhead.data.readers.tabular import (
    ColumnKey,
    check_object_files,
    infer_table_format,
    parse_lines,
    parse_object_line,
)

ANCHOR_KEYS, SCORE_KEYS = ("anchor", "positive"), ("a", "b", "score")
_SENTENCE_KEYS = ("sentence1", "sentence2", "score")  # of data sets of sentence-transformers
_EXAMPLE = (
    '{"anchor": "...", "positive": "...", "negatives": ["..."]} or {"a": "...", "b": "...", "score": 1}'
)


class TextPair(NamedTuple):
    """Two texts that belong together, with texts that do not; or two texts with a score of similarity."""

    anchor: str
    positive: str
    negatives: tuple[str, ...] = ()
    score: float | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts, the anchor first."""
        return self.anchor, self.positive, *self.negatives


class TextPairReport(ReadReport):
    """Read counts of pairs of texts; a truncated one has a text that is cut."""

    unit = "pair"
    counts = "{where}: {kept:,} of {read:,} pairs"


class TextPairs(ParallelFiles):
    """Files of pairs, JSONL with the keys above or a parallel corpus with columns.

    All with the same anchor are in the same split.
    """

    report_type = TextPairReport

    def read_file(self, path: Path) -> Iterator[tuple[int, Any]]:
        return super().read_file(path) if self.columns_by_role else parse_lines(path, parse_text_pair_line)

    def read(self, report: ReadReport | None = None) -> Iterator[tuple[str, TextPair]]:
        """Yield (location, pair) of the usable pairs; the caller counts those that it uses."""
        report = report or TextPairReport(self.source_label)
        for place, _, row in self.read_rows(report):
            pair = TextPair(*row)
            if any(map(is_blank, pair.texts)):
                report.count_problem("empty", place)
            else:
                yield place, pair


def open_text_pairs(
    files: Sequence[Path],
    validation_fraction: float = 0.0,
    is_validation: bool = False,
    *,
    format: CorpusFormat = "auto",
    source: ColumnKey = 0,
    target: ColumnKey = 1,
) -> TextPairs:
    """Open files of pairs: JSONL with the keys of a pair, or a parallel corpus of ``source`` and ``target``.

    A missing file, or one without pairs, is a UserError.
    """
    share = validation_fraction, is_validation
    if infer_table_format(files, format) == "jsonl" and (source, target) == (0, 1):
        paths, empty = check_object_files(files, parse_text_pair_line, TextPairReport.unit, _EXAMPLE)
        return TextPairs(paths, "jsonl", {}, *share, empty)
    corpus = open_corpus(files, format=format, source=source, target=target)
    return TextPairs(corpus.files, corpus.format, corpus.columns_by_role, *share, corpus.empty_files)


def parse_text_pair_line(raw: bytes | None) -> TextPair | str:
    """The pair of a line, or the kind of problem."""
    return parse_object_line(raw, _parse_row)


def _parse_row(row: dict[str, Any]) -> TextPair:
    """The pair of a row; a UserError for keys or values that are none."""
    json.dumps(row, ensure_ascii=False).encode()  # half of a surrogate pair is a ValueError
    score_keys = next((keys for keys in (SCORE_KEYS, _SENTENCE_KEYS) if row.keys() >= set(keys)), None)
    if row.keys() >= set(ANCHOR_KEYS):
        negatives = row.get("negatives", row.get("negative")) or []
        negatives = [negatives] if isinstance(negatives, str) else negatives
        if not isinstance(negatives, list):
            raise UserError(f"negatives is {format_value(negatives)}, expected a list of texts")
        pair = TextPair(row["anchor"], row["positive"], tuple(negatives))
    elif score_keys:
        score = row["score"]
        if not is_number(score) or not math.isfinite(float(score)):
            raise UserError(f"the score is {format_value(score)}, expected a number")
        pair = TextPair(row[score_keys[0]], row[score_keys[1]], score=float(score))
    else:
        raise UserError(f"the row has the keys {', '.join(map(str, row)) or 'of none'}")
    for text in pair.texts:
        if not isinstance(text, str):
            raise UserError(f"{format_value(text)} is not a text")
    return pair


def read_pair_texts(pairs: TextPairs) -> Iterator[str]:
    """Yield all texts of all pairs."""
    for _, pair in pairs.read():
        yield from pair.texts
