"""Whole documents of ``polyhead translate``: read, translated and written as they are."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyhead.cli.line_io import escape_terminal, is_file, print_warning
from polyhead.cli.output_file import PartialFile
from polyhead.core.errors import UserError, format_value, known_names_hint
from polyhead.core.i18n import tr
from polyhead.data.readers import files
from polyhead.data.readers.detect_encoding import detect_encoding

if TYPE_CHECKING:
    from polyhead.run.run import Run

_ENCODING = re.compile(r"<(?:meta|\?xml)\b[^<>]*\b(?:charset|encoding)\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)


def check_document_options(source: str, format: str, options: Sequence[str]) -> None:
    """Check the format, and that no option is for lines; a hint if the file is named like another format."""
    from polyhead.data.documents.document import DOCUMENT_FORMATS, format_of_file

    if format not in DOCUMENT_FORMATS:
        raise UserError(
            f"--format: unknown format {format_value(format)}{known_names_hint(format, DOCUMENT_FORMATS)}"
        )
    if options:
        raise UserError(f"{', '.join(options)}: for lines only, not for a document of --document or --format")
    other = format_of_file(source) if is_file(source) else None
    if other not in (None, format, "text"):
        print_warning(
            tr("{path} ends like {other}; it is read as {format}", path=source, other=other, format=format)
        )


def hint_format(source: str) -> None:
    """Print the option for a file, read line by line, whose name ends like a document."""
    from polyhead.data.documents.document import format_of_file

    format = format_of_file(source) if is_file(source) else None
    if format not in (None, "text"):
        message = "{path} is read line by line; --format {format} keeps its structure"
        print_warning(tr(message, path=source, format=format))


def read_document(source: str, format: str) -> str:
    """Read a file (gzip or not), standard input for ``-``, or the text itself; a UserError if not UTF-8.

    Or if HTML or XLIFF declares another encoding: UTF-8 would be written under that declaration.
    """
    if source == "-":
        data = sys.stdin.buffer.read()
    elif not is_file(source):
        return source
    else:
        with files.open_lines(Path(source)) as file:
            data = file.read()
    name = "standard input" if source == "-" else source
    try:
        text = data.decode()
    except UnicodeDecodeError:
        hint = files.describe_encoding(detect_encoding(data[: files.SAMPLE_BYTES]))
        raise UserError(f"{name} is not UTF-8{f'; {hint}' * bool(hint)}") from None
    declared = _ENCODING.search(text[:1024]) if format in ("html", "xliff") else None
    if declared and declared[1].lower() not in ("utf-8", "utf8"):
        raise UserError(
            f"{name} declares the encoding {declared[1]}, but its translation is UTF-8: change the "
            "declaration to UTF-8"
        )
    return text


def translate_whole(run: Run, text: str, format: str, changes: dict[str, Any], output: Path | None) -> None:
    """Translate a document to standard output or a file; sentences that stay are named on standard error."""
    refusals = dict[int, str]()
    mark = "\ufeff" * text.startswith("\ufeff")
    text = mark + run.translate_document(text.removeprefix(mark), format, refusals=refusals, **changes)
    for number, reason in sorted(refusals.items()):
        print_warning(
            tr("sentence {number:,}: {reason}; it stays as it is", number=number + 1, reason=reason)
        )
    if output is None:
        sys.stdout.write("\n".join(map(escape_terminal, text.split("\n"))))
        sys.stdout.flush()
        return
    with PartialFile(output, "translation") as file:
        file.add(text.encode(), 1)
