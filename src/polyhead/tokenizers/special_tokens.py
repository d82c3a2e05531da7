"""Special tokens by role, role names of published models, sentinels, and templates around texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from tokenizers.processors import TemplateProcessing

import tokenizers

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
SPECIAL_TOKENS_MAP = {
    "pad_token": "<pad>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
# role names in published encoders: [CLS] starts a text and [SEP] ends it (Devlin et al., 2018)
ROLE_ALIASES = {"bos_token": "cls_token", "eos_token": "sep_token"}
# first decoder input and forced first output of published encoder-decoders
TARGET_LANGUAGE_TOKEN = re.compile(r"\A>>.+<<")  # language tokens of OPUS-MT
DECODER_ROLES = ("decoder_start_token", "forced_bos_token")
UNK_TOKEN = SPECIAL_TOKENS_MAP["unk_token"]
# every special token starts with it, so if it is always a word by itself no text can spell one
SPECIAL_PREFIX = "<"
# name of a byte token in a vocabulary of texts (byte fallback)
BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


class AddedToken(NamedTuple):
    """A special token, and whether it includes the whitespace before and after it."""

    id: int
    lstrip: bool
    rstrip: bool


def sentinel_token(number: int) -> str:
    """The sentinel token of masked span ``number``, from 0, as in T5's tokenizer (Raffel et al., 2020)."""
    return f"<extra_id_{number}>"


# put before a text that is not the first of its row: no token merges with a control character
_BLANK_GUARD = "\x1f"


class SpecialTokensTemplate(NamedTuple):
    """Ids of the special tokens around one text or two."""

    prefix_ids: list[int]
    separator_ids: list[int]  # between two texts; empty for one
    suffix_ids: list[int]
    has_second_segment: bool  # whether the second text and its suffix have token type 1


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


def from_post_processor(inner: tokenizers.Tokenizer, num_texts: int) -> SpecialTokensTemplate:
    """Special tokens that the post-processor adds to one text or two: [CLS] text [SEP] second [SEP]."""
    encoding = inner.encode(*"ab"[:num_texts])
    sequence_ids = encoding.sequence_ids  # index of the text of each token
    first, last = (int(text in sequence_ids) and sequence_ids.index(text) for text in (0, num_texts - 1))
    first_end, last_end = (
        len(sequence_ids) - sequence_ids[::-1].index(text) if text in sequence_ids else first
        for text in (0, num_texts - 1)
    )
    separator_ids = encoding.ids[first_end:last] if num_texts > 1 else []
    return SpecialTokensTemplate(
        encoding.ids[:first],
        separator_ids,
        encoding.ids[last_end:],
        num_texts > 1 and encoding.type_ids[last : last + 1] == [1],
    )


def set_post_processor(
    inner: tokenizers.Tokenizer, prefix_ids: Sequence[int], suffix_ids: Sequence[int]
) -> tokenizers.Tokenizer:
    """A copy whose post-processor puts these ids around a text, and ``suffix_ids`` also between two texts."""
    copy = tokenizers.Tokenizer.from_str(inner.to_str())
    prefix_tokens, suffix_tokens = ([copy.id_to_token(i) for i in ids] for ids in (prefix_ids, suffix_ids))
    single, second = [*prefix_tokens, "$A", *suffix_tokens], ["$B", *suffix_tokens]
    copy.post_processor = TemplateProcessing(
        single=single,
        pair=[f"{piece}:{text}" for text, pieces in enumerate((single, second)) for piece in pieces],
        special_tokens=[(copy.id_to_token(i), i) for i in {*prefix_ids, *suffix_ids}],
    )
    return copy
