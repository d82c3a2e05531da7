"""Special tokens around the source and the target of an encoder-decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Seq2SeqTemplate(NamedTuple):
    """Special tokens around the source and the target of an encoder-decoder.

    The encoder input is ``source_prefix text source_suffix``, the labels are ``opening_ids text eos_id``, and
    the decoder input is ``decoder_start_id opening_ids text``.
    """

    source_prefix: tuple[int, ...]
    source_suffix: tuple[int, ...]
    decoder_start_id: int
    opening_ids: tuple[int, ...]  # such as the target language token; mostly empty
    # whether decoding forces the opening (forced BOS); else the model learns to generate it
    opening_forced: bool
    eos_id: int

    def encoder_input(self, ids: Sequence[int]) -> list[int]:
        """Encoder input of the ids of a source text."""
        return [*self.source_prefix, *ids, *self.source_suffix]

    def decoder_input(self, ids: Sequence[int]) -> list[int]:
        """Decoder input of the ids of a target text (teacher forcing)."""
        return [self.decoder_start_id, *self.opening_ids, *ids]

    def labels(self, ids: Sequence[int]) -> list[int]:
        """Labels of the decoder for the ids of a target text."""
        return [*self.opening_ids, *ids, self.eos_id]

    def strip_opening(self, ids: Sequence[int]) -> list[int]:
        """Decoder output without the opening, if it starts with it."""
        n = len(self.opening_ids)
        return list(ids[n:] if tuple(ids[:n]) == self.opening_ids else ids)

    @property
    def num_special(self) -> tuple[int, int]:
        """Number of special tokens added to a source and to a target in a batch."""
        return len(self.source_prefix) + len(self.source_suffix), 1 + len(self.opening_ids)

    @property
    def max_special(self) -> int:
        """The larger of both numbers of special tokens."""
        return max(self.num_special)
