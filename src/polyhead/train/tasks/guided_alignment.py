"""Guided alignment: one head of the cross-attention learns known links between words (Chen et al., 2016).

Shapes: B pairs, T target tokens, S source tokens, each with special tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.data.readers.files import fingerprint, iter_lines
from polyhead.data.readers.parallel_corpus import CorpusReport, ParallelFiles
from polyhead.data.stores.build_cache import FlatWriter, IdArray, IdStore
from polyhead.data.stores.pair_store import PairStore
from polyhead.introspect.word_alignment import Alignment, mark_token_words
from polyhead.tokenizers.tokenizer import Tokenizer

ALIGNMENT_WEIGHT = 0.05  # of the loss, by default
_LAYOUT = 1  # version of the file layout


class LinkStore(IdStore):
    """The links between tokens of each row of a ``PairStore``, as pairs of numbers without special tokens."""

    kind = "links"
    dtypes: ClassVar = {"source": np.int32, "target": np.int32, "offsets": np.int64}

    @classmethod
    def open_or_build(
        cls, path: Path, corpus: ParallelFiles, pairs: PairStore, tokenizer: Tokenizer
    ) -> LinkStore:
        """Open the links of the rows of ``pairs``, from a file with a line for each line of the corpus."""

        def write(out: dict[str, FlatWriter], report: CorpusReport) -> None:
            lines, rows = path.read_text(encoding="utf-8").splitlines(), {*pairs.line_numbers.tolist()}
            n_lines = sum(1 for _ in iter_lines(corpus.files[0]))
            if len(lines) != n_lines:
                raise UserError(
                    f"data.alignments: {path.name} has {len(lines):,} lines and {corpus.files[0].name} has "
                    f"{n_lines:,}; expected one line for each pair, blank without links"
                )
            for pair in corpus.iter_pairs():
                if pair.line in rows:
                    location = f"data.alignments: {path.name} line {pair.line:,}"
                    words = [
                        mark_token_words(text, side.encode_with_offsets(text)[1])
                        for side, text in (
                            (tokenizer, pair.source),
                            (tokenizer.target_tokenizer, pair.target),
                        )
                    ]
                    links = parse_links(lines[pair.line - 1], (len(words[0]), len(words[1])), location)
                    tokens = {
                        (int(s), int(t))
                        for i, j in links
                        for s in np.flatnonzero(words[0][i])
                        for t in np.flatnonzero(words[1][j])
                    }
                    out["source"].append([source for source, _ in sorted(tokens)])
                    out["target"].append_rows([[target for _, target in sorted(tokens)]], out["offsets"])

        settings = [_LAYOUT, pairs.directory.name, fingerprint(path)]
        directory, report = cls.build(pairs.directory.parent, settings, CorpusReport(path.name), write)
        return cls(directory, report)

    def make_targets(self, rows: IdArray, shape: tuple[int, int, int], starts: tuple[int, int]) -> Tensor:
        """The distribution that each target token should attend with, 0 for one without links: (B, T, S).

        ``starts`` are the numbers of special tokens before the source and the target.
        """
        source, target, offsets = self.arrays.values()
        weights = torch.zeros(shape)
        for row, number in enumerate(rows):
            links = slice(offsets[number], offsets[number + 1])
            weights[row, target[links] + starts[1], source[links] + starts[0]] = 1
        return weights / weights.sum(-1, keepdim=True).clamp(min=1)


def parse_links(line: str, n_words: tuple[int, int], location: str) -> Alignment:
    """The links of a line in the format of Pharaoh, such as ``0-0 1-2``, of a pair with so many words."""
    links: Alignment = []
    for link in line.split():
        source, separator, target = link.partition("-")
        if not (separator and source.isdecimal() and target.isdecimal()):
            raise UserError(f"{location}: {link!r} is no link; expected two word numbers from 0, such as 0-1")
        links.append((int(source), int(target)))
        if int(source) >= n_words[0] or int(target) >= n_words[1]:
            raise UserError(
                f"{location}: the link {link} is out of range: the source has {n_words[0]} words and the "
                f"target {n_words[1]}, numbered from 0"
            )
    return links


def check_guided(recipe: Recipe, corpus: ParallelFiles) -> None:
    """Raise a UserError if a recipe with alignments has settings that do not fit them."""
    data, options = recipe.data, recipe.task.options
    if data.alignments is None:
        if options.get("alignment_weight", ALIGNMENT_WEIGHT) != ALIGNMENT_WEIGHT:
            raise UserError("alignment_weight requires data.alignments, a file with the links of the words")
        return
    if data.list_corpora("train") or (corpus.format, len(corpus.files)) != ("parallel", 2):
        raise UserError("data.alignments requires data.train=[SOURCE, TARGET], two files of plain text")
    data.resolve_files(str(data.alignments))
    parallel = recipe.train.parallel
    others = {
        "data.augment": bool(data.augment),
        "token_split": bool(options.get("token_split")),
        "train.recompute": recipe.train.recompute != "none",
        "train.compile=layers": recipe.train.compile == "layers",
        "distill": recipe.distill is not None,
        "parallel": parallel.context * parallel.tensor * parallel.pipeline > 1,
    }
    for key in [key for key, is_set in others.items() if is_set]:
        raise UserError(f"data.alignments and {key} cannot be combined: remove one of them")


def guided_loss(weights: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of attention weights (B, T, S), summed over the target tokens (Garg et al., 2019)."""
    return -(targets * weights.float().clamp(min=1e-9).log()).sum()
