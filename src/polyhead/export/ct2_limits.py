"""What CTranslate2 has no words for: the parts and options of a model that stand in the way, by name. No torch here."""

from __future__ import annotations

from collections.abc import Iterator

from polyhead.config import LayerParts, ModelConfig
from polyhead.errors import show
from polyhead.registry import Choice

BLOCKS = {
    "encoder-decoder": ("transformer",),
    "encoder": ("transformer",),
    "decoder": ("transformer", "parallel"),
}
POSITIONS = {
    "encoder-decoder": ("sinusoidal", "learned", "none", "t5", "shaw", "rope"),
    "encoder": ("sinusoidal", "learned", "none", "t5", "shaw", "rope"),
    "decoder": ("sinusoidal", "learned", "none", "rope", "alibi", "shaw", "t5"),
}
FEED_FORWARDS = ("relu", "gelu", "silu", "tanh", "glu", "reglu", "geglu", "swiglu", "conv1x1")
INNER = ("relu", "gelu", "gelu_tanh", "silu", "tanh")  # of conv1x1
SCALINGS = ("none", "linear", "ntk")
NORMS = ("layernorm", "rmsnorm")


def in_the_way(config: ModelConfig) -> list[str]:
    """One line for each part or option that is not there."""
    return [*_blocks(config), *_attention(config), *_positions(config), *_rest(config)]


def _blocks(config: ModelConfig) -> Iterator[str]:
    allowed = BLOCKS[config.kind]
    for field in ("block", "decoder_block"):
        choice = getattr(config, field)
        if choice is not None and choice.name not in allowed:
            yield _among(field, choice.name, allowed)
    if any(parts != LayerParts() for parts in config.pattern):
        yield "pattern: its layers are all alike"


def _attention(config: ModelConfig) -> Iterator[str]:
    fields = [
        "attention",
        *(["decoder_attention", "cross_attention"] if config.kind == "encoder-decoder" else []),
    ]
    normed = {}
    for field in fields:
        choice: Choice | None = getattr(config, field)
        if choice is None:
            continue
        if choice.name != "softmax":
            yield _among(field, choice.name, ("softmax",))
            continue
        for option in ("window", "softcap"):
            if choice.options[option] is not None:
                yield f"{option} of {field} is {show(choice.options[option])}, there null"
        normed[field] = choice.options["qk_norm"]
    if any(normed.values()) and config.kind == "encoder-decoder":
        yield f"qk_norm is {show(next(filter(None, normed.values())))}, there false in an encoder-decoder"
    elif "whole" in normed.values():
        yield "qk_norm is 'whole', there of each head"
    elif found := {"layer", "each"} & set(normed.values()):
        yield f"qk_norm is {show(*found)}, there an RMS norm that all heads share"
    eps, qk_eps = config.norm.options.get("eps"), config.attention.options.get("qk_eps")
    if any(normed.values()) and eps != qk_eps:
        yield f"eps of norm is {show(eps)}, there {show(qk_eps)}, as qk_eps"
    if config.v_head_dim != config.head_dim:
        yield f"v_head_dim is {config.v_head_dim}, there {config.head_dim}, as head_dim"


def _positions(config: ModelConfig) -> Iterator[str]:
    name, options, allowed = config.position.name, config.position.options, POSITIONS[config.kind]
    if name not in allowed:
        yield _among("position", name, allowed)
    if name == "rope" and options["scaling"] not in SCALINGS:
        yield _among("scaling of position 'rope'", options["scaling"], SCALINGS)
    if name == "shaw" and config.kv_heads != config.n_heads:
        yield f"n_kv_heads is {config.kv_heads}, there {config.n_heads} beside position 'shaw'"


def _rest(config: ModelConfig) -> Iterator[str]:
    if config.causal:
        yield "causal is true, there false in an encoder"
    if config.scale_residual != 1:
        yield f"scale_residual is {config.scale_residual}, there 1"
    if config.dense:
        yield f"dense is {len(config.dense)} maps of a text's vector, there none"
    if config.d_embedding is not None:
        yield f"d_embedding is {config.d_embedding}, there null"
    if config.norm.name not in NORMS:
        yield _among("norm", config.norm.name, NORMS)
    if config.block.name == "parallel" and config.norm.name == "rmsnorm":
        yield "norm is 'rmsnorm', there 'layernorm' beside block 'parallel'"
    if config.feed_forward.name not in FEED_FORWARDS:
        yield _among("feed_forward", config.feed_forward.name, FEED_FORWARDS)
    inner = config.feed_forward.options.get("activation", "relu")
    if config.feed_forward.name == "conv1x1" and inner not in INNER:
        yield _among("activation of feed_forward 'conv1x1'", inner, INNER)
    if config.embedding_norm == "first":
        yield "embedding_norm is 'first', there true or false"
    if config.sandwich_norm and config.kind == "encoder-decoder":
        yield f"sandwich_norm is {show(config.sandwich_norm)}, there false in an encoder-decoder"
    elif config.sandwich_norm == "after":
        yield "sandwich_norm is 'after', there true or false"


def _among(field: str, name: str, allowed: tuple[str, ...]) -> str:
    return f"{field} is {name!r}, there {' or '.join(map(repr, allowed))}"
