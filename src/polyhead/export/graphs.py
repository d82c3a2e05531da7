"""The graphs of a model, as modules that take and give tensors alone, under the names that users of ONNX know.

Positions are made here of masks: a token's is the number of tokens before it, padding's is -1, wherever it stands.
Shapes as in ``nn/kv.py``, and P the tokens that are remembered from the steps before, 0 at the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyhead.export.past import Pair, Past
from polyhead.models import CausalLM, Classifier, Detector, Embedder, MaskedLM, Model, Seq2Seq
from polyhead.nn.kv import KV

BATCH, TOKENS, SOURCE, REMEMBERED = (
    "batch_size",
    "sequence_length",
    "encoder_sequence_length",
    "past_sequence_length",
)
ALL = f"{REMEMBERED} + {TOKENS}"
Encoding = Classifier | Detector | Embedder | MaskedLM


class Sizes(NamedTuple):
    """Those of examples: rows, tokens of a step, of a source and of the steps before."""

    rows: int
    tokens: int
    source: int
    past: int

    def within(self, length: int) -> Sizes:
        """The same, but of no more tokens than a model knows positions."""
        tokens, past = min(self.tokens, length), min(self.past, length - 1)
        return Sizes(self.rows, tokens, min(self.source, length), min(past, length - tokens))


class Input(NamedTuple):
    """One input of a graph: an example and, by number, the names of the axes that vary."""

    name: str
    example: Tensor
    axes: dict[int, str]


class Graph(NamedTuple):
    """A module with examples of its inputs, and the names of its outputs.

    The last inputs are keys and values by turns; ``pairs`` says how many pairs make a list that the module takes as one.
    """

    file: str
    module: nn.Module
    inputs: list[Input]
    outputs: list[str]
    pairs: tuple[int, ...] = ()

    def arguments(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """One thing for each input, as the module takes them."""
        single = len(leaves) - 2 * sum(self.pairs)
        rest = iter(leaves[single:])
        return (*leaves[:single], *([(next(rest), next(rest)) for _ in range(n)] for n in self.pairs))


def graphs(model: Model, sizes: Sizes) -> list[Graph]:
    """What is written of a model, with random examples of these sizes."""
    if isinstance(model, Seq2Seq):
        return [_source(model, sizes), _target(model, sizes)]
    return [_language(model, sizes) if isinstance(model, CausalLM) else _encoder(model, sizes)]


def positions(mask: Tensor) -> Tensor:
    """The position of each token: (B, T) of 1 and 0 -> (B, T), -1 where there is none."""
    return (mask.cumsum(1) - 1).masked_fill(mask == 0, -1)


class EncoderGraph(nn.Module):
    """Logits of a classifier or of masked tokens; of an encoder alone its vectors, and the pooled one if it has one."""

    def __init__(self, model: Encoding) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """(B, T) each -> (B, L), (B, T), (B, T, V), or (B, T, C) and (B, C)."""
        pos = positions(attention_mask)
        out = self.model(input_ids, pos, token_type_ids).float()
        pooler = getattr(self.model, "pooler", None) if isinstance(self.model, Embedder) else None
        return (out,) if pooler is None else (out, pooler(out, pos))


class LanguageGraph(nn.Module):
    """A prompt or a step of a language model: what is remembered comes in and goes out."""

    def __init__(self, model: CausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past: list[Pair]
    ) -> tuple[Tensor, list[Pair]]:
        """(B, T), (B, P + T), (B, T) -> logits (B, T, V) of the next tokens, and all pairs one step longer."""
        cache = Past(past, positions(attention_mask), position_ids)
        logits = self.model.decode(input_ids, position_ids, cache)  # type: ignore[arg-type]
        return logits.float(), cache.pairs


class SourceGraph(nn.Module):
    """The encoder of an encoder-decoder, with the keys and values that its decoder reads at every step."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, list[Pair]]:
        """(B, S) each -> (B, S, C), and a pair for each layer of the decoder."""
        pos = positions(attention_mask)
        x = self.model.encoder(self.model.encoder_embedding(input_ids, pos), pos)
        read = [layer.remember(x, pos) for layer in self.model.decoder.layers]  # type: ignore[operator]
        return x, [(kv.k, kv.v) for kv in read]


class TargetGraph(nn.Module):
    """A beginning or a step of the decoder of an encoder-decoder, all rows equally long."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, encoder_attention_mask: Tensor, past: list[Pair], memory: list[Pair]
    ) -> tuple[Tensor, list[Pair]]:
        """(B, T), (B, S) -> logits (B, T, V) of the next tokens, and all pairs of ``past`` one step longer."""
        before = past[0][0].size(2)
        slots = torch.arange(before + input_ids.size(1), device=input_ids.device)[None]
        pos = slots[:, before:]
        source = positions(encoder_attention_mask)[:, None]
        seen = (source >= 0)[:, :, None]
        cache = Past(past, slots, pos)
        read = [KV(k, v, source, seen=seen) for k, v in memory]
        logits = self.model.decode(input_ids, pos, cache, read)  # type: ignore[arg-type]
        return logits.float(), cache.pairs


def _encoder(model: Encoding, sizes: Sizes) -> Graph:
    pooled = isinstance(model, Embedder) and model.pooler is not None
    vectors = ["last_hidden_state", *(["pooler_output"] if pooled else [])]
    axes = {0: BATCH, 1: TOKENS}
    inputs = [
        Input("input_ids", _tokens(model, sizes.rows, sizes.tokens), axes),
        Input("attention_mask", _mask(sizes.rows, sizes.tokens), axes),
    ]
    if model.config.segments:
        inputs += [
            Input("token_type_ids", _tokens(model, sizes.rows, sizes.tokens) % model.config.segments, axes)
        ]
    return Graph("model", EncoderGraph(model), inputs, vectors if isinstance(model, Embedder) else ["logits"])


def _language(model: CausalLM, sizes: Sizes) -> Graph:
    n, mask = model.config.n_layers, _mask(sizes.rows, sizes.past + sizes.tokens)
    inputs = [
        Input("input_ids", _tokens(model, sizes.rows, sizes.tokens), {0: BATCH, 1: TOKENS}),
        Input("attention_mask", mask, {0: BATCH, 1: ALL}),
        Input("position_ids", positions(mask)[:, sizes.past :], {0: BATCH, 1: TOKENS}),
        *_pairs(model, n, "past_key_values.{}", (sizes.rows, sizes.past), REMEMBERED),
    ]
    return Graph("model", LanguageGraph(model), inputs, ["logits", *_named("present.{}", n)], (n,))


def _source(model: Seq2Seq, sizes: Sizes) -> Graph:
    axes = {0: BATCH, 1: SOURCE}
    inputs = [
        Input("input_ids", _tokens(model, sizes.rows, sizes.source), axes),
        Input("attention_mask", _mask(sizes.rows, sizes.source), axes),
    ]
    outputs = ["last_hidden_state", *_named("present.{}.encoder", model.config.decoder_layers)]
    return Graph("encoder_model", SourceGraph(model), inputs, outputs)


def _target(model: Seq2Seq, sizes: Sizes) -> Graph:
    n = model.config.decoder_layers
    inputs = [
        Input("input_ids", _tokens(model, sizes.rows, sizes.tokens), {0: BATCH, 1: TOKENS}),
        Input("encoder_attention_mask", _mask(sizes.rows, sizes.source), {0: BATCH, 1: SOURCE}),
        *_pairs(model, n, "past_key_values.{}.decoder", (sizes.rows, sizes.past), REMEMBERED),
        *_pairs(model, n, "past_key_values.{}.encoder", (sizes.rows, sizes.source), SOURCE),
    ]
    outputs = ["logits", *_named("present.{}.decoder", n)]
    return Graph("decoder_model", TargetGraph(model), inputs, outputs, (n, n))


def _tokens(model: Model, rows: int, length: int) -> Tensor:
    return torch.randint(model.config.vocab_size, (rows, length))


def _mask(rows: int, length: int) -> Tensor:
    """Padding on the left of the second row and on the right of the third, if there are such rows."""
    mask = torch.ones(rows, length, dtype=torch.int64)
    mask[1:2, : length // 3] = 0
    mask[2:3, length - length // 3 :] = 0
    return mask


def _named(pattern: str, n: int) -> list[str]:
    return [f"{pattern.format(i)}.{part}" for i in range(n) for part in ("key", "value")]


def _pairs(model: Model, n: int, pattern: str, size: tuple[int, int], axis: str) -> list[Input]:
    """Keys and values of n layers for (rows, length): (B, K, length, D) and (B, K, length, Dv)."""
    shape, (rows, length) = model.config.shape(causal=True), size
    dtype = next(model.parameters()).dtype
    return [
        Input(name, torch.randn(rows, shape.n_kv_heads, length, width).to(dtype), {0: BATCH, 2: axis})
        for name, width in zip(_named(pattern, n), (shape.head_dim, shape.v_head_dim) * n, strict=True)
    ]
