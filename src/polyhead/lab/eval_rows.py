"""Texts as inputs of a decoder: windows of a language model's text, or pairs of a translator's texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.core.errors import UserError
from polyhead.data.batching.collate import collate_pairs
from polyhead.lab.test_model import ModelUnderTest
from polyhead.nn.kv import arange_positions
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.languages import with_languages


class EvalRows(NamedTuple):
    """Decoder inputs of N texts with T tokens each; for a translator with sources of S tokens."""

    input_ids: Tensor  # (N, T)
    pos: Tensor  # (N, T), -1 at padding
    labels: Tensor  # (N, T) the next token, IGNORE_INDEX at padding
    source: Tensor | None = None  # (N, S)
    source_pos: Tensor | None = None  # (N, S)

    def select(self, index: slice) -> EvalRows:
        """A slice of the texts."""
        return EvalRows(
            self.input_ids[index],
            self.pos[index],
            self.labels[index],
            *(x if x is None else x[index] for x in self[3:]),
        )

    def batches(self, n: int) -> Iterator[EvalRows]:
        """Batches of ``n`` texts."""
        for i in range(0, len(self.input_ids), n):
            yield self.select(slice(i, i + n))


def make_eval_rows(subject: ModelUnderTest, n: int, width: int) -> EvalRows:
    """Decoder inputs of the first ``n`` texts: for a language model adjacent windows of ``width`` tokens.

    For a translator they are the references, or else its own greedy translations; pairs with a side of more
    than ``width`` tokens are left out.
    """
    return make_pair_rows(subject, n, width) if subject.is_translator else make_window_rows(subject, n, width)


def make_window_rows(subject: ModelUnderTest, n: int, width: int) -> EvalRows:
    """``make_eval_rows`` for a language model: at least two and at most ``n`` windows."""
    tokenizer, template = subject.run.tokenizer, subject.run.prompt_template
    prefix_ids = template.prefix_ids if template.always_add_prefix else []
    separator = [tokenizer.eos_id] if subject.has_documents else []
    window_len, ids = width + 1 - len(prefix_ids), list[int]()
    for document in subject.texts:
        ids += [*separator, *tokenizer.encode([document])[0]]
        if len(ids) >= n * window_len:
            break
    if len(ids) < 2 * window_len:
        raise UserError(f"the text has {len(ids):,} tokens; expected at least two windows of {window_len}")
    windows = torch.tensor(
        [[*prefix_ids, *ids[i : i + window_len]] for i in range(0, len(ids) - window_len + 1, window_len)][:n]
    )
    return EvalRows(
        windows[:, :-1], arange_positions(width, windows.device).expand(len(windows), -1), windows[:, 1:]
    )


def make_pair_rows(subject: ModelUnderTest, n: int, width: int) -> EvalRows:
    """``make_eval_rows`` for a translator."""
    tokenizer, sources = subject.run.tokenizer, subject.texts[:n]
    targets = subject.references[:n] or subject.run.translate(sources, beam_size=1, truncate=True)
    max_tokens = width - with_languages(tokenizer).max_special
    sides = zip(tokenizer.encode(sources), tokenizer.target_tokenizer.encode(targets), strict=True)
    pairs = [(a, b) for a, b in sides if max(len(a), len(b)) <= max_tokens]
    if len(pairs) < 2:
        raise UserError(
            f"the text has {len(pairs)} pairs of at most {max_tokens} tokens per side; expected at least 2"
        )
    batch = collate_pairs([a for a, _ in pairs], [b for _, b in pairs], tokenizer)
    lengths = (batch.labels != IGNORE_INDEX).sum(1, keepdim=True)
    pos = arange_positions(batch.labels.size(1), lengths.device)
    return EvalRows(
        batch.target, torch.where(pos < lengths, pos, -1), batch.labels, batch.source, batch.source_pos
    )
