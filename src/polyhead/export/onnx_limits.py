"""What cannot be written as ONNX graphs: the parts of a model that stand in the way. No onnx here."""

from __future__ import annotations

from collections.abc import Iterator

from polyhead.analysis.sizes import hollow
from polyhead.config import ModelConfig
from polyhead.models import CausalLM, Seq2Seq

STEPWISE = "it reads one token after the other"
UNWRITTEN = {
    "lstm": STEPWISE,
    "gru": STEPWISE,
    "experts": "it deals out tokens by what its router says, and a graph is the same for all",
}


def in_the_way(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """The parts that are no graph of tensors, each with the reason."""
    layers = max(config.n_layers, config.decoder_layers)
    for layer in map(config.at, range(min(layers, len(config.pattern) or 1))):
        for field in ("block", "decoder_block", "feed_forward"):
            choice = getattr(layer, field)
            if choice is not None and choice.name in UNWRITTEN:
                yield f"{field} {choice.name!r}", UNWRITTEN[choice.name]
    if config.dense:
        yield "dense", "graphs give the vectors of tokens, and its maps are of a text's"
    if config.kind != "encoder":
        yield from _keeping_states(config)


def _keeping_states(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """The parts of a decoder that keep something else than keys and values."""
    turns = min(config.decoder_layers, len(config.pattern) or 1)
    model = hollow(config.model_copy(update={"n_layers": turns, "n_decoder_layers": None}))
    assert isinstance(model, CausalLM | Seq2Seq)
    layers = [config.at(i) for i in range(turns)]
    for layer, state in zip(layers, model.cache_shape.states, strict=True):
        if state:
            yield _keeping(layer), "it keeps a state, and a decoder is given keys and values there"
    if isinstance(model, Seq2Seq) and any(
        (layer.cross_attention or layer.attention).name == "linear" for layer in layers
    ):
        yield "cross_attention 'linear'", "it reads sums, and a decoder is given keys and values there"


def _keeping(layer: ModelConfig) -> str:
    """The part of a decoder's layer that keeps a state."""
    crossing = layer.kind == "encoder-decoder"
    block = layer.block_of(crossing)
    if block.name not in ("transformer", "parallel"):
        return f"{'decoder_block' if crossing and layer.decoder_block else 'block'} {block.name!r}"
    own = (layer.decoder_attention if crossing else None) or layer.attention
    return f"attention {own.name!r}"
