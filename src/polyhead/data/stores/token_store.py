"""Tokenized text on disk, read through a memory map: one sequence of tokens and the starts of documents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from polyhead.data.readers.files import fingerprint
from polyhead.data.readers.plain_text import TextFiles, TextReport
from polyhead.data.stores.build_cache import FlatWriter, IdArray, IdStore
from polyhead.tokenizers.tokenizer import Tokenizer


class TokenStore(IdStore):
    """The token ids of a text, and the positions at which its documents start.

    If there may be several documents (``TextFiles.has_documents``), each starts with the end-of-sentence
    token, so that the end of one is the start of the next; one more ends the last document. A model learns
    from this token alone how documents start. With ``has_document_prefix``, documents start with their own
    tokens, such as the <s> of Llama, which are never predicted. ``prefix_ids`` are the tokens that the
    tokenizer puts before a text.
    """

    kind, layout = "text", 2
    dtypes: ClassVar = {"ids": np.int32, "begins": np.int64}

    def __init__(
        self, directory: Path, report: TextReport, has_document_prefix: bool, prefix_ids: Sequence[int]
    ) -> None:
        super().__init__(directory, report)
        self.has_document_prefix, self.document_starts = has_document_prefix, self.arrays["begins"]
        self.prefix_ids = prefix_ids

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def corpus_documents(self) -> IdArray:
        """The first document of each of several corpora, and the number of documents: (N + 1,)."""
        counts = [part.documents for part in self.report.parts] or [len(self.document_starts)]
        return np.cumsum([0, *counts])

    @property
    def corpus_starts(self) -> IdArray:
        """The first token of each of several corpora, and the number of tokens: (N + 1,)."""
        return np.append(self.document_starts[self.corpus_documents[:-1]], len(self))

    def split_corpora(self) -> list[TokenStore]:
        """A store of each corpus, which reads the same files; a single one has itself."""
        if not self.report.parts:
            return [self]
        stores, documents, starts = [], self.corpus_documents, self.corpus_starts
        for i, report in enumerate(self.report.parts):
            store = copy(self)
            # the mark at the start of the next corpus ends the last document
            store.ids = self.ids[starts[i] : starts[i + 1] + (not self.has_document_prefix)]
            store.document_starts = self.document_starts[documents[i] : documents[i + 1]] - starts[i]
            store.report = report
            stores.append(store)
        return stores

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
        document_prefix = list(prefix_ids) if has_prefix else []

        def list_settings(part: TextFiles) -> list[Any]:
            return [
                cls.layout,
                [fingerprint(path) for path in part.files],
                tokenizer.sha256,
                part.document_separator,
                part.fraction_range,
                *([part.table, part.columns, "as written"] if part.table else []),
                *([document_prefix] if has_prefix else []),
                *([part.name, part.rules] if part.name else []),
            ]

        def write(out: dict[str, FlatWriter], report: TextReport) -> None:
            mark = [tokenizer.eos_id] if text.has_documents else []
            for part, part_report in report.iter_parts(text):
                starts_document = True
                for piece in part.read_chunks(part_report):
                    if starts_document:
                        if has_prefix and out["ids"].count:
                            out["ids"].append(mark)
                        out["begins"].append([out["ids"].count])
                        out["ids"].append(document_prefix or mark)
                    out["ids"].append(tokenizer.encode([piece.text])[0])
                    starts_document = piece.is_last
            out["ids"].append(mark)

        settings = [list_settings(part) for part in text.parts]
        settings = settings if text.corpora else settings[0]
        return cls(*cls.build(cache, settings, TextReport(text.source_label), write), has_prefix, prefix_ids)
