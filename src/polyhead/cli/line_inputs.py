"""Per-line inputs of translation: forced prefixes and terminology."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from polyhead.cli.line_io import read_lines
from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr

if TYPE_CHECKING:
    from polyhead.tokenizers.seq2seq_template import Seq2SeqTemplate
    from polyhead.tokenizers.tokenizer import Tokenizer


class LineInput(Protocol):
    """A file that is read before the model is loaded, and queried for one chunk of lines after another."""

    def set_model(self, tokenizer: Tokenizer, template: Seq2SeqTemplate, max_len: int) -> None:
        """Set the tokenizer, the template and the maximum number of output tokens."""
        ...

    def check_lines(self, texts: Sequence[str], num_done: int) -> dict[int, str]:
        """Read the input of these lines, which come after ``num_done`` others.

        Returns why it cannot be used, by the index of the line.
        """
        ...

    def get_options(self) -> dict[str, Any]:
        """Return the options of ``run.translate`` for the lines that were checked last."""
        ...

    def finish(self, num_done: int) -> None:
        """Called after the last line."""
        ...


class PrefixFile:
    """Forced prefixes: line n of the file is the beginning of the translation of line n."""

    def __init__(self, path: str) -> None:
        self.path, self.lines, self.prefixes = path, read_lines(path), list[str]()

    def set_model(self, tokenizer: Tokenizer, template: Seq2SeqTemplate, max_len: int) -> None:
        self.target, self.max_len = tokenizer.target_tokenizer, max_len

    def check_lines(self, texts: Sequence[str], num_done: int) -> dict[int, str]:
        prefixes = list(islice(self.lines, len(texts)))
        if len(prefixes) < len(texts):
            raise UserError(
                f"--prefix: {self.path} ends before line {num_done + len(prefixes) + 1} of the text"
            )
        message = "its prefix has {count:,} tokens, the model's maximum is {most:,}"
        reasons = find_long_rows(self.target.encode(prefixes), self.max_len - 1, message)
        self.prefixes = ["" if i in reasons else prefix for i, prefix in enumerate(prefixes)]
        return reasons

    def get_options(self) -> dict[str, Any]:
        return {"prefix": self.prefixes}

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

    def check_lines(self, texts: Sequence[str], num_done: int) -> dict[int, str]:
        from polyhead.generation.constraints.lexical_constraints import LexicalConstraints

        terms = list(map(self.terminology.find_terms, texts))
        self.num_matched += sum(map(bool, terms))
        placeholders = [[0] * LexicalConstraints(line_terms).num_tokens for line_terms in terms]
        message = "its terms have {count:,} tokens, the model's maximum is {most:,}"
        return find_long_rows(placeholders, self.max_len, message)

    def get_options(self) -> dict[str, Any]:
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


def find_long_rows(rows: Sequence[Sequence[int]], max_len: int, message: str) -> dict[int, str]:
    """Return a message for each row with more than ``max_len`` tokens, by its index.

    The message is translated, with the number of tokens and the maximum in place of {count:,} and {most:,}.
    """
    return {i: tr(message, count=len(row), most=max_len) for i, row in enumerate(rows) if len(row) > max_len}


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
