"""Tokenized text on disk, read through a memory map: one sequence of tokens and the starts of documents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from polyhead.data.readers.files import fingerprint
from polyhead.data.readers.plain_text import TextFiles, TextReport
from polyhead.data.stores.build_cache import FlatWriter, IdStore
from polyhead.tokenizers.tokenizer import Tokenizer

_LAYOUT = 2  # version of the file layout; another version makes another cache


class TokenStore(IdStore):
    """The token ids of a text, and the positions at which its documents start.

    If there may be several documents (``TextFiles.has_documents``), each starts with the end-of-sentence
    token, so that the end of one is the start of the next; one more ends the last document. A model learns
    from this token alone how documents start. With ``has_document_prefix``, documents start with their own
    tokens, such as the <s> of Llama, which are never predicted. ``prefix_ids`` are the tokens that the
    tokenizer puts before a text.
    """

    kind = "text"
    dtypes: ClassVar = {"ids": np.int32, "begins": np.int64}

    def __init__(
        self,
        directory: Path,
        report: TextReport,
        has_document_prefix: bool = False,
        prefix_ids: Sequence[int] = (),
    ) -> None:
        super().__init__(directory, report)
        self.has_document_prefix, self.document_starts = has_document_prefix, self.arrays["begins"]
        self.prefix_ids = prefix_ids

    def __len__(self) -> int:
        return len(self.ids)

    def hash_texts(self, separator_id: int) -> list[int]:
        """A hash of each document, without the token ``separator_id`` between them."""
        documents = np.split(self.ids, self.document_starts[1:])
        return [hash(ids[ids != separator_id].tobytes()) for ids in documents]

    @classmethod
    def open_or_build(
        cls,
        text: TextFiles,
        tokenizer: Tokenizer,
        cache: str | os.PathLike[str],
        prefix_ids: Sequence[int] = (),
    ) -> TokenStore:
        """Open the store of a text in the directory ``cache``; build it if missing or incomplete.

        ``prefix_ids``: the tokens at the start of a document, if not the end of the previous one.
        """
        has_prefix = bool(prefix_ids) and list(prefix_ids) != [tokenizer.eos_id]
        prints = [fingerprint(path) for path in text.files]
        settings = [
            _LAYOUT,
            prints,
            tokenizer.sha256,
            text.document_separator,
            text.fraction_range,
            *([text.table, text.columns, "as written"] if text.table else []),
            *([list(prefix_ids)] if has_prefix else []),
        ]
        write = partial(_write_tokens, text, tokenizer, prefix_ids if has_prefix else ())
        return cls(*cls.build(cache, settings, TextReport(text.source_label), write), has_prefix, prefix_ids)


def _write_tokens(
    text: TextFiles,
    tokenizer: Tokenizer,
    prefix_ids: Sequence[int],
    out: dict[str, FlatWriter],
    report: TextReport,
) -> None:
    mark = [tokenizer.eos_id] if text.has_documents else []
    starts_document = True
    for piece in text.read_chunks(report):
        if starts_document:
            if prefix_ids and out["ids"].count:
                out["ids"].append(mark)
            out["begins"].append([out["ids"].count])
            out["ids"].append(prefix_ids or mark)
        out["ids"].append(tokenizer.encode([piece.text])[0])
        starts_document = piece.is_last
    out["ids"].append(mark)
