"""The ONNX graphs of a model: modules that take and return only tensors, under the usual ONNX names.

Positions are computed from masks: a token's is the number of tokens before it, that of padding is -1. Shapes
as in ``nn/kv.py``; P is the number of tokens of previous steps, 0 at the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyhead.models import (
    CausalLM,
    Classifier,
    MaskedLM,
    Model,
    ReplacedTokenDetector,
    SentenceEncoder,
    Seq2Seq,
    TokenClassifier,
)
from polyhead.nn.kv import KV, WeightsHook, visible

KVPair = tuple[Tensor, Tensor]
"""Keys (B, K, P, D) and values (B, K, P, Dv) of the P tokens so far."""


class PastKeyValues:
    """The part of ``Cache`` that a decoding step uses. After it, the step's tokens are appended to the
    previous ones.

    ``slots`` (1|B, P + T) are the positions of all tokens, including those of the step, -1 for padding;
    ``pos`` (1|B, T) are those of the step's queries.
    """

    def __init__(self, pairs: Sequence[KVPair], slots: Tensor, pos: Tensor) -> None:
        slot_pos = slots[:, None]
        mask = visible(pos, slot_pos, causal=True)
        self.layers = [PastLayer(k, v, slot_pos, mask) for k, v in pairs]

    @property
    def pairs(self) -> list[KVPair]:
        """Return the keys and values of each layer."""
        return [(layer.k, layer.v) for layer in self.layers]


class PastLayer:
    """Keys and values of one layer."""

    weights_hook: WeightsHook | None = None

    def __init__(self, k: Tensor, v: Tensor, pos: Tensor, mask: Tensor) -> None:
        self.k, self.v, self.pos, self.mask = k, v, pos, mask

    def update(self, kv: KV) -> KV:
        """(B, K, T, D) in, (B, K, P + T, D) out."""
        self.k, self.v = torch.cat([self.k, kv.k], 2), torch.cat([self.v, kv.v], 2)
        return KV(self.k, self.v, self.pos, mask=self.mask)


BATCH = "batch_size"
TOKENS = "sequence_length"
SOURCE = "encoder_sequence_length"
PAST_TOKENS = "past_sequence_length"
ALL_TOKENS = f"{PAST_TOKENS} + {TOKENS}"
EncodingModel = Classifier | TokenClassifier | ReplacedTokenDetector | SentenceEncoder | MaskedLM


class ExampleSizes(NamedTuple):
    """Sizes of example inputs: batch, tokens of a step, of a source and of the previous steps."""

    rows: int
    tokens: int
    source: int
    past: int

    def clamp_to(self, length: int) -> ExampleSizes:
        """Return the sizes limited to a model's maximum length."""
        tokens, past = min(self.tokens, length), min(self.past, length - 1)
        return ExampleSizes(self.rows, tokens, min(self.source, length), min(past, length - tokens))


class GraphInput(NamedTuple):
    """An input of a graph: an example and its dynamic axes by number."""

    name: str
    example: Tensor
    axes: dict[int, str]


class Graph(NamedTuple):
    """A module with example inputs and the names of its outputs.

    The last inputs are alternating keys and values; ``kv_pairs`` has the number of pairs in each list that
    the module takes.
    """

    file: str
    module: nn.Module
    inputs: list[GraphInput]
    outputs: list[str]
    kv_pairs: tuple[int, ...] = ()

    def group_arguments(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """Group one value per input into the module's arguments."""
        num_single = len(leaves) - 2 * sum(self.kv_pairs)
        pair_leaves = iter(leaves[num_single:])
        return (
            *leaves[:num_single],
            *([(next(pair_leaves), next(pair_leaves)) for _ in range(n)] for n in self.kv_pairs),
        )


def build_graphs(model: Model, sizes: ExampleSizes) -> list[Graph]:
    """Return the graphs of a model, with random example inputs of these sizes."""
    if isinstance(model, Seq2Seq):
        return [_build_source_graph(model, sizes), _build_target_graph(model, sizes)]
    return [
        _build_language_graph(model, sizes)
        if isinstance(model, CausalLM)
        else _build_encoder_graph(model, sizes)
    ]


def positions_from_mask(mask: Tensor) -> Tensor:
    """Return the position of each token: (B, T) of 1 and 0 -> (B, T), -1 for padding."""
    return (mask.cumsum(1) - 1).masked_fill(mask == 0, -1)


class EncoderGraph(nn.Module):
    """Logits of a classifier or masked language model; vectors of an encoder, and its pooled vector if it has
    a pooler.
    """

    def __init__(self, model: EncodingModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """(B, T) each -> (B, L), (B, T, L), (B, T), (B, T, V), or (B, T, C) and (B, C)."""
        pos = positions_from_mask(attention_mask)
        out = self.model(input_ids, pos, token_type_ids).float()
        pooler = self.model.pooler if isinstance(self.model, SentenceEncoder) else None
        return (out,) if pooler is None else (out, pooler(out, pos))


class LanguageGraph(nn.Module):
    """A prefill or decoding step of a language model; keys and values are inputs and outputs."""

    def __init__(self, model: CausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past: list[KVPair]
    ) -> tuple[Tensor, list[KVPair]]:
        """(B, T), (B, P + T), (B, T) -> logits (B, T, V) of the next tokens, and all pairs extended by the
        step.
        """
        cache: Any = PastKeyValues(past, positions_from_mask(attention_mask), position_ids)
        logits = self.model.decode(input_ids, position_ids, cache)
        return logits.float(), cache.pairs


class SourceGraph(nn.Module):
    """The encoder of an encoder-decoder, with the cross-attention keys and values of its decoder."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, list[KVPair]]:
        """(B, S) each -> (B, S, C), and a pair for each layer of the decoder."""
        pos = positions_from_mask(attention_mask)
        x = self.model.encode_source(input_ids, pos)
        memory: list[Any] = [layer.project_kv(x, pos) for layer in self.model.decoder.blocks]
        return x, [(kv.k, kv.v) for kv in memory]


class TargetGraph(nn.Module):
    """A prefill or decoding step of an encoder-decoder's decoder; all rows have the same length."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, encoder_attention_mask: Tensor, past: list[KVPair], memory: list[KVPair]
    ) -> tuple[Tensor, list[KVPair]]:
        """(B, T), (B, S) -> logits (B, T, V) of the next tokens, and all pairs of ``past`` extended by the
        step.
        """
        past_len = past[0][0].size(2)
        slots = torch.arange(past_len + input_ids.size(1), device=input_ids.device)[None]
        pos = slots[:, past_len:]
        source = positions_from_mask(encoder_attention_mask)[:, None]
        mask = (source >= 0)[:, :, None]
        cache: Any = PastKeyValues(past, slots, pos)
        encoder_kv = [KV(k, v, source, mask=mask) for k, v in memory]
        logits = self.model.decode(input_ids, pos, cache, encoder_kv)
        return logits.float(), cache.pairs


def _build_encoder_graph(model: EncodingModel, sizes: ExampleSizes) -> Graph:
    has_pooler = isinstance(model, SentenceEncoder) and model.pooler is not None
    vector_names = ["last_hidden_state", *(["pooler_output"] if has_pooler else [])]
    axes = {0: BATCH, 1: TOKENS}
    inputs = [
        GraphInput("input_ids", _random_tokens(model, sizes.rows, sizes.tokens), axes),
        GraphInput("attention_mask", _example_mask(sizes.rows, sizes.tokens), axes),
    ]
    if model.config.n_segments:
        inputs += [
            GraphInput(
                "token_type_ids",
                _random_tokens(model, sizes.rows, sizes.tokens) % model.config.n_segments,
                axes,
            )
        ]
    return Graph(
        "model",
        EncoderGraph(model),
        inputs,
        vector_names if isinstance(model, SentenceEncoder) else ["logits"],
    )


def _build_language_graph(model: CausalLM, sizes: ExampleSizes) -> Graph:
    n, mask = model.config.n_layers, _example_mask(sizes.rows, sizes.past + sizes.tokens)
    inputs = [
        GraphInput("input_ids", _random_tokens(model, sizes.rows, sizes.tokens), {0: BATCH, 1: TOKENS}),
        GraphInput("attention_mask", mask, {0: BATCH, 1: ALL_TOKENS}),
        GraphInput("position_ids", positions_from_mask(mask)[:, sizes.past :], {0: BATCH, 1: TOKENS}),
        *_kv_inputs(model, n, "past_key_values.{}", (sizes.rows, sizes.past), PAST_TOKENS),
    ]
    return Graph("model", LanguageGraph(model), inputs, ["logits", *_kv_names("present.{}", n)], (n,))


def _build_source_graph(model: Seq2Seq, sizes: ExampleSizes) -> Graph:
    axes = {0: BATCH, 1: SOURCE}
    tokens = _random_tokens(model, sizes.rows, sizes.source) % model.config.encoder_spec.vocab_size
    inputs = [
        GraphInput("input_ids", tokens, axes),
        GraphInput("attention_mask", _example_mask(sizes.rows, sizes.source), axes),
    ]
    outputs = ["last_hidden_state", *_kv_names("present.{}.encoder", model.config.decoder_layers)]
    return Graph("encoder_model", SourceGraph(model), inputs, outputs)


def _build_target_graph(model: Seq2Seq, sizes: ExampleSizes) -> Graph:
    n = model.config.decoder_layers
    inputs = [
        GraphInput("input_ids", _random_tokens(model, sizes.rows, sizes.tokens), {0: BATCH, 1: TOKENS}),
        GraphInput("encoder_attention_mask", _example_mask(sizes.rows, sizes.source), {0: BATCH, 1: SOURCE}),
        *_kv_inputs(model, n, "past_key_values.{}.decoder", (sizes.rows, sizes.past), PAST_TOKENS),
        *_kv_inputs(model, n, "past_key_values.{}.encoder", (sizes.rows, sizes.source), SOURCE),
    ]
    outputs = ["logits", *_kv_names("present.{}.decoder", n)]
    return Graph("decoder_model", TargetGraph(model), inputs, outputs, (n, n))


def _random_tokens(model: Model, rows: int, length: int) -> Tensor:
    return torch.randint(model.config.vocab_size, (rows, length))


def _example_mask(rows: int, length: int) -> Tensor:
    """Return a mask with left padding in the second row and right padding in the third, if there are such
    rows.
    """
    mask = torch.ones(rows, length, dtype=torch.int64)
    mask[1:2, : length // 3] = 0
    mask[2:3, length - length // 3 :] = 0
    return mask


def _kv_names(pattern: str, n: int) -> list[str]:
    return [f"{pattern.format(i)}.{part}" for i in range(n) for part in ("key", "value")]


def _kv_inputs(model: Model, n: int, pattern: str, size: tuple[int, int], axis: str) -> list[GraphInput]:
    """Return keys and values of n layers for (rows, length): (B, K, length, D) and (B, K, length, Dv)."""
    shape, (rows, length) = model.config.attention_shape(causal=True), size
    dtype = next(model.parameters()).dtype
    return [
        GraphInput(name, torch.randn(rows, shape.n_kv_heads, length, width).to(dtype), {0: BATCH, 2: axis})
        for name, width in zip(_kv_names(pattern, n), (shape.head_dim, shape.v_head_dim) * n, strict=True)
    ]
