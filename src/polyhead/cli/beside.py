"""What is wished of each line of a text beside it: how its translation begins, and what its words must become."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from polyhead.cli.lines import read_lines
from polyhead.cli.terms_file import read_terms
from polyhead.errors import UserError

if TYPE_CHECKING:
    from polyhead.text.sides import Sides
    from polyhead.text.tokenizer import Tokenizer


class Beside(Protocol):
    """A file that is read before a model is opened, and asked for the lines of one chunk after another."""

    def about(self, tokenizer: Tokenizer, sides: Sides, most: int) -> None:
        """By which model the text is translated, which says ``most`` tokens."""
        ...

    def of(self, texts: Sequence[str], done: int) -> dict[str, Any]:
        """What ``run.translate`` is told of these lines, before which ``done`` others came."""
        ...

    def end(self, done: int) -> None:
        """All lines were read."""
        ...


class Beginnings:
    """Line n of a file begins the translation of line n."""

    def __init__(self, path: str) -> None:
        self.path, self.lines = path, read_lines(path)

    def about(self, tokenizer: Tokenizer, sides: Sides, most: int) -> None:
        self.target, self.most = tokenizer.target, most

    def of(self, texts: Sequence[str], done: int) -> dict[str, Any]:
        found = list(islice(self.lines, len(texts)))
        if len(found) < len(texts):
            raise UserError(f"--prefix: {self.path} ends before line {done + len(found) + 1} of the text")
        refuse_long(self.target.encode(found), self.most - 1, done + 1, "--prefix: line", "Give less of it")
        return {"prefix": found}

    def end(self, done: int) -> None:
        if next(self.lines, None) is not None:
            raise UserError(f"--prefix: {self.path} has more lines than the text, which has {done:,}")


class Glosses:
    """A file says what words become, wherever they stand."""

    def __init__(self, path: str) -> None:
        self.path, self.entries, self.met = path, read_terms(path), 0

    def about(self, tokenizer: Tokenizer, sides: Sides, most: int) -> None:
        from polyhead.text.glossary import Glossary

        self.glossary, self.room = Glossary(self.entries, tokenizer.target), most - 1 - len(sides.opening)

    def of(self, texts: Sequence[str], done: int) -> dict[str, Any]:
        from polyhead.generate.terms import Terms

        wanted = list(map(self.glossary.of, texts))
        self.met += sum(map(bool, wanted))
        said = [[0] * Terms(own).size for own in wanted]
        refuse_long(said, self.room, done + 1, "--terms: line", "Give fewer terms")
        return {"terms": self.glossary}

    def end(self, done: int) -> None:
        print(f"polyhead: {self.met:,} of {done:,} lines have terms of {self.path}", file=sys.stderr)


def files_beside(source: str, prefix: str | None, terms: str | None) -> list[Beside]:
    """Those that were given; a UserError where standard input cannot be both."""
    for name, given in {"--prefix": prefix, "--terms": terms}.items():
        if source == given == "-":
            raise UserError(f"{name}: standard input is the text already; name a file")
    beginnings: list[Beside] = [] if prefix is None else [Beginnings(prefix)]
    glosses: list[Beside] = [] if terms is None else [Glosses(terms)]
    return [*glosses, *beginnings]


def refuse_long(rows: Sequence[Sequence[int]], most: int, first: int, what: str, way: str) -> None:
    """A UserError that names the first line with more tokens than the model takes, and the way out."""
    for number, tokens in enumerate(rows, first):
        if len(tokens) > most:
            raise UserError(
                f"{what} {number} has {len(tokens)} tokens; this model takes {most} at most. {way}"
            )
