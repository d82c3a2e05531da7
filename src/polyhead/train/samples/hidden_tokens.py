"""Samples of masked, denoising and replaced-token models: their predictions and accuracy."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from polyhead.data.batching.collate import PairBatch
from polyhead.introspect.attention_map import AttentionMap
from polyhead.introspect.compute_attention import pair_maps
from polyhead.models import MaskedLM, Seq2Seq
from polyhead.nn.device import to_model_device
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.run.run import Run
from polyhead.tokenizers.display import spell_token
from polyhead.train.samples.base import (
    MAX_MAP_TOKENS,
    MAX_MAPS,
    collect_self_attention,
    decode_readable,
    decode_rows,
    greedy_tokens,
    group_mean,
    make_examples,
    take_samples,
    token_kinds,
)
from polyhead.train.tasks.common import seq2seq_features
from polyhead.train.tasks.denoising import DenoisingTask
from polyhead.train.tasks.masked import MaskedLMTask, masked_lm_features
from polyhead.train.tasks.replaced_token_detection import ReplacedTokenDetectionTask
from polyhead.viz.samples import Breakdown, Samples, break_down, group_by_length, group_by_name

SHOWN_ROWS = 8
SHOWN_ROW_TOKENS = 48  # shown tokens of a row


@take_samples.register
def masked_samples(task: MaskedLMTask, run: Run) -> Samples:
    """The most likely token at each masked position, in the first validation rows."""
    _, batch = next(iter(task.eval_batches("valid")))
    batch = to_model_device(run.model, batch)
    assert isinstance(run.model, MaskedLM)
    has_label = batch.labels != IGNORE_INDEX
    label_ids = batch.labels[has_label].tolist()
    predicted_ids = greedy_tokens(run.model.head, masked_lm_features(run.model, batch))
    output, reference = batch.tokens.clone(), batch.tokens.clone()
    output[has_label], reference[has_label] = batch.tokens.new_tensor(predicted_ids), batch.labels[has_label]
    return Samples(
        description="Validation texts with the most likely token at each position to predict.",
        columns=("Text with masks", "Output", "Text"),
        examples=_list_rows(run, batch.tokens, output, reference),
        breakdowns=_break_down_accuracy(run, predicted_ids, label_ids),
        attention=_collect_beginnings(run, reference),
    )


@take_samples.register
def denoising_samples(task: DenoisingTask, run: Run) -> Samples:
    """The most likely token at each target position, with teacher forcing."""
    _, batch = next(iter(task.eval_batches("valid")))
    assert isinstance(run.model, Seq2Seq)
    batch = to_model_device(run.model, batch)
    has_label = batch.labels != IGNORE_INDEX
    predicted_ids = greedy_tokens(run.model.head, seq2seq_features(run.model, batch)[has_label])
    label_ids = batch.labels[has_label].tolist()
    output = batch.labels.clone()
    output[has_label] = output.new_tensor(predicted_ids)
    return Samples(
        description="Corrupted validation texts with the most likely token at each position, given the "
        "reference tokens before it.",
        columns=("Damaged text", "Output", "Target"),
        examples=_list_rows(run, batch.source, output, batch.labels),
        breakdowns=_break_down_accuracy(run, predicted_ids, label_ids),
        attention=_collect_cross_attention(run, batch),
    )


def _list_rows(run: Run, *sides: Tensor) -> list[dict[str, Any]]:
    """The beginnings of the first rows of source, output and reference (B, T) as examples."""
    shown = (decode_rows(run.tokenizer, rows[:SHOWN_ROWS, :SHOWN_ROW_TOKENS]) for rows in sides)
    return make_examples(*shown)


def _collect_beginnings(run: Run, rows: Tensor) -> list[AttentionMap]:
    """Maps of the self-attention for the first tokens of some rows (B, T)."""
    texts = decode_rows(run.tokenizer, rows[:MAX_MAPS, : MAX_MAP_TOKENS - 4])
    return collect_self_attention(run, filter(None, texts))


def _collect_cross_attention(run: Run, batch: PairBatch) -> list[AttentionMap]:
    """Cross-attention maps of the decoder with teacher forcing, for the first tokens of some rows."""
    assert isinstance(run.model, Seq2Seq)
    attention_maps = []
    ignored_ids = (run.tokenizer.pad_id, run.tokenizer.eos_id, IGNORE_INDEX)
    sides = zip(batch.source[:MAX_MAPS].tolist(), batch.labels[:MAX_MAPS].tolist(), strict=True)
    for row in sides:
        source, target = (
            [token for token in side if token not in ignored_ids][:MAX_MAP_TOKENS] for side in row
        )
        maps = pair_maps(run.model, run.tokenizer, source, target, decode_readable(run.tokenizer, source))
        if "cross" in maps and maps["cross"].weights.isfinite().all():
            attention_maps.append(maps["cross"])
    return attention_maps


@take_samples.register
def replaced_samples(task: ReplacedTokenDetectionTask, run: Run) -> Samples:
    """The tokens that the encoder flags as replaced, in the first validation rows."""
    tokens, flagged, replaced = task.detect_first_rows(run.model)
    is_token = tokens >= 0
    groups = group_by_name(
        "replaced" if is_replaced else "the text's own" for is_replaced in replaced[is_token].tolist()
    )
    is_correct = (100 * (flagged == replaced))[is_token].tolist()
    shown = slice(SHOWN_ROWS), slice(SHOWN_ROW_TOKENS)
    marked = (
        [_join_tokens(run, row[mask]) for row, mask in zip(tokens[shown], masks[shown], strict=True)]
        for masks in (flagged, replaced)
    )
    return Samples(
        description="Validation texts in which the generator has replaced tokens, and the tokens that "
        "the encoder detects.",
        columns=("Text with replaced tokens", "Found", "Replaced"),
        examples=make_examples(decode_rows(run.tokenizer, tokens[shown]), *marked),
        breakdowns=[break_down("Accuracy (%)", "class", groups, group_mean(is_correct))],
        attention=_collect_beginnings(run, tokens),
    )


def _join_tokens(run: Run, ids: Tensor) -> str:
    return ", ".join(spell_token(run.tokenizer, i).strip() for i in ids.tolist() if i >= 0)


def _break_down_accuracy(run: Run, predicted_ids: list[int], label_ids: list[int]) -> list[Breakdown]:
    """Accuracy of the most likely token, by length and by kind of the label token."""
    accuracy = group_mean([100 * (a == b) for a, b in zip(predicted_ids, label_ids, strict=True)])
    lengths = [len(spell_token(run.tokenizer, token).strip()) for token in label_ids]
    kinds = group_by_name(token_kinds(run.tokenizer, label_ids))
    return [
        break_down("Accuracy (%)", "length of the token in characters", group_by_length(lengths), accuracy),
        break_down("Accuracy (%)", "kind of token", kinds, accuracy),
    ]
