"""Shared by the tests of plain text."""

from pathlib import Path

from polyhead.data.readers.plain_text import TextFiles, TextReport, open_text
from polyhead.data.stores.token_store import TokenStore
from polyhead.tokenizers.tokenizer import Tokenizer

PLAY = "ROMEO:\nBut soft!\n\n\nJULIET:\nAy me.\n \nROMEO:\nShe speaks."
PARAGRAPHS = ["ROMEO:\nBut soft!", "JULIET:\nAy me.", "ROMEO:\nShe speaks."]


def read_documents(files: TextFiles) -> tuple[list[str], TextReport]:
    """The documents, joined from their chunks, and the report."""
    report, documents, chunks = TextReport(files.source_label), [], ""
    for chunk in files.read_chunks(report):
        chunks += chunk.text
        if chunk.is_last:
            documents.append(chunks)
            chunks = ""
    assert not chunks
    return documents, report


def build_store(tmp_path: Path, tokenizer: Tokenizer, paths: list[Path], kind: str) -> TokenStore:
    return TokenStore.open_or_build(open_text(paths, kind), tokenizer, tmp_path / "cache")
