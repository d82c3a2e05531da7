"""What verbs do that read texts line by line and write something about each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyhead.cli.line_io import LineCounter, print_warning, read_lines_or_text
from polyhead.cli.options import check_kind, load_run
from polyhead.cli.output_file import check_output_path

if TYPE_CHECKING:
    from polyhead.run.run import Run


def open_texts(
    directory: Path,
    source: str,
    output: Path | None,
    ensemble: list[str] | None,
    dtype: str,
    device: str,
    *kinds: str,
) -> tuple[Run, Iterator[str], LineCounter]:
    """Check the arguments of a verb, load its run, and open its texts with a counter of their lines."""
    check_kind(directory, *kinds)
    check_output_path(output, [source], directory, ensemble)
    texts = read_lines_or_text(source)
    from polyhead.tokenizers.scripts import warn_decomposed

    run = load_run(directory, ensemble, dtype, device, *kinds)
    texts = warn_decomposed(texts, run.tokenizer, print_warning)
    return run, texts, LineCounter(prints_to_stdout=output is None)


def to_json_lines(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Each row as a JSON object in one line."""
    return (json.dumps(row, ensure_ascii=False) for row in rows)
