"""Tokenized parallel corpus on disk, read through memory maps, so that it may be larger than memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from polyhead.core.errors import UserError
from polyhead.data.readers.files import fingerprint
from polyhead.data.readers.parallel_corpus import CorpusReport, ParallelFiles, SentencePair
from polyhead.data.readers.rows import iter_chunks
from polyhead.data.stores.build_cache import FlatWriter, IdArray, IdStore
from polyhead.tokenizers.special_tokens import Seq2SeqTemplate
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.unknown_tokens import UnknownTokens, count_unknown_ids

_LAYOUT = 1  # version of the file layout; another version makes another cache
_CHUNK = 4096  # pairs tokenized at once


class PairStore(IdStore):
    """Token ids of all pairs of a corpus that fit, without special tokens, in the order of the corpus.

    ``source_lengths`` and ``target_lengths`` are the lengths of a row in a batch: its tokens and special
    tokens, mostly one per side (eos of the source; start of the decoder input, eos of the labels).
    """

    kind = "pairs"
    dtypes: ClassVar = {
        "source": np.int32,
        "source_offsets": np.int64,
        "target": np.int32,
        "target_offsets": np.int64,
        "lines": np.int64,
    }

    def __init__(
        self, directory: Path, report: CorpusReport, max_len: int, template: Seq2SeqTemplate
    ) -> None:
        super().__init__(directory, report)
        self.max_len = max_len
        self.source_ids, self.source_offsets, self.target_ids, self.target_offsets, self.line_numbers = (
            self.arrays.values()
        )
        of_source, of_target = template.num_special
        self.source_lengths: IdArray = np.diff(self.source_offsets) + of_source
        self.target_lengths: IdArray = np.diff(self.target_offsets) + of_target

    def __len__(self) -> int:
        return len(self.line_numbers)

    @property
    def corpus_starts(self) -> IdArray:
        """The first row of each of several corpora, and the number of rows: (N + 1,)."""
        return np.cumsum([0, *([part.used for part in self.report.parts] or [len(self)])])

    def source_tokens(self, row: int) -> IdArray:
        """The token ids of one source, as a view."""
        return self.source_ids[self.source_offsets[row] : self.source_offsets[row + 1]]

    def target_tokens(self, row: int) -> IdArray:
        """The token ids of one target, as a view."""
        return self.target_ids[self.target_offsets[row] : self.target_offsets[row + 1]]

    def hash_texts(self) -> list[int]:
        """A hash of the source and the target of each row."""
        return [
            hash((self.source_tokens(row).tobytes(), self.target_tokens(row).tobytes()))
            for row in range(len(self))
        ]

    def count_unknown(self, tokenizer: Tokenizer) -> UnknownTokens:
        """Count the unknown tokens of both sides."""
        return count_unknown_ids(self.source_ids, tokenizer) + count_unknown_ids(
            self.target_ids, tokenizer.target_tokenizer
        )

    @classmethod
    def open_or_build(
        cls,
        corpus: ParallelFiles,
        tokenizer: Tokenizer,
        cache: str | os.PathLike[str],
        *,
        max_len: int,
    ) -> PairStore:
        """Open the store of a corpus in the directory ``cache``; build it if missing or incomplete.

        Its name is a digest of the text, the tokenizer and the settings, so that a changed input gives
        another store. ``max_len`` counts the tokens of a side with eos; longer pairs are skipped and counted.
        """
        if max_len < 2:
            raise UserError(f"max_len is {max_len}; a sentence of one token and its end need 2")
        settings: Any = [_key_settings(part, tokenizer, max_len) for part in corpus.parts]
        settings = settings if corpus.corpora else settings[0]
        report = CorpusReport(corpus.source_label)
        write = partial(_write_pairs, corpus, tokenizer, max_len)
        return cls(*cls.build(cache, settings, report, write), max_len, tokenizer.seq2seq_template)


def _key_settings(corpus: ParallelFiles, tokenizer: Tokenizer, max_len: int) -> dict[str, Any]:
    share = [corpus.validation_fraction, corpus.is_validation]
    return {
        "layout": _LAYOUT,
        "files": [fingerprint(path) for path in corpus.files],
        "tokenizer": tokenizer.sha256,
        "max_len": max_len,
        "format": corpus.format,
        "columns": [*corpus.columns_by_role.values()],
        **({"share": share} if corpus.validation_fraction else {}),
        **({"rules": [corpus.name, corpus.rules, corpus.source_tags]} if corpus.name else {}),
    }


def hash_pairs(
    pairs: Sequence[SentencePair], tokenizer: Tokenizer, source_tags: Sequence[str] = ()
) -> list[int]:
    """``PairStore.hash_texts`` of pairs that are not in a store."""
    sources = _encode_sources(pairs, tokenizer, source_tags)
    targets = tokenizer.target_tokenizer.encode([pair.target for pair in pairs])
    rows = zip(sources, targets, strict=True)
    return [hash(tuple(np.array(ids, "<i4").tobytes() for ids in row)) for row in rows]


def _encode_sources(
    pairs: Sequence[SentencePair], tokenizer: Tokenizer, source_tags: Sequence[str]
) -> list[list[int]]:
    """Ids of the sources, after those of special tokens."""
    tags = [tokenizer.token_to_id(tag) for tag in source_tags]
    return [tags + ids for ids in tokenizer.encode([pair.source for pair in pairs])]


def _write_pairs(
    corpus: ParallelFiles,
    tokenizer: Tokenizer,
    max_len: int,
    out: dict[str, FlatWriter],
    report: CorpusReport,
) -> None:
    for part in corpus.corpora:
        part_report = CorpusReport(part.source_label)
        _write_pairs(part, tokenizer, max_len, out, part_report)
        report.add_part(part_report)
    if corpus.corpora:
        return
    n_tags = len(corpus.source_tags)
    for chunk in iter_chunks(corpus.iter_pairs(report), _CHUNK):
        encoded = zip(
            chunk,
            _encode_sources(chunk, tokenizer, corpus.source_tags),
            tokenizer.target_tokenizer.encode([pair.target for pair in chunk]),
            strict=True,
        )
        rows = [row for row in encoded if _check_length(*row, n_tags, max_len, report)]
        out["source"].append_rows([source for _, source, _ in rows], out["source_offsets"])
        out["target"].append_rows([target for _, _, target in rows], out["target_offsets"])
        out["lines"].append([pair.line for pair, _, _ in rows])
    report.check_usable(f" (max_len is {max_len} tokens)")


def _check_length(
    pair: SentencePair,
    source: list[int],
    target: list[int],
    n_tags: int,
    max_len: int,
    report: CorpusReport,
) -> bool:
    """Whether a pair fits; if not, its count in the report moves from used to the kind of problem."""
    longest, shortest = max(len(source), len(target)), min(len(source) - n_tags, len(target))
    if shortest > 0 and longest < max_len:
        return True
    report.used -= 1
    report.count_problem("too_long" if longest >= max_len else "empty", pair.location)
    return False
