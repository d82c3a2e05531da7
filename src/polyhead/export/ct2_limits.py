"""List the parts and options of a model that CTranslate2 does not support. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterator

from polyhead.config.model import LayerOverride, ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import format_value

_BLOCKS = {
    "encoder-decoder": ("transformer",),
    "encoder": ("transformer",),
    "decoder": ("transformer", "parallel"),
}
_POSITIONS = {
    "encoder-decoder": ("sinusoidal", "learned", "none", "t5", "shaw", "rope"),
    "encoder": ("sinusoidal", "learned", "none", "t5", "shaw", "rope"),
    "decoder": ("sinusoidal", "learned", "none", "rope", "alibi", "shaw", "t5"),
}
_FEED_FORWARDS = ("relu", "gelu", "silu", "tanh", "glu", "reglu", "geglu", "swiglu", "conv1x1")
_CONV_ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "tanh")  # of conv1x1
_SCALINGS = ("none", "linear", "ntk")
_NORMS = ("layernorm", "rmsnorm")


def ct2_unsupported(config: ModelConfig) -> list[str]:
    """Return one line for each unsupported part or option."""
    return [
        *_check_blocks(config),
        *_check_attention(config),
        *_check_positions(config),
        *_check_other(config),
    ]


def _check_blocks(config: ModelConfig) -> Iterator[str]:
    allowed = _BLOCKS[config.kind]
    for field in ("block", "decoder_block"):
        choice = getattr(config, field)
        if choice is not None and choice.name not in allowed:
            yield _format_mismatch(field, choice.name, allowed)
    if any(parts != LayerOverride() for parts in config.layer_pattern):
        yield "layer_pattern: all layers must be equal"


def _check_attention(config: ModelConfig) -> Iterator[str]:
    fields = [
        "attention",
        *(["decoder_attention", "cross_attention"] if config.kind == "encoder-decoder" else []),
    ]
    qk_norms = {}
    for field in fields:
        choice: Choice | None = getattr(config, field)
        if choice is None:
            continue
        if choice.name != "softmax":
            yield _format_mismatch(field, choice.name, ("softmax",))
            continue
        for option in ("window", "softcap"):
            if choice.options[option] is not None:
                yield f"{option} of {field} is {format_value(choice.options[option])}, expected null"
        qk_norms[field] = choice.options["qk_norm"]
    if any(qk_norms.values()) and config.kind == "encoder-decoder":
        yield (
            f"qk_norm is {format_value(next(filter(None, qk_norms.values())))}, expected false in an "
            "encoder-decoder"
        )
    elif "all_heads" in qk_norms.values():
        yield "qk_norm is 'all_heads', expected per head"
    elif value := {"layernorm", "per_head"} & set(qk_norms.values()):
        yield f"qk_norm is {format_value(*value)}, expected an RMS norm that all heads share"
    eps, qk_eps = config.norm.options.get("eps"), config.attention.options.get("qk_eps")
    if any(qk_norms.values()) and eps != qk_eps:
        yield f"eps of norm is {format_value(eps)}, expected {format_value(qk_eps)}, as qk_eps"
    if config.v_head_dim != config.head_dim:
        yield f"v_head_dim is {config.v_head_dim}, expected {config.head_dim}, as head_dim"


def _check_positions(config: ModelConfig) -> Iterator[str]:
    name, options, allowed = config.position.name, config.position.options, _POSITIONS[config.kind]
    if name not in allowed:
        yield _format_mismatch("position", name, allowed)
    if name == "rope" and options["scaling"] not in _SCALINGS:
        yield _format_mismatch("scaling of position 'rope'", options["scaling"], _SCALINGS)
    if name == "shaw" and config.kv_heads != config.n_heads:
        yield f"n_kv_heads is {config.kv_heads}, expected {config.n_heads} with position 'shaw'"


def _check_other(config: ModelConfig) -> Iterator[str]:
    if config.causal:
        yield "causal is true, expected false in an encoder"
    if config.residual_scale != 1:
        yield f"residual_scale is {config.residual_scale}, expected 1"
    if config.dense:
        yield f"dense is {len(config.dense)} linear maps of the text embedding, expected none"
    if config.d_embedding is not None:
        yield f"d_embedding is {config.d_embedding}, expected null"
    if config.norm.name not in _NORMS:
        yield _format_mismatch("norm", config.norm.name, _NORMS)
    if config.block.name == "parallel" and config.norm.name == "rmsnorm":
        yield "norm is 'rmsnorm', expected 'layernorm' with block 'parallel'"
    if config.feed_forward.name not in _FEED_FORWARDS:
        yield _format_mismatch("feed_forward", config.feed_forward.name, _FEED_FORWARDS)
    inner_activation = config.feed_forward.options.get("activation", "relu")
    if config.feed_forward.name == "conv1x1" and inner_activation not in _CONV_ACTIVATIONS:
        yield _format_mismatch("activation of feed_forward 'conv1x1'", inner_activation, _CONV_ACTIVATIONS)
    if (beta := config.feed_forward.options.get("beta", 1)) != 1:
        yield f"beta of feed_forward is {format_value(beta)}, expected 1"
    if config.embedding_norm == "first":
        yield "embedding_norm is 'first', expected true or false"
    if config.sandwich_norm and config.kind == "encoder-decoder":
        yield f"sandwich_norm is {format_value(config.sandwich_norm)}, expected false in an encoder-decoder"
    elif config.sandwich_norm == "after":
        yield "sandwich_norm is 'after', expected true or false"


def _format_mismatch(field: str, name: str, choices: tuple[str, ...]) -> str:
    return f"{field} is {name!r}, expected {' or '.join(map(repr, choices))}"
