"""Examples of a run: the first of its validation texts, kept in its directory when training ends.

Verbs, the service and pages read them in place of the files that a recipe names: it may be somebody else's.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from polyhead.core.atomic_io import file_exists, read_regular_file, replace_file
from polyhead.core.errors import UserError

EXAMPLES_FILE = "examples.json"
MAX_KEPT_EXAMPLES = 1000
_MAX_CHARS = 500  # of a text; the rest is cut off
_MAX_FILE_BYTES = 1 << 23  # two texts of each example, a character may be an escape of 12 bytes
MAX_SHOWN_EXAMPLES = 4
MIN_SHOWN_CHARS, MAX_SHOWN_CHARS = 8, 160  # preferred length of a shown example, in characters
_SENTENCE_ENDS = (".", "!", "?", "。", "！", "？")
_FIRST_SENTENCE = re.compile(rf".{{{MIN_SHOWN_CHARS},{MAX_SHOWN_CHARS}}}?(?:[.!?](?=\s)|[。！？])")

TextExample = tuple[str, ...]  # one text, or two: a pair, or a source and its target
_EXAMPLES = TypeAdapter[list[tuple[str]] | list[tuple[str, str]]](list[tuple[str]] | list[tuple[str, str]])

log = logging.getLogger(__name__)


def write_examples(directory: Path, examples: Iterable[TextExample]) -> None:
    """Write examples.json."""
    rows = [[text[:_MAX_CHARS] for text in example] for example in islice(examples, MAX_KEPT_EXAMPLES)]
    replace_file(directory / EXAMPLES_FILE, json.dumps(rows, ensure_ascii=False, indent=0).encode())


def read_examples(directory: Path | None) -> list[TextExample]:
    """Read the examples of a run directory; empty without them, or if they are damaged, which is logged."""
    if directory is None:
        return []
    path = directory / EXAMPLES_FILE
    try:
        if not file_exists(path):
            return []
        return list(_EXAMPLES.validate_json(read_regular_file(path, max_bytes=_MAX_FILE_BYTES)))
    except (UserError, ValidationError) as error:
        log.warning("no examples, since %s cannot be read: %s", path, str(error).split("\n")[0])
        return []


def find_target(examples: Iterable[TextExample], source: str) -> str | None:
    """The target of a source text among pairs; None if there is none, or one that may have been cut off."""
    pairs = (example for example in examples if len(example) == 2 and example[0] == source)
    return next((pair[1] for pair in pairs if max(map(len, pair)) < _MAX_CHARS), None)


def choose_examples(examples: Sequence[TextExample], max_chars: int = MAX_SHOWN_CHARS) -> list[TextExample]:
    """Select different short examples of at most ``max_chars`` characters, complete sentences first."""
    unique = dict.fromkeys(tuple(map(first_sentence, example)) for example in examples)
    candidates = [example for example in unique if sum(map(len, example)) <= max_chars]
    phrases = [example for example in candidates if len(example[0]) >= MIN_SHOWN_CHARS]
    sentences = [example for example in phrases if example[-1].endswith(_SENTENCE_ENDS)]
    return (sentences or phrases or candidates)[:MAX_SHOWN_EXAMPLES]


def first_sentence(text: str) -> str:
    """Return the first sentence of a long text; a short text is returned unchanged."""
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    match = _FIRST_SENTENCE.match(text)
    return match[0] if match else text
