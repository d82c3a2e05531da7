"""What stands behind the masks of a text, as a masked language model says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from polyhead.analysis.reading import read
from polyhead.analysis.token_maps import display, spell_tokens
from polyhead.data.framed import framed
from polyhead.errors import UserError, check_whole
from polyhead.models import MaskedLM
from polyhead.text.masks import encode_masked
from polyhead.text.tokenizer import Tokenizer

BATCH_TOKENS = 4096  # that are read together


class Fill(NamedTuple):
    """A token that may stand behind a mask."""

    token: str  # as a person reads it; blanks are shown as ␣
    probability: float
    text: str  # the text with it; other masks of the text are filled with what is likeliest


@torch.inference_mode()
def fill_mask(
    model: MaskedLM, tokenizer: Tokenizer, texts: Sequence[str], top: int
) -> list[list[list[Fill]]]:
    """For each text and each of its masks the ``top`` likeliest tokens, best first.

    Probabilities are of the whole vocabulary; special tokens are not offered. A mask is written as the tokenizer has
    it, or as <mask> or [MASK]. Every mask is filled by itself, as the others are hidden too.
    """
    if not model.config.head:
        raise UserError("this encoder scores no tokens (model.head=false): it cannot fill a mask")
    special = torch.tensor(tokenizer.special_ids)
    most = tokenizer.vocab_size - len(special)
    check_whole("top", top)
    if not 1 <= top <= most:
        raise UserError(f"top is {top}; this vocabulary offers 1 to {most} tokens")
    rows = [framed([ids], tokenizer, model.config.max_len) for ids in encode_masked(tokenizer, texts)]
    for number, row in enumerate(rows, 1):
        if row.cut:
            raise UserError(
                f"text {number} has more tokens than this model takes ({model.config.max_len}, special ones counted)"
            )
    found: list[list[list[Fill]]] = [[] for _ in rows]
    for numbers, vectors, _ in read(model, rows, tokenizer, BATCH_TOKENS):
        for number, of_text in zip(numbers, vectors, strict=True):
            ids = torch.tensor(rows[number].ids)
            places = torch.where(ids == tokenizer.mask_id)[0]
            p = model.head(model.transformed(of_text[places])).float().softmax(-1).cpu()
            p[:, special] = -1.0
            p[:, tokenizer.vocab_size :] = -1.0  # rows that a published model has to spare
            best = p.topk(top)
            ids[places] = best.indices[:, 0]
            found[number] = [
                [
                    _fill(tokenizer, ids, int(place), int(token), float(chance))
                    for token, chance in zip(*ranked, strict=True)
                ]
                for place, *ranked in zip(places, best.indices, best.values, strict=True)
            ]
    return found


def _fill(tokenizer: Tokenizer, ids: torch.Tensor, place: int, token: int, probability: float) -> Fill:
    filled = ids.clone()
    filled[place] = token
    return Fill(display(tokenizer, token), probability, spell_tokens(tokenizer, filled.tolist()))
