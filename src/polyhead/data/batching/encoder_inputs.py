"""One or two texts as encoder input: with special tokens, padded to one width. Shapes: B rows, T tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyhead.core.errors import UserError
from polyhead.data.batching.collate import concat_rows, fill_rows, make_positions
from polyhead.data.stores.build_cache import IdArray
from polyhead.nn.positions import AnyPositions, Positions
from polyhead.tokenizers.special_tokens import SpecialTokensTemplate
from polyhead.tokenizers.tokenizer import Tokenizer


class EncoderInput(NamedTuple):
    """The tokens of a row, special tokens included."""

    ids: list[int]
    second_start: int  # start of the second segment; the length of the row if there is only one
    truncated: bool  # whether a text was cut


class EncoderBatch(NamedTuple):
    """The input tensors of an encoder."""

    tokens: Tensor  # (B, T) int64
    pos: Tensor | None  # (B, T) int64: 0, 1, ... and -1 at padding; None if no row is padded
    segments: Tensor | None  # (B, T) int64: 1 from the start of the second segment; None if no row has one

    def model_args(
        self, n_segments: int, host: EncoderBatch | None = None
    ) -> tuple[Tensor, AnyPositions, Tensor | None]:
        """The arguments of a model with ``n_segments`` segment embeddings; ``host``: the batch on the CPU."""
        pos = self.pos if host is None else Positions.of(self.pos, host.pos)
        return self.tokens, pos, self.segments if n_segments > 1 else None


def build_encoder_input(texts: Sequence[Sequence[int]], tokenizer: Tokenizer, max_len: int) -> EncoderInput:
    """Build ``<s> text </s>`` or ``<s> text </s> text </s>`` with at most ``max_len`` tokens.

    The template is that of the tokenizer. Of two texts that do not fit, the longer one is cut first (Devlin
    et al., 2018, appendix A.2).
    """
    if not 1 <= len(texts) <= 2:
        raise UserError(f"an encoder takes one text or a pair of texts, got {len(texts)}")
    return fill_template(tokenizer.template(len(texts)), texts, max_len)


def encode_texts(
    texts: Iterable[str | Sequence[str]], tokenizer: Tokenizer, max_len: int
) -> list[EncoderInput]:
    """Encode texts, or pairs of texts, each cut to ``max_len`` tokens."""
    sides = [
        tuple(text) if isinstance(text, Iterable) and not isinstance(text, str) else (text,) for text in texts
    ]
    if len({len(side) for side in sides}) > 1:
        raise UserError("texts and pairs of texts cannot be mixed")
    encoded = [tokenizer.encode(side) for side in zip(*sides, strict=True)]
    return [build_encoder_input(ids, tokenizer, max_len) for ids in zip(*encoded, strict=True)]


def fill_template(
    template: SpecialTokensTemplate, texts: Sequence[Sequence[int]], max_len: int
) -> EncoderInput:
    """Put one or two texts into a template of special tokens.

    Of two that do not fit, the longer one is cut first. If both are cut and the available length is odd, the
    longer one gets the extra token, as for published checkpoints.
    """
    before, between, after, apart = template
    special = len(before) + len(between) + len(after)
    room = max_len - special
    if room < len(texts):
        what = "two texts" if len(texts) > 1 else "a text"
        raise UserError(
            f"{max_len} tokens are too few for {what}: with special tokens at least "
            f"{special + len(texts)} are required"
        )
    segments = [list(ids) for ids in texts]
    if len(segments) == 1:
        segments = [segments[0][:room], []]
    else:
        a, b = segments
        short = min(len(a), len(b), room // 2)
        first = min(len(a), short if len(a) <= len(b) else room - short)
        segments = [a[:first], b[: room - first]]
    ids = [*before, *segments[0], *between, *segments[1], *after]
    second = len(before) + len(segments[0]) + len(between) if apart else len(ids)
    return EncoderInput(ids, second, sum(map(len, segments)) < sum(map(len, texts)))


def make_dummy_input() -> EncoderBatch:
    """One row of a padding token: a batch for a rank without rows."""
    return EncoderBatch(torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 1), -1), None)


def collate_encoder_inputs(
    rows: Sequence[IdArray | Sequence[int]], second_starts: IdArray | Sequence[int], pad_id: int
) -> EncoderBatch:
    """Collate rows into tensors, padded on the right."""
    ids, lengths = concat_rows(rows)
    columns = np.arange(int(lengths.max(initial=0)))
    after = (columns >= np.asarray(second_starts)[:, None]) & (columns < lengths[:, None])
    return EncoderBatch(
        torch.from_numpy(fill_rows(ids, lengths, pad_id)),
        make_positions(lengths),
        torch.from_numpy(after.astype(np.int64)) if after.any() else None,
    )
