"""Table of llama.cpp architectures, each by the Hugging Face family it was made for. Does not import gguf."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, format_value
from polyhead.core.option_types import resolve_factor
from polyhead.hf import save
from polyhead.hf.config_map import layer_choice
from polyhead.hf.family import (
    CONCAT,
    FINAL_NORM,
    HEAD_WEIGHT,
    STACK_LAYER,
    TOKEN_EMBEDDING,
    TensorTransform,
    WeightRule,
    linear,
    weight,
)
from polyhead.models.build import CAPABILITIES, get_model_kind
from polyhead.nn.position.rope import ROPE_SCALINGS, RopeFrequencies


def model_metadata(config: ModelConfig, arch: GgufArch) -> GgufMetadata:
    """Return sizes and hyperparameters under llama.cpp's keys, without the prefix of the architecture."""
    assert config.head_dim is not None
    eps = "layer_norm_rms_epsilon" if config.norm.name == "rmsnorm" else "layer_norm_epsilon"
    return {
        "vocab_size": config.vocab_size,
        "context_length": config.max_len,
        "embedding_length": config.d_model,
        "block_count": config.n_layers,
        "feed_forward_length": config.d_ff,
        "attention.head_count": config.n_heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        f"attention.{eps}": config.norm.options["eps"],
        **_window_metadata(config),
        **_rope_metadata(config),
        **arch.extra_metadata(config),
    }


def _window_metadata(config: ModelConfig) -> GgufMetadata:
    sizes = [layer_choice(config, "attention", i).options["window"] for i in range(config.n_layers)]
    if not any(sizes):
        return {}
    return {
        "attention.sliding_window": next(filter(None, sizes)),
        "attention.sliding_window_pattern": [size is not None for size in sizes],
    }


def _rope_metadata(config: ModelConfig) -> GgufMetadata:
    layers = [
        (layer_choice(config, "position", i), layer_choice(config, "attention", i))
        for i in range(config.n_layers)
    ]
    rope_by_window = {
        attention.options["window"] is not None: position.options
        for position, attention in reversed(layers)
        if position.name == "rope"
    }
    if not rope_by_window:
        return {}
    options = rope_by_window[min(rope_by_window)]  # of full-attention layers, if there are any
    assert config.head_dim is not None
    keys: GgufMetadata = {
        "rope.freq_base": options["theta"],
        "rope.dimension_count": int(config.head_dim * options["fraction"]),
    }
    if True in rope_by_window:
        keys["rope.freq_base_swa"] = rope_by_window[True]["theta"]
    if options["scaling"] in ("linear", "yarn"):
        keys |= {"rope.scaling.type": options["scaling"], "rope.scaling.factor": options["factor"]}
    if options["scaling"] == "yarn":
        keys["rope.scaling.original_context_length"] = options["original_len"]
    return keys


def rope_freq_factors(config: ModelConfig) -> Tensor | None:
    """Return the factor that slows each pair of features in llama3 scaling: (head_dim / 2,); None for other
    scalings.
    """
    options = next(iter(layer_rope_options(config)), None)
    if options is None or options["scaling"] != "llama3":
        return None
    assert config.head_dim is not None
    frequencies = RopeFrequencies(
        options["theta"], config.head_dim, options["factor"], options["original_len"]
    )
    scaled, _ = ROPE_SCALINGS["llama3"](frequencies)
    return frequencies.compute_inv_freq() / scaled


def layer_rope_options(config: ModelConfig) -> list[dict[str, Any]]:
    """Return the rope options of each layer that has rope."""
    positions = [layer_choice(config, "position", i) for i in range(config.n_layers)]
    return [choice.options for choice in positions if choice.name == "rope"]


GgufMetadata = dict[str, Any]
_BLOCK = "blk.{n}"
QKV_NAMES = ("q_proj", "k_proj", "v_proj")
_QKV = tuple(f"{STACK_LAYER}.attn.{name}" for name in QKV_NAMES)


def permute_rope(config: ModelConfig) -> TensorTransform:
    """Put the two features that rope rotates together next to each other; ours are half a head apart."""
    assert config.head_dim is not None
    half = config.head_dim // 2

    def interleave(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, 2, half)).transpose(1, 2).flatten(0, 2)

    return TensorTransform(
        lambda params: interleave(params[0]),
        lambda tensor, rows: [tensor.unflatten(0, (-1, half, 2)).transpose(1, 2).flatten(0, 2)],
    )


_COMMON = (
    *weight("token_embd.weight", TOKEN_EMBEDDING),
    *weight("position_embd.weight", "embedding.position.weight"),
    *linear("token_embd_norm", "embedding.norm"),
    *linear(f"{_BLOCK}.attn_norm", f"{STACK_LAYER}.attn_residual.norm"),
    *linear(f"{_BLOCK}.post_attention_norm", f"{STACK_LAYER}.attn_residual.sandwich_norm"),
    *linear(f"{_BLOCK}.attn_output", f"{STACK_LAYER}.attn.o_proj"),
    *weight(f"{_BLOCK}.attn_q_norm.weight", f"{STACK_LAYER}.attn.q_norm.weight"),
    *weight(f"{_BLOCK}.attn_k_norm.weight", f"{STACK_LAYER}.attn.k_norm.weight"),
    *linear(f"{_BLOCK}.ffn_norm", f"{STACK_LAYER}.ffn_residual.norm"),
    *linear(f"{_BLOCK}.post_ffw_norm", f"{STACK_LAYER}.ffn_residual.sandwich_norm"),
    *linear(f"{_BLOCK}.ffn_down", f"{STACK_LAYER}.ffn.down_proj"),
    *linear("output_norm", FINAL_NORM),
    *weight("output.weight", HEAD_WEIGHT),
)
_UP_PROJ = linear(f"{_BLOCK}.ffn_up", f"{STACK_LAYER}.ffn.up_proj")
_GATED_ROWS = (*_COMMON, *_UP_PROJ, *linear(f"{_BLOCK}.ffn_gate", f"{STACK_LAYER}.ffn.gate_proj"))
_V_PROJ = linear(f"{_BLOCK}.attn_v", _QKV[2])
_SEPARATE_QKV = (*linear(f"{_BLOCK}.attn_q", _QKV[0]), *linear(f"{_BLOCK}.attn_k", _QKV[1]), *_V_PROJ)
_PERMUTED_QKV = (
    *linear(f"{_BLOCK}.attn_q", _QKV[0], weight=permute_rope, bias=permute_rope),
    *linear(f"{_BLOCK}.attn_k", _QKV[1], weight=permute_rope, bias=permute_rope),
    *_V_PROJ,
)
_FUSED_QKV = linear(f"{_BLOCK}.attn_qkv", *_QKV, weight=CONCAT, bias=CONCAT)
_FUSED_GATE_UP = linear(
    f"{_BLOCK}.ffn_up",
    f"{STACK_LAYER}.ffn.gate_proj",
    f"{STACK_LAYER}.ffn.up_proj",
    weight=CONCAT,
    bias=CONCAT,
)


class GgufArch(NamedTuple):
    """An architecture of llama.cpp, and its limits compared with the Hugging Face family."""

    name: str
    weight_map: tuple[WeightRule, ...]
    feed_forward: tuple[str, ...] = ("swiglu",)
    biases: tuple[str, ...] = ()  # our linear maps whose biases it reads
    needs_biases: bool = False  # whether all biases are required; missing ones become zeros
    scalings: tuple[str, ...] = ("none", "linear", "yarn")
    needs_square_heads: bool = True  # whether n_heads * head_dim must be d_model
    has_windows: bool = False
    output_head: str = (
        "may"  # "must": required even if tied to the embedding; "not": not allowed; "may": optional
    )
    extra_metadata: Callable[[ModelConfig], GgufMetadata] = lambda config: {}
    check_limits: Callable[[ModelConfig], Iterator[str]] = lambda config: iter(())


_LINEAR_NAMES = (*QKV_NAMES, "o_proj", "gate_proj", "up_proj", "down_proj")
_LLAMA3_SCALINGS = ("none", "linear", "yarn", "llama3")
_GELU = ("gelu",)


def scale_metadata(config: ModelConfig) -> GgufMetadata:
    """Return the scales of Granite: embeddings, sub-layer outputs, scores, and the input of the head."""
    root, scale = config.d_model**0.5, config.attention.options["scale"]
    assert config.head_dim is not None
    return {
        "embedding_scale": resolve_factor(config.scale_embedding, root),
        "residual_scale": config.residual_scale,
        "attention.scale": config.head_dim**-0.5 if scale is None else scale,
        "logit_scale": resolve_factor(config.logits_scale, root),
    }


def softcap_metadata(config: ModelConfig) -> GgufMetadata:
    """Return the softcaps. llama.cpp uses those of Gemma 2 if a file has none."""
    softcaps = {
        "attn_logit_softcapping": layer_choice(config, "attention", 0).options["softcap"],
        "final_logit_softcapping": config.logit_softcap,
    }
    return {key: value for key, value in softcaps.items() if value is not None}


def check_softcaps(config: ModelConfig) -> Iterator[str]:
    """Require both softcaps, as in Gemma 2."""
    for key, option in {"attn": "softcap of attention", "final": "logit_softcap"}.items():
        if f"{key}_logit_softcapping" not in softcap_metadata(config):
            yield f"{option} is null, expected a number"


def check_nope_layers(config: ModelConfig) -> Iterator[str]:
    """Require that exactly the fourth, eighth, ... layers have no positions."""
    has_no_position = [layer_choice(config, "position", i).name == "none" for i in range(config.n_layers)]
    if has_no_position != [(i + 1) % 4 == 0 for i in range(config.n_layers)]:
        yield "layers without positions must be every fourth layer"


def residual_metadata(config: ModelConfig) -> GgufMetadata:
    """Return whether attention and feed-forward are parallel."""
    return {"use_parallel_residual": config.block.name == "parallel"}


# by the families that have these parts; of equivalent families the first is used
ARCHS = {
    "llama": GgufArch("llama", (*_GATED_ROWS, *_PERMUTED_QKV), biases=_LINEAR_NAMES,
        scalings=_LLAMA3_SCALINGS, needs_square_heads=False),
    "gpt2": GgufArch("gpt2", (*_COMMON, *_UP_PROJ, *_FUSED_QKV), _GELU, _LINEAR_NAMES, needs_biases=True),
    "mistral": GgufArch("llama", (*_GATED_ROWS, *_PERMUTED_QKV), needs_square_heads=False),
    "qwen2": GgufArch("qwen2", (*_GATED_ROWS, *_SEPARATE_QKV), biases=QKV_NAMES),
    "qwen3": GgufArch("qwen3", (*_GATED_ROWS, *_SEPARATE_QKV), needs_square_heads=False),
    "gemma": GgufArch("gemma", (*_GATED_ROWS, *_SEPARATE_QKV), ("geglu",), needs_square_heads=False,
        output_head="not"),
    "gemma2": GgufArch(
        "gemma2", (*_GATED_ROWS, *_SEPARATE_QKV), ("geglu",), needs_square_heads=False, has_windows=True,
            output_head="not", extra_metadata=softcap_metadata, check_limits=check_softcaps
    ),
    "gemma3_text": GgufArch("gemma3", (*_GATED_ROWS, *_SEPARATE_QKV), ("geglu",), needs_square_heads=False,
        has_windows=True, extra_metadata=softcap_metadata),
    "phi3": GgufArch("phi3", (*_COMMON, *_FUSED_GATE_UP, *_SEPARATE_QKV)),
    "gpt_neox": GgufArch(
        "gptneox", (*_COMMON, *_UP_PROJ, *_FUSED_QKV), _GELU, _LINEAR_NAMES, needs_biases=True,
            output_head="must", extra_metadata=residual_metadata
    ),
    "bloom": GgufArch("bloom", (*_COMMON, *_UP_PROJ, *_FUSED_QKV), _GELU, _LINEAR_NAMES, needs_biases=True),
    "gpt_bigcode": GgufArch("starcoder", (*_COMMON, *_UP_PROJ, *_FUSED_QKV), _GELU, _LINEAR_NAMES,
        needs_biases=True),
    "mpt": GgufArch("mpt", (*_COMMON, *_UP_PROJ, *_FUSED_QKV), _GELU,
        extra_metadata=lambda config: {"attention.max_alibi_bias": 8.0}),
    "starcoder2": GgufArch("starcoder2", (*_COMMON, *_UP_PROJ, *_SEPARATE_QKV), _GELU, _LINEAR_NAMES,
        needs_biases=True),
    "stablelm": GgufArch("stablelm", (*_GATED_ROWS, *_SEPARATE_QKV), biases=QKV_NAMES, output_head="must",
        extra_metadata=residual_metadata),
    "olmo2": GgufArch("olmo2", (*_GATED_ROWS, *_SEPARATE_QKV), output_head="must"),
    "granite": GgufArch(
        "granite", (*_GATED_ROWS, *_PERMUTED_QKV), biases=_LINEAR_NAMES, scalings=_LLAMA3_SCALINGS,
            needs_square_heads=False, extra_metadata=scale_metadata
    ),
    "smollm3": GgufArch("smollm3", (*_GATED_ROWS, *_PERMUTED_QKV), needs_square_heads=False,
        check_limits=check_nope_layers),
    "arcee": GgufArch("arcee", (*_COMMON, *_UP_PROJ, *_PERMUTED_QKV), ("relu2",), scalings=_LLAMA3_SCALINGS,
        needs_square_heads=False),
    "ernie4_5": GgufArch("ernie4_5", (*_GATED_ROWS, *_SEPARATE_QKV), needs_square_heads=False),
    "cohere": GgufArch("command-r", (*_GATED_ROWS, *_SEPARATE_QKV), output_head="not",
        extra_metadata=lambda config: {
            "logit_scale": 1 / resolve_factor(config.logits_scale, config.d_model**0.5)}),
}  # fmt: skip


def find_arch(config: ModelConfig) -> tuple[GgufArch, ModelConfig]:
    """Return the architecture of a model, and the config as exported; a UserError lists the unsupported
    parts.
    """
    if config.kind != "decoder":
        own = CAPABILITIES[get_model_kind(config)][0]
        raise UserError(f"llama.cpp supports language models only; this model is {own}")
    arch, exported_config, obstacles = nearest_arch(config)
    if obstacles:
        raise UserError(
            f"llama.cpp does not support this model; the nearest architecture is {arch.name!r}: "
            f"{'; '.join(obstacles)}"
        )
    return arch, exported_config


def nearest_arch(config: ModelConfig) -> tuple[GgufArch, ModelConfig, list[str]]:
    """Return the architecture that supports most of a language model, the config as exported, and the
    unsupported parts.
    """
    candidates: list[tuple[GgufArch, ModelConfig, list[str]]] = []
    reason = ""
    for family, arch in ARCHS.items():
        exported_config = _with_zero_biases(config) if arch.needs_biases else config
        try:
            obstacles = list(
                dict.fromkeys(
                    [*save.hf_unsupported(exported_config, family), *gguf_unsupported(exported_config, arch)]
                )
            )
        except UserError as error:  # the family has no such model
            reason = str(error)
            continue
        candidates.append((arch, exported_config, obstacles))
        if not obstacles:
            break
    return min(candidates, key=lambda candidate: len(candidate[2]), default=(arch, config, [reason]))


def _with_zero_biases(config: ModelConfig) -> ModelConfig:
    """Return the config with all biases; new ones are zero."""
    parts = {name: getattr(config, name) for name in ("attention", "norm", "feed_forward")}
    return config.model_copy(
        update={
            name: Choice(choice.name, **{**choice.options, "bias": True})
            for name, choice in parts.items()
            if "bias" in choice.options
        }
    )


def gguf_unsupported(config: ModelConfig, arch: GgufArch) -> Iterator[str]:
    """Yield a line for each part or option that the architecture does not support, though its family may."""
    layers = [layer_choice(config, "attention", i) for i in range(config.n_layers)]
    if any(choice.name != "softmax" for choice in layers):  # unsupported in every family
        return
    yield from arch.check_limits(config)
    if config.feed_forward.name not in arch.feed_forward:
        yield (
            f"feed_forward is {config.feed_forward.name!r}, expected "
            f"{' or '.join(map(repr, arch.feed_forward))}"
        )
    elif config.feed_forward.options.get("tanh") is False and config.feed_forward.name == "geglu":
        yield "tanh of feed_forward is false, expected true"
    if config.feed_forward.options.get("bias") and "up_proj" not in arch.biases:
        yield "bias of feed_forward is true, expected false"
    if not arch.has_windows and any(choice.options["window"] for choice in layers):
        yield "attention has windows, expected none"
    biased, scale = (layers[0].options[name] for name in ("bias", "scale"))
    if (biased and QKV_NAMES[0] not in arch.biases) or (
        biased in (True, "o") and "o_proj" not in arch.biases
    ):
        yield (
            f"bias of attention is {format_value(biased)}, expected "
            f"{format_value('qkv' if arch.biases else False)}"
        )
    if scale is not None and "attention.scale" not in arch.extra_metadata(config):
        yield f"scale of attention is {scale:g}, expected null"
    if (qk_norm := layers[0].options["qk_norm"]) in ("layernorm", "per_head"):
        yield f"qk_norm of attention is {qk_norm!r}, expected false, true, 'zero_centered' or 'all_heads'"
    assert config.head_dim is not None
    if arch.needs_square_heads and config.n_heads * config.head_dim != config.d_model:
        yield f"head_dim is {config.head_dim}, expected d_model / n_heads"
    if arch.output_head == "not" and config.tie_embeddings == "none":
        yield "tie_embeddings is 'none', expected 'all'"
    for scaling in {options["scaling"] for options in layer_rope_options(config)} - set(arch.scalings):
        yield f"scaling of position 'rope' is {scaling!r}, expected {', '.join(map(repr, arch.scalings))}"
