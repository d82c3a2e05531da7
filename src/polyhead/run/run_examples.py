"""Examples of a run: the first of its validation texts, kept in its directory when training ends.

Verbs read them in place of the files that a recipe names: it may be somebody else's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from polyhead.core.atomic_io import file_exists, read_regular_file, replace_file
from polyhead.core.errors import UserError

EXAMPLES_FILE = "examples.json"
MAX_KEPT_EXAMPLES = 1000
_MAX_CHARS = 500  # of a text; the rest is cut off
_MAX_FILE_BYTES = 1 << 23  # two texts of each example, a character may be an escape of 12 bytes

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
