"""List the parts of a model that ONNX graphs cannot express. Does not import onnx."""

from __future__ import annotations

from collections.abc import Iterator

from polyhead.config.model import ModelConfig
from polyhead.cost.parameter_count import meta_model
from polyhead.models import CausalLM, Seq2Seq

_SEQUENTIAL = "it processes tokens sequentially"
_UNSUPPORTED = {
    "rnn": _SEQUENTIAL,
    "lstm": _SEQUENTIAL,
    "gru": _SEQUENTIAL,
    "moe": "it routes tokens depending on their values, which a static graph cannot",
}


def onnx_unsupported(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield each part that a graph cannot express, with the reason."""
    layers = max(config.n_layers, config.decoder_layers)
    for layer in map(config.layer_config, range(min(layers, len(config.layer_pattern) or 1))):
        for field in ("block", "decoder_block", "feed_forward"):
            choice = getattr(layer, field)
            if choice is not None and choice.name in _UNSUPPORTED:
                yield f"{field} {choice.name!r}", _UNSUPPORTED[choice.name]
    if config.dense:
        yield "dense", "graphs output token embeddings, but its linear maps apply to a text embedding"
    if config.kind != "encoder":
        yield from _stateful_parts(config)


def _stateful_parts(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield the parts of a decoder that have a state other than keys and values."""
    n_layers = min(config.decoder_layers, len(config.layer_pattern) or 1)
    model = meta_model(config.model_copy(update={"n_layers": n_layers, "n_decoder_layers": None}))
    assert isinstance(model, CausalLM | Seq2Seq)
    layers = [config.layer_config(i) for i in range(n_layers)]
    for layer, state in zip(layers, model.cache_shape.states, strict=True):
        if state:
            yield (
                _stateful_part(layer),
                "it has a recurrent state, but the ONNX decoder inputs are keys and values",
            )
    if isinstance(model, Seq2Seq) and any(
        (layer.cross_attention or layer.attention).name == "linear" for layer in layers
    ):
        yield (
            "cross_attention 'linear'",
            "it has sums as state, but the ONNX decoder inputs are keys and values",
        )


def _stateful_part(layer: ModelConfig) -> str:
    """Return the part of a decoder layer that has a state."""
    is_seq2seq = layer.kind == "encoder-decoder"
    block = layer.block_choice(is_seq2seq)
    if block.name not in ("transformer", "parallel"):
        return f"{'decoder_block' if is_seq2seq and layer.decoder_block else 'block'} {block.name!r}"
    attention = (layer.decoder_attention if is_seq2seq else None) or layer.attention
    return f"attention {attention.name!r}"
