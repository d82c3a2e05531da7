"""Per-line inputs of translation: forced prefixes and terminology."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from polyhead.cli.line_io import read_lines
from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError

if TYPE_CHECKING:
    from polyhead.tokenizers.seq2seq_template import Seq2SeqTemplate
    from polyhead.tokenizers.tokenizer import Tokenizer


class LineInput(Protocol):
    """A file that is read before the model is loaded, and queried for one chunk of lines after another."""

    def set_model(self, tokenizer: Tokenizer, template: Seq2SeqTemplate, max_len: int) -> None:
        """Set the tokenizer, the template and the maximum number of output tokens."""
        ...

    def get_options(self, texts: Sequence[str], num_done: int) -> dict[str, Any]:
        """Return the options of ``run.translate`` for these lines, which come after ``num_done`` others."""
        ...

    def finish(self, num_done: int) -> None:
        """Called after the last line."""
        ...


class PrefixFile:
    """Forced prefixes: line n of the file is the beginning of the translation of line n."""

    def __init__(self, path: str) -> None:
        self.path, self.lines = path, read_lines(path)

    def set_model(self, tokenizer: Tokenizer, template: Seq2SeqTemplate, max_len: int) -> None:
        self.target, self.max_len = tokenizer.target_tokenizer, max_len

    def get_options(self, texts: Sequence[str], num_done: int) -> dict[str, Any]:
        prefixes = list(islice(self.lines, len(texts)))
        if len(prefixes) < len(texts):
            raise UserError(
                f"--prefix: {self.path} ends before line {num_done + len(prefixes) + 1} of the text"
            )
        check_line_lengths(
            self.target.encode(prefixes), self.max_len - 1, num_done + 1, "--prefix: line", "Shorten it"
        )
        return {"prefix": prefixes}

    def finish(self, num_done: int) -> None:
        if next(self.lines, None) is not None:
            raise UserError(f"--prefix: {self.path} has more lines than the text, which has {num_done:,}")


class TerminologyFile:
    """Required translations of words, wherever the words occur."""

    def __init__(self, path: str) -> None:
        self.path, self.entries, self.num_matched = path, read_terminology(path), 0

    def set_model(self, tokenizer: Tokenizer, template: Seq2SeqTemplate, max_len: int) -> None:
        from polyhead.generation.constraints.terminology import Terminology

        self.terminology, self.max_len = (
            Terminology(self.entries, tokenizer.target_tokenizer),
            max_len - 1 - len(template.opening_ids),
        )

    def get_options(self, texts: Sequence[str], num_done: int) -> dict[str, Any]:
        from polyhead.generation.constraints.lexical_constraints import LexicalConstraints

        terms = list(map(self.terminology.find_terms, texts))
        self.num_matched += sum(map(bool, terms))
        placeholders = [[0] * LexicalConstraints(line_terms).num_tokens for line_terms in terms]
        check_line_lengths(placeholders, self.max_len, num_done + 1, "--terminology: line", "Use fewer terms")
        return {"terminology": self.terminology}

    def finish(self, num_done: int) -> None:
        print(
            f"polyhead: {self.num_matched:,} of {num_done:,} lines have terms of {self.path}", file=sys.stderr
        )


def open_line_inputs(source: str, prefix: str | None, terminology: str | None) -> list[LineInput]:
    """Open the files that are given; a UserError if standard input would be used twice."""
    for name, path in {"--prefix": prefix, "--terminology": terminology}.items():
        if source == path == "-":
            raise UserError(f"{name}: standard input is already used for the text; expected a file")
    prefixes: list[LineInput] = [] if prefix is None else [PrefixFile(prefix)]
    terminologies: list[LineInput] = [] if terminology is None else [TerminologyFile(terminology)]
    return [*terminologies, *prefixes]


def check_line_lengths(
    rows: Sequence[Sequence[int]], max_len: int, first_number: int, label: str, hint: str
) -> None:
    """Raise a UserError that names the first line with more tokens than ``max_len``, with a hint."""
    for number, tokens in enumerate(rows, first_number):
        if len(tokens) > max_len:
            raise UserError(
                f"{label} {number} has {len(tokens)} tokens; the model's maximum is {max_len}. {hint}"
            )


def read_terminology(source: str) -> dict[str, list[str]]:
    """Read the translations of each word; a line has a word and its translations, separated by tabs."""
    entries: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(source), 1):
        if "\ufffd" in line:
            raise UserError(f"--terminology: line {number} of {source} has characters that are not UTF-8")
        word, *phrases = line.split("\t")
        if is_blank(line):
            continue
        if not phrases or any(map(is_blank, (word, *phrases))):
            raise UserError(
                f"--terminology: line {number} of {source} is {line!r}; expected a word, a tab and its "
                "translation"
            )
        entries.setdefault(word, []).extend(phrases)
    if not entries:
        raise UserError(f"--terminology: {source} has no line with a word, a tab and its translation")
    return entries
