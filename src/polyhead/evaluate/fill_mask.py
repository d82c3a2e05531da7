"""Predict the masked tokens of a text with a masked language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from polyhead.core.errors import UserError, check_int, is_command_line
from polyhead.core.i18n import tr
from polyhead.data.batching.encoder_inputs import build_encoder_input
from polyhead.evaluate.encode_batches import encode_in_batches
from polyhead.generation.engine.request import require_finite
from polyhead.models import MaskedLM
from polyhead.tokenizers.display import tokens_to_text, visible_token
from polyhead.tokenizers.mask_tokens import count_masks, encode_masked
from polyhead.tokenizers.tokenizer import Tokenizer

_BATCH_TOKENS = 4096  # tokens per batch


class MaskPrediction(NamedTuple):
    """A predicted token of a mask."""

    token: str  # for display; spaces are shown as ␣
    probability: float
    text: str  # the text with it; other masks are filled with their most likely tokens


@torch.inference_mode()
def fill_mask(
    model: MaskedLM, tokenizer: Tokenizer, texts: Sequence[str], top_k: int
) -> list[list[list[MaskPrediction]]]:
    """The ``top_k`` most likely tokens of each mask of each text, best first.

    Probabilities are over the whole vocabulary; special tokens are excluded. A mask is written as the
    tokenizer's mask token, or as <mask> or [MASK]. Every mask is predicted separately, with the others masked
    too.
    """
    if not model.config.lm_head:
        raise UserError(
            "this encoder has no language modelling head (model.lm_head=false): it cannot fill masks"
        )
    special = torch.tensor(tokenizer.special_ids)
    max_k = tokenizer.vocab_size - len(special)
    check_int("top_k", top_k)
    if not 1 <= top_k <= max_k:
        name = "--top" if is_command_line() else "top_k"
        raise UserError(f"{name} is {top_k}; expected 1 to {max_k} tokens")
    rows = [
        build_encoder_input([ids], tokenizer, model.config.max_len) for ids in encode_masked(tokenizer, texts)
    ]
    for number, row in enumerate(rows, 1):
        if row.truncated:
            raise UserError(
                f"text {number} has more tokens than the model's maximum ({model.config.max_len}, "
                "including special tokens)"
            )
    predictions: list[list[list[MaskPrediction]]] = [[] for _ in rows]
    for numbers, vectors, _ in encode_in_batches(model, rows, tokenizer, _BATCH_TOKENS):
        for number, text_vectors in zip(numbers, vectors, strict=True):
            ids = torch.tensor(rows[number].ids)
            positions = torch.where(ids == tokenizer.mask_id)[0]
            p = model.head(model.apply_transform(text_vectors[positions])).float().softmax(-1).cpu()
            require_finite(p)
            p[:, special] = -1.0
            p[:, tokenizer.vocab_size :] = -1.0  # unused rows of a published model's vocabulary
            best = p.topk(top_k)
            ids[positions] = best.indices[:, 0]
            predictions[number] = [
                [
                    _make_prediction(tokenizer, ids, int(position), int(token), float(probability))
                    for token, probability in zip(*ranked, strict=True)
                ]
                for position, *ranked in zip(positions, best.indices, best.values, strict=True)
            ]
    return predictions


def find_unfillable_texts(model: MaskedLM, tokenizer: Tokenizer, texts: Sequence[str]) -> dict[int, str]:
    """Why texts cannot be filled, in the current language, by index: without a mask, or too long."""
    reasons = {
        i: tr("no mask; put {mask} in place of a word", mask=tokenizer.ids_to_tokens([tokenizer.mask_id])[0])
        for i, num_masks in enumerate(count_masks(tokenizer, texts))
        if not num_masks
    }
    rows = [i for i in range(len(texts)) if i not in reasons]
    before, _, after, _ = tokenizer.template(1)
    max_tokens = model.config.max_len - len(before) - len(after)
    for i, ids in zip(rows, encode_masked(tokenizer, [texts[i] for i in rows]), strict=True):
        if len(ids) > max_tokens:
            message = "{count:,} tokens, the model's maximum is {most:,}"
            reasons[i] = tr(message, count=len(ids), most=max_tokens)
    return reasons


def _make_prediction(
    tokenizer: Tokenizer, ids: torch.Tensor, position: int, token: int, probability: float
) -> MaskPrediction:
    filled = ids.clone()
    filled[position] = token
    return MaskPrediction(
        visible_token(tokenizer, token), probability, tokens_to_text(tokenizer, filled.tolist())
    )
