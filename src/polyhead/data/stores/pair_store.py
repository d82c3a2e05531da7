"""Tokenized parallel corpus on disk, read through memory maps, so that it may be larger than memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
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

Pair = tuple[list[int], list[int]]  # token ids of a source and its target
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

    def read_pairs(self, rows: IdArray | Sequence[int]) -> list[Pair]:
        """The token ids of some pairs."""
        return [(self.source_tokens(row).tolist(), self.target_tokens(row).tolist()) for row in rows]

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

        def list_settings(part: ParallelFiles) -> dict[str, Any]:
            share = [part.validation_fraction, part.is_validation]
            return {
                "layout": cls.layout,
                "files": [fingerprint(path) for path in part.files],
                "tokenizer": tokenizer.sha256,
                "max_len": max_len,
                "format": part.format,
                "columns": [*part.columns_by_role.values()],
                **({"share": share} if part.validation_fraction else {}),
                **({"rules": [part.name, part.rules, part.source_tags]} if part.name else {}),
            }

        def write(out: dict[str, FlatWriter], report: CorpusReport) -> None:
            for part, part_report in report.iter_parts(corpus):
                for chunk in iter_chunks(part.iter_pairs(part_report), _CHUNK):
                    _write_pairs(chunk, tokenizer, part.source_tags, max_len, out, part_report)
                part_report.check_usable(f" (max_len is {max_len} tokens)")

        settings = [list_settings(part) for part in corpus.parts]
        built = cls.build(
            cache, settings if corpus.corpora else settings[0], CorpusReport(corpus.source_label), write
        )
        return cls(*built, max_len, tokenizer.seq2seq_template)


def hash_pairs(
    pairs: Sequence[SentencePair], tokenizer: Tokenizer, source_tags: Sequence[str] = ()
) -> list[int]:
    """``PairStore.hash_texts`` of pairs that are not in a store."""
    rows = _encode_pairs(pairs, tokenizer, source_tags)
    return [hash(tuple(np.array(ids, "<i4").tobytes() for ids in row)) for row in rows]


def _encode_pairs(
    pairs: Sequence[SentencePair], tokenizer: Tokenizer, source_tags: Sequence[str]
) -> list[tuple[list[int], list[int]]]:
    """Ids of the sources, after those of special tokens, and of the targets."""
    tags = [tokenizer.token_to_id(tag) for tag in source_tags]
    sources = tokenizer.encode([pair.source for pair in pairs])
    targets = tokenizer.target_tokenizer.encode([pair.target for pair in pairs])
    return [(tags + source, target) for source, target in zip(sources, targets, strict=True)]


def _write_pairs(
    pairs: Sequence[SentencePair],
    tokenizer: Tokenizer,
    source_tags: Sequence[str],
    max_len: int,
    out: dict[str, FlatWriter],
    report: CorpusReport,
) -> None:
    """Write the pairs that fit; the count of another moves in the report from used to the kind of problem."""
    rows, lines = list[tuple[list[int], list[int]]](), list[int]()
    encoded = _encode_pairs(pairs, tokenizer, source_tags)
    for pair, (source, target) in zip(pairs, encoded, strict=True):
        if max(len(source), len(target)) >= max_len:
            kind = "too_long"
        elif min(len(source) - len(source_tags), len(target)) == 0:
            kind = "empty"
        else:
            rows.append((source, target))
            lines.append(pair.line)
            continue
        report.used -= 1
        report.count_problem(kind, pair.location)
    out["source"].append_rows([source for source, _ in rows], out["source_offsets"])
    out["target"].append_rows([target for _, target in rows], out["target_offsets"])
    out["lines"].append(lines)
