"""Compute the attention maps of a text: recorded weights of a forward pass, with
readable tokens as labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyhead.core.blank_text import clear_blank
from polyhead.core.errors import MAX_INT, UserError
from polyhead.data.batching.encoder_inputs import build_encoder_input, collate_encoder_inputs
from polyhead.generation.engine.request import Hypothesis
from polyhead.generation.prompt_template import PromptTemplate
from polyhead.introspect.attention_map import AttentionMap, label_rows
from polyhead.models import CausalLM, Classifier, MaskedLM, Model, Seq2Seq
from polyhead.nn.block.base import ShowsWeights
from polyhead.nn.device import to_model_device
from polyhead.nn.kv import WeightsHook
from polyhead.tokenizers.display import BEGIN_MARK, END_MARK, name_token
from polyhead.tokenizers.languages import with_languages
from polyhead.tokenizers.mask_tokens import count_masks, encode_masked
from polyhead.tokenizers.special_tokens import Seq2SeqTemplate
from polyhead.tokenizers.tokenizer import Tokenizer

ATTENTION_KINDS = {
    "cross": "cross-attention",
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "self": "self-attention",
}

_LAYER = re.compile(r"\blayers\.(\d+)\.")

AttentionWeights = dict[str, list[Tensor]]
"""Name of an attention, such as ``decoder.layers.0.cross`` -> its weights (B, H, T, S), one entry per pass.

Where layers share their weights, the first has the entries of all, one after the other.
"""


class BeamAttention(NamedTuple):
    """One hypothesis of beam search and its attention maps, kind (see ``ATTENTION_KINDS``) -> map."""

    hypothesis: Hypothesis
    maps: dict[str, AttentionMap]


class LayerAttention(NamedTuple):
    """The attention weights of the layers that have attention, and their numbers in the model."""

    layer_numbers: list[int]  # from 1
    weights: Tensor  # (layers, heads, queries, keys)

    @classmethod
    def from_pass(cls, weights_by_name: AttentionWeights) -> LayerAttention | None:
        """From one pass of one row; None if there is no attention."""
        entries = [
            (int(_LAYER.findall(name)[-1]) + i, weights[0])
            for name, passes in weights_by_name.items()
            for i, weights in enumerate(passes, 1)
        ]
        return (
            cls([number for number, _ in entries], torch.stack([w for _, w in entries])) if entries else None
        )


@contextmanager
def record_attention(model: nn.Module, suffix: str = "", detach: bool = True) -> Iterator[AttentionWeights]:
    """Record the weights of every attention of the model, in training, stepwise decoding and search alike.

    Only of those whose names end with ``suffix``, such as ".cross", without their graph if ``detach``. Passes
    of other threads are not recorded.
    """
    weights_by_name: AttentionWeights = {}
    hooks: list[tuple[Any, WeightsHook]] = []
    thread_id = get_ident()
    for name, module in model.named_modules():
        if isinstance(module, ShowsWeights) and name.endswith(suffix):

            def record(weights: Tensor, passes: list[Tensor] = weights_by_name.setdefault(name, [])) -> None:
                if get_ident() == thread_id:
                    passes.append(weights.detach() if detach else weights)

            hooks.append((module, record))
    for module, hook in hooks:
        module.weights_hooks.append(hook)
    try:
        yield weights_by_name
    finally:
        for module, hook in hooks:
            module.weights_hooks.remove(hook)


def has_cross_attention(model: nn.Module) -> bool:
    """Whether a decoder layer has cross-attention weights to show."""
    return any(
        name.endswith(".cross") and isinstance(part, ShowsWeights) for name, part in model.named_modules()
    )


def compute_pair_attention(model: Seq2Seq, source: Tensor, target: Tensor) -> dict[str, LayerAttention]:
    """One pair, (1, S) and the decoder's input (1, T), -> kind (see ``ATTENTION_KINDS``) -> its layers.

    A kind without weights to show, such as that of layers without attention, is left out.
    """
    with torch.inference_mode(), record_attention(model) as weights_by_name:
        model.features(source, target)
    groups: dict[str, AttentionWeights] = {"cross": {}, "encoder": {}, "decoder": {}}
    for name, passes in weights_by_name.items():
        groups["cross" if name.endswith(".cross") else name.split(".")[0]][name] = passes
    return {kind: layers for kind, group in groups.items() if (layers := LayerAttention.from_pass(group))}


def compute_self_attention(model: nn.Module, *inputs: Tensor | None) -> LayerAttention | None:
    """Attention of an encoder or a decoder alone, tokens (1, T) -> its layers, None without attention.

    Positions and segments may follow the tokens.
    """
    with torch.inference_mode(), record_attention(model) as weights_by_name:
        model(*inputs)
    return LayerAttention.from_pass(weights_by_name)


def build_attention_maps(
    model: Model,
    tokenizer: Tokenizer,
    template: PromptTemplate,
    text: str,
    target: str | None,
    generate_target: Callable[[], list[int]],
) -> dict[str, AttentionMap]:
    """All attention maps of a text, and of its target in an encoder-decoder.

    Other models read the text as in inference: with the ``template`` of a language model, or between the
    special tokens of an encoder, with masks; a classifier reads the two texts of a pair. ``generate_target``
    returns the model's own output, used without a ``target``. A text that is too long for the model is a
    UserError.
    """
    max_len = model.config.max_len
    if not isinstance(model, Seq2Seq):
        ids, second_start = encode_input(model, tokenizer, template, text, target)
        return self_maps(
            model, tokenizer, ids, text if target is None else f"{text} | {target}", second_start
        )
    (ids,) = tokenizer.encode([text])
    check_length("text", ids, max_len - tokenizer.seq2seq_template.max_special)
    target_ids = generate_target() if target is None else tokenizer.target_tokenizer.encode([target])[0]
    check_length("target", target_ids, max_len - tokenizer.seq2seq_template.max_special)
    return pair_maps(model, tokenizer, ids, target_ids, text)


def build_beam_attention(
    model: Model,
    tokenizer: Tokenizer,
    template: PromptTemplate,
    text: str,
    hypotheses: Sequence[Hypothesis],
    languages: Seq2SeqTemplate | None = None,
) -> list[BeamAttention]:
    """The attention maps of every hypothesis of a text, on its own tokens, as the search computed them.

    They are computed in one pass per hypothesis, which gives the weights of the search up to rounding, unless
    its cache is lossy. ``languages`` is the template of a multilingual model.
    """
    (ids,) = tokenizer.encode([clear_blank(text)])
    if isinstance(model, Seq2Seq):
        return [
            BeamAttention(one, pair_maps(model, tokenizer, ids, one.tokens, text, languages))
            for one in hypotheses
        ]
    rows = [[*template.build_prompt(ids), *one.tokens] for one in hypotheses]
    return [
        BeamAttention(one, self_maps(model, tokenizer, row, text, len(row)))
        for one, row in zip(hypotheses, rows, strict=True)
    ]


def encode_text(model: Model, tokenizer: Tokenizer, template: PromptTemplate, text: str) -> list[int]:
    """The tokens of a text with special tokens, for an encoder or a decoder alone."""
    if isinstance(model, CausalLM):
        return template.build_prompt(tokenizer.encode([text])[0])
    masked = isinstance(model, MaskedLM) and count_masks(tokenizer, [text])[0]
    (ids,) = encode_masked(tokenizer, [text]) if masked else tokenizer.encode([text])
    if model.config.causal:
        return [*tokenizer.prefix_ids, *ids, *tokenizer.suffix_ids] or template.prefix_ids
    special_tokens = tokenizer.template(1)
    return [*special_tokens.prefix_ids, *ids, *special_tokens.suffix_ids]


def encode_input(
    model: Model, tokenizer: Tokenizer, template: PromptTemplate, text: str, target: str | None
) -> tuple[list[int], int]:
    """The tokens of a text, or of a pair for a classifier, and where the second text begins."""
    if target is None:
        ids = encode_text(model, tokenizer, template, text)
        check_length("text, including special tokens,", ids, model.config.max_len)
        return ids, len(ids)
    if not isinstance(model, Classifier):
        raise UserError("this model takes one text")
    pair = build_encoder_input(tokenizer.encode([text, target]), tokenizer, MAX_INT)
    check_length("pair, including special tokens,", pair.ids, model.config.max_len)
    return pair.ids, pair.second_start


def check_length(name: str, tokens: list[int], max_len: int) -> None:
    """Raise a UserError if a text has more tokens than the model can read."""
    if len(tokens) > max_len:
        raise UserError(f"the {name} has {len(tokens)} tokens; the model's maximum is {max_len}")


def cross_attention_weights(maps_by_kind: dict[str, AttentionMap]) -> tuple[list[str], list[str], Tensor]:
    """The cross-attention map alone: source tokens, target tokens, weights (layers, heads, T, S)."""
    columns, rows, weights, *_ = cross_map(maps_by_kind)
    return list(columns), list(rows), weights


def cross_map(maps_by_kind: dict[str, AttentionMap]) -> AttentionMap:
    """The cross-attention map alone, with visible spaces in its tokens."""
    if "cross" not in maps_by_kind:
        raise UserError(
            "this model has no cross-attention weights to show; available: "
            f"{', '.join(maps_by_kind) or 'none'}"
        )
    of_cross = maps_by_kind["cross"]
    columns, rows = (
        [token.replace(" ", "␣") for token in side]
        for side in (of_cross.source_tokens, of_cross.target_tokens)
    )
    return of_cross._replace(source_tokens=columns, target_tokens=rows)


def pair_maps(
    model: Seq2Seq,
    tokenizer: Tokenizer,
    source: list[int],
    target: list[int],
    title: str,
    languages: Seq2SeqTemplate | None = None,
) -> dict[str, AttentionMap]:
    """All attention maps of a pair: "cross", "encoder", "decoder". Rows are queries, columns are keys.

    A row of the decoder is the token predicted there, its label has the token that goes in before it; its
    columns are the tokens read so far, the start token first.
    """
    template = languages or with_languages(tokenizer)
    encoder_labels = axis_labels(tokenizer, [*template.source_prefix, *source])
    encoder_labels += [
        name_token(tokenizer, i, END_MARK if i == template.eos_id else "") for i in template.source_suffix
    ]
    of_target = tokenizer.target_tokenizer
    target_labels = axis_labels(of_target, [*template.opening_ids, *target])
    inputs = [name_token(of_target, template.decoder_start_id, BEGIN_MARK), *target_labels]
    columns = {"cross": encoder_labels, "encoder": encoder_labels, "decoder": inputs}
    predicted = [*target_labels, name_token(of_target, template.eos_id, END_MARK)]
    rows = {"cross": predicted, "encoder": encoder_labels, "decoder": predicted}
    row_labels = label_rows(inputs, predicted)
    device = next(model.parameters()).device
    pair = ([template.encoder_input(source)], [template.decoder_input(target)])
    attention_by_kind = compute_pair_attention(model, *(torch.tensor(ids, device=device) for ids in pair))
    return {
        kind: AttentionMap(
            columns[kind],
            rows[kind],
            layers.weights,
            ATTENTION_KINDS[kind],
            title,
            layers.layer_numbers,
            () if kind == "encoder" else row_labels,
        )
        for kind, layers in attention_by_kind.items()
    }


def self_maps(
    model: Model, tokenizer: Tokenizer, ids: list[int], title: str, second_start: int
) -> dict[str, AttentionMap]:
    """The "self" map of an encoder or a decoder alone: each token attends to the tokens visible to it.

    ``second_start`` is the start of the second segment, for a model with segments.
    """
    input_ids, _, segments = collate_encoder_inputs([ids], [second_start], tokenizer.pad_id).model_args(
        model.config.n_segments
    )
    layers = compute_self_attention(
        model, *to_model_device(model, (input_ids,) if segments is None else (input_ids, None, segments))
    )
    tokens = axis_labels(tokenizer, ids)
    if layers is None:
        return {}
    row_labels = label_rows(tokens, tokens[1:]) if isinstance(model, CausalLM) else ()
    kind, numbers = ATTENTION_KINDS["self"], layers.layer_numbers
    return {"self": AttentionMap(tokens, tokens, layers.weights, kind, title, numbers, row_labels)}


def axis_labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Tokens as axis labels; spaces stay spaces, because the page draws them in its own way."""
    return [name_token(tokenizer, i) for i in ids]
