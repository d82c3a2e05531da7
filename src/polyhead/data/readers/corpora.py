"""Several corpora read as one: the rules by which their texts are used, and the readers of each kind."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Self

from polyhead.core.errors import UserError
from polyhead.data.readers.detect_language import describe_language
from polyhead.data.readers.parallel_corpus import CorpusReport, ParallelFiles, SentencePair
from polyhead.data.readers.plain_text import TextChunk, TextFiles, TextReport
from polyhead.tokenizers.scripts import KANA, script_of_letter, split_script_words

_JAPANESE = {"Han", *KANA}
_MIN_OTHER_WORDS = 2  # frequent words of another language, and none of the own one, of a text that is in it


class TextRules(NamedTuple):
    """By which rules the texts of a corpus are used; lengths are in characters."""

    min_chars: int | None = None
    max_chars: int | None = None
    max_ratio: float | None = None  # the longer side of a pair / the shorter
    unique: bool = False
    languages: tuple[str, ...] | None = None  # the code of each side; None: not checked
    max_texts: int | None = None


NO_RULES = TextRules()


class TextFilter:
    """Finds the rule that a text breaks, of one pass over a corpus."""

    def __init__(self, rules: TextRules) -> None:
        self.rules, self.n_used = rules, 0
        self._hashes: set[bytes] = set()

    @property
    def is_full(self) -> bool:
        """Whether ``max_texts`` are used."""
        return self.n_used == self.rules.max_texts

    def find_broken_rule(self, sides: Sequence[str]) -> str:
        """The first rule that a text, or a pair of texts, breaks; "" if it is used."""
        rules, lengths = self.rules, [len(side.strip()) for side in sides]
        if rules.min_chars is not None and min(lengths) < rules.min_chars:
            return "min_chars"
        if rules.max_chars is not None and max(lengths) > rules.max_chars:
            return "max_chars"
        if rules.max_ratio is not None and max(lengths) > rules.max_ratio * min(lengths):
            return "max_ratio"
        if rules.languages is not None and not are_in_languages(sides, rules.languages):
            return "language"
        if rules.unique:
            words = "\0".join(" ".join(side.split()) for side in sides)
            digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
            if digest in self._hashes:
                return "unique"
            self._hashes.add(digest)
        self.n_used += 1
        return ""


def are_in_languages(sides: Sequence[str], languages: Sequence[str]) -> bool:
    """Whether no side is clearly in another language than that of its code, and the sides differ.

    Half of the letters of a side, or more, must be in the script of its language. A side with two or more
    frequent words of the other side's language must have one of its own, where these words are known.
    """
    if len(sides) == 2 and sides[0].split() == sides[1].split():
        return False
    expected = [describe_language([], code) for code in languages]
    for side, own, other in zip(sides, expected, reversed(expected), strict=True):
        scripts = [script_of_letter(letter) for letter in side if letter.isalpha()]
        accepted = _JAPANESE if own.script == "Japanese" else {own.script}
        if own.script and 2 * sum(script in accepted for script in scripts) < len(scripts):
            return False
        words = {word for _, word in split_script_words(side.lower())}
        n_other = len(words & (other.words - own.words))
        if own.words and n_other >= _MIN_OTHER_WORDS and not words & (own.words - other.words):
            return False
    return True


@dataclass(frozen=True)
class ParallelCorpus(ParallelFiles):
    """A parallel corpus that is one of several, or has rules for its pairs."""

    name: str = ""
    rules: TextRules = NO_RULES
    tags: tuple[str, ...] = ()

    @classmethod
    def of(cls, files: ParallelFiles, name: str, rules: TextRules, source_tags: Sequence[str]) -> Self:
        """A corpus of these files."""
        return cls(**vars(files), name=name, rules=rules, tags=tuple(source_tags))

    @property
    def source_label(self) -> str:
        return self.name

    @property
    def source_tags(self) -> Sequence[str]:
        return self.tags

    @property
    def settings(self) -> list[Any]:
        return [self.name, self.rules, self.tags]

    def iter_pairs(self, report: CorpusReport | None = None) -> Iterator[SentencePair]:
        """Yield the pairs that pass the rules; the others are counted by rule."""
        report, text_filter = report or CorpusReport(self.source_label), TextFilter(self.rules)
        for pair in super().iter_pairs(report):
            if rule := text_filter.find_broken_rule((pair.source, pair.target)):
                report.used -= 1
                report.n_filtered[rule] = report.n_filtered.get(rule, 0) + 1
                continue
            yield pair
            if text_filter.is_full:
                return


@dataclass(frozen=True)
class ParallelMixture(ParallelFiles):
    """Several parallel corpora, read one after the other."""

    corpora: tuple[ParallelFiles, ...] = ()

    @classmethod
    def of(cls, corpora: Sequence[ParallelFiles]) -> Self:
        """The corpora as one."""
        files = tuple(chain.from_iterable(corpus.files for corpus in corpora))
        return cls(files, corpora[0].format, corpora[0].columns_by_role, corpora=tuple(corpora))

    @property
    def parts(self) -> Sequence[ParallelFiles]:
        return self.corpora

    @property
    def source_label(self) -> str:
        return " + ".join(corpus.source_label for corpus in self.corpora)

    @property
    def copied_side(self) -> str:
        return next(filter(None, (corpus.copied_side for corpus in self.corpora)), "")

    def iter_pairs(self, report: CorpusReport | None = None) -> Iterator[SentencePair]:
        """Yield the usable pairs of all corpora."""
        return chain.from_iterable(corpus.iter_pairs(report) for corpus in self.corpora)


@dataclass(frozen=True)
class TextCorpus(TextFiles):
    """A plain text that is one of several, or has rules for its documents."""

    name: str = ""
    rules: TextRules = NO_RULES

    @classmethod
    def of(cls, text: TextFiles, name: str, rules: TextRules) -> Self:
        """A corpus of these files; rules for documents that are whole files are a UserError."""
        if rules != NO_RULES and text.document_separator == "file":
            raise UserError(
                f"corpus {name!r}: a filter and max_texts are for texts of a line or paragraph, and each "
                "file is one text here: set data.document_separator=line or blank"
            )
        return cls(**vars(text), name=name, rules=rules)

    @property
    def source_label(self) -> str:
        return self.name

    @property
    def has_documents(self) -> bool:
        return True

    @property
    def settings(self) -> list[Any]:
        return [self.name, self.rules]

    def read_chunks(self, report: TextReport | None = None) -> Iterator[TextChunk]:
        """Yield the documents that pass the rules, each as one chunk; the others are counted by rule."""
        report = report or TextReport(self.source_label)
        if self.rules == NO_RULES:
            yield from super().read_chunks(report)
            return
        text_filter, unfiltered, pieces = TextFilter(self.rules), TextReport(""), list[str]()
        for chunk in super().read_chunks(unfiltered):
            pieces.append(chunk.text)
            if not chunk.is_last:
                continue
            text, pieces = "".join(pieces), []
            if rule := text_filter.find_broken_rule((text,)):
                report.n_filtered[rule] = report.n_filtered.get(rule, 0) + 1
                continue
            report.add(f"{text}\n")
            report.documents += 1
            yield TextChunk(text, True)
            if text_filter.is_full:
                break
        for kind in ("malformed", "header", "bom"):
            setattr(report, kind, getattr(report, kind) + getattr(unfiltered, kind))
        if not text_filter.n_used:
            raise UserError(f"no usable text in {report}")


@dataclass(frozen=True)
class TextMixture(TextFiles):
    """Several plain texts, read one after the other."""

    corpora: tuple[TextFiles, ...] = ()

    @classmethod
    def of(cls, corpora: Sequence[TextFiles]) -> Self:
        """The corpora as one."""
        files = tuple(chain.from_iterable(corpus.files for corpus in corpora))
        return cls(files, corpora[0].document_separator, corpora=tuple(corpora))

    @property
    def parts(self) -> Sequence[TextFiles]:
        return self.corpora

    @property
    def source_label(self) -> str:
        return " + ".join(corpus.source_label for corpus in self.corpora)

    @property
    def has_documents(self) -> bool:
        return True

    def read_chunks(self, report: TextReport | None = None) -> Iterator[TextChunk]:
        """Yield the text of all corpora."""
        return chain.from_iterable(corpus.read_chunks(report) for corpus in self.corpora)
