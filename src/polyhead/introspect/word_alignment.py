"""How a translator reads pairs: the probability of each token, and the source word of each word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyhead.core.array_types import Floats
from polyhead.core.errors import UserError
from polyhead.data.batching.length_bucketing import plan_eval_batches
from polyhead.generation.engine.request import pad_rows, require_finite
from polyhead.generation.token_offsets import token_offsets
from polyhead.introspect.compute_attention import AttentionWeights, record_attention
from polyhead.models import Model, Seq2Seq
from polyhead.tokenizers.scripts import find_words
from polyhead.tokenizers.special_tokens import Seq2SeqTemplate
from polyhead.tokenizers.tokenizer import Tokenizer

BATCH_TOKENS = 2048  # maximum tokens of a batch of pairs, per side

Alignment = list[tuple[int, int]]
"""Pairs of words that belong together: number in the source, number in the translation, both from 0."""


class AlignedPair(NamedTuple):
    """How a translator reads a source and its translation."""

    tokens: list[int]  # of the translation, end of sentence included unless the model cannot read so far
    log_probs: list[float]  # of these tokens, each after those before it
    alignment: Alignment


def select_guided(weights_by_name: AttentionWeights) -> Tensor:
    """The weights that guided alignment teaches (B, T, S): the first head of the last layer but one.

    Of the cross-attentions of a pass, those of Garg et al., 2019; of a single layer its own.
    """
    layers = [weights for passes in weights_by_name.values() for weights in passes]
    return layers[max(len(layers) - 2, 0)][:, 0]


def format_alignment(alignment: Alignment) -> str:
    """In the format of Pharaoh, such as ``0-0 1-2``."""
    return " ".join(f"{source}-{target}" for source, target in alignment)


def align_pairs(
    model: Model,
    tokenizer: Tokenizer,
    template: Seq2SeqTemplate,
    sources: Sequence[str],
    targets: Sequence[Sequence[int]],
    layer: int | None = None,
    is_guided: bool = False,
) -> list[AlignedPair]:
    """Read texts, of which long ones are cut, with the tokens of their translations.

    The weight between two words is that of their tokens in the cross-attention, as the mean over the heads
    of all layers or of one ``layer`` of the decoder, from 0; without a layer, that of the head of
    ``select_guided`` if ``is_guided``. Each word of the translation is aligned with the
    source word that has the largest weight while it is written (Garg et al., 2019).
    """
    if not isinstance(model, Seq2Seq):
        raise UserError("words are aligned by the cross-attention of an encoder-decoder; this model has none")
    if len(sources) != len(targets):
        raise UserError(f"{len(sources)} sources and {len(targets)} targets: expected equally many")
    limit = model.config.max_len - len(template.encoder_input(()))
    encoded = [tokenizer.encode_with_offsets(text) for text in sources]
    ids = [row[:limit] for row, _ in encoded]
    readings: dict[int, AlignedPair] = {}
    lengths, target_lengths = (np.array([len(row) + 1 for row in rows]) for rows in (ids, targets))
    for i in np.flatnonzero(target_lengths > model.config.max_len + 1)[:1].tolist():
        raise UserError(
            f"target {i + 1} has {len(targets[i])} tokens; the model's maximum is {model.config.max_len}"
        )
    for batch in plan_eval_batches(lengths, target_lengths, BATCH_TOKENS):
        rows = batch.tolist()
        log_probs, weights = score_batch(
            model, tokenizer, template, [ids[i] for i in rows], [targets[i] for i in rows], layer, is_guided
        )
        for row, i in enumerate(rows):
            tokens = list(targets[i])
            pairs: Alignment = []
            if weights is not None:
                offsets = token_offsets(tokenizer.target_tokenizer).next_offsets(tokens)
                target_words = mark_token_words(tokenizer.target_tokenizer.decode([tokens])[0], offsets)
                source_words = mark_token_words(sources[i], encoded[i][1])[:, : len(ids[i])]
                pairs = link_words(target_words, weights[row, : len(tokens), : len(ids[i])], source_words)
            values = log_probs[row, : len(tokens) + 1].tolist()
            readings[i] = AlignedPair([*tokens, template.eos_id][: len(values)], values, pairs)
    return [readings[i] for i in range(len(sources))]


@torch.inference_mode()
def score_batch(
    model: Seq2Seq,
    tokenizer: Tokenizer,
    template: Seq2SeqTemplate,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    layer: int | None,
    is_guided: bool = False,
) -> tuple[Tensor, Floats | None]:
    """Log-probabilities of the tokens of the targets and their ends (B, T + 1), and weights (B, T + 1, S).

    Weights are means over heads, without special tokens before the texts; None where no layer shows any.
    """
    device, of_target = next(model.parameters()).device, tokenizer.target_tokenizer
    source, pos = pad_rows([template.encoder_input(row) for row in sources], tokenizer.pad_id, device)
    most = model.config.max_len
    target, _ = pad_rows([template.decoder_input(row)[:most] for row in targets], of_target.pad_id, device)
    labels, _ = pad_rows([template.labels(row)[:most] for row in targets], of_target.pad_id, device)
    with record_attention(model, ".cross") as passes_by_name:
        log_p = model(source, target, pos).float().log_softmax(-1)
    log_probs = require_finite(log_p.gather(-1, labels[..., None])[..., 0])
    layers = [weights for passes in passes_by_name.values() for weights in passes]
    first, opening = len(template.source_prefix), len(template.opening_ids)
    if not layers:
        return log_probs[:, opening:], None
    if layer is not None and not 0 <= layer < len(layers):
        raise UserError(f"layer is {layer}, expected 0 to {len(layers) - 1}: the decoder's cross-attentions")
    chosen = layers if layer is None else [layers[layer]]
    weights = torch.stack([one.float().mean(1) for one in chosen]).mean(0)
    if is_guided and layer is None:
        weights = select_guided(passes_by_name).float()
    return log_probs[:, opening:], weights[:, opening:, first:].cpu().double().numpy()


def mark_token_words(text: str, starts: Sequence[int]) -> Floats:
    """(words, tokens): 1 where a token, which ends where the next begins, has a part of a word."""
    ends = [*starts[1:], len(text)]
    words = np.array(find_words(text)).reshape(-1, 2)
    begins_before = words[:, :1] < np.maximum(ends, np.add(starts, 1))
    return (begins_before & (words[:, 1:] > np.array(starts, dtype=int))).astype(np.float64)


def link_words(target_words: Floats, weights: Floats, source_words: Floats) -> Alignment:
    """Words of the translation (W, T), weights (T, S), words of the source (V, S) -> pairs of words.

    A word without a token is in none.
    """
    if not source_words.any():
        return []
    totals = np.where(source_words.any(1), target_words @ weights @ source_words.T, -1)
    return [(int(totals[i].argmax()), int(i)) for i in np.flatnonzero(target_words.any(1))]
