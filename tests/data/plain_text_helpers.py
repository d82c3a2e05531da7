"""Shared by the tests of plain_text."""

from pathlib import Path

from polyhead.data.readers.plain_text import TextFiles, TextReport, open_text
from polyhead.data.stores.token_store import TokenStore
from polyhead.tokenizers.tokenizer import Tokenizer


def documents(of: TextFiles) -> tuple[list[str], TextReport]:
    """The documents, whole, and the report."""
    report, found, held = TextReport(of.source_label), [], ""
    for piece in of.read_chunks(report):
        held += piece.text
        if piece.is_last:
            found.append(held)
            held = ""
    assert not held
    return found, report


def build(tmp_path: Path, tokenizer: Tokenizer, paths: list[Path], kind: str) -> TokenStore:
    return TokenStore.open_or_build(open_text(paths, kind), tokenizer, tmp_path / "cache")
