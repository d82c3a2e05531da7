"""Table of llama.cpp architectures, each by the Hugging Face family it was made for. Does not import gguf."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from polyhead.config.model import ModelConfig
from polyhead.core.option_types import resolve_factor
from polyhead.hf.families.layer_types import layer_choice
from polyhead.hf.family import FINAL_NORM, HEAD_WEIGHT, STACK_LAYER, TOKEN_EMBEDDING
from polyhead.hf.weight_map import CONCAT, TensorTransform, WeightRule, linear, weight

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

    def deinterleave(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, half, 2)).transpose(1, 2).flatten(0, 2)

    return TensorTransform(lambda params: interleave(params[0]), lambda tensor, rows: [deinterleave(tensor)])


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


def logit_scale_metadata(config: ModelConfig) -> GgufMetadata:
    """Return Command R's factor on the logits."""
    return {"logit_scale": 1 / resolve_factor(config.logits_scale, config.d_model**0.5)}


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
        extra_metadata=logit_scale_metadata),
}  # fmt: skip
