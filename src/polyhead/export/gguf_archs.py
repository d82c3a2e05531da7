"""Which architectures of llama.cpp there are, each as the published family that it was made for. No gguf here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FINAL_NORM, HEAD, LAYER
from polyhead.hf.pattern import part
from polyhead.hf.table import FUSED, Row, Step, both, one
from polyhead.ranges import factor_of

Keys = dict[str, Any]
BLOCK = "blk.{n}"
NAMES = ("q_proj", "k_proj", "v_proj")
QKV = tuple(f"{LAYER}.attn.{name}" for name in NAMES)


def turned(config: ModelConfig) -> Step:
    """Features of a head that turn together side by side, where ours lie half a head apart."""
    assert config.head_dim is not None
    half = config.head_dim // 2

    def side_by_side(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, 2, half)).transpose(1, 2).flatten(0, 2)

    def apart(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, half, 2)).transpose(1, 2).flatten(0, 2)

    return Step(lambda ours: side_by_side(ours[0]), lambda theirs, rows: [apart(theirs)])


COMMON = (
    *one("token_embd.weight", EMBEDDING),
    *one("position_embd.weight", "embedding.position.weight"),
    *both("token_embd_norm", "embedding.norm"),
    *both(f"{BLOCK}.attn_norm", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.post_attention_norm", f"{LAYER}.attn_residual.after"),
    *both(f"{BLOCK}.attn_output", f"{LAYER}.attn.o_proj"),
    *one(f"{BLOCK}.attn_q_norm.weight", f"{LAYER}.attn.q_norm.weight"),
    *one(f"{BLOCK}.attn_k_norm.weight", f"{LAYER}.attn.k_norm.weight"),
    *both(f"{BLOCK}.ffn_norm", f"{LAYER}.ffn_residual.norm"),
    *both(f"{BLOCK}.post_ffw_norm", f"{LAYER}.ffn_residual.after"),
    *both(f"{BLOCK}.ffn_down", f"{LAYER}.ffn.down_proj"),
    *both("output_norm", FINAL_NORM),
    *one("output.weight", HEAD),
)
UP = both(f"{BLOCK}.ffn_up", f"{LAYER}.ffn.up_proj")
GATED = (*COMMON, *UP, *both(f"{BLOCK}.ffn_gate", f"{LAYER}.ffn.gate_proj"))
VALUES = both(f"{BLOCK}.attn_v", QKV[2])
APART = (*both(f"{BLOCK}.attn_q", QKV[0]), *both(f"{BLOCK}.attn_k", QKV[1]), *VALUES)
TURNED = (
    *both(f"{BLOCK}.attn_q", QKV[0], weight=turned, bias=turned),
    *both(f"{BLOCK}.attn_k", QKV[1], weight=turned, bias=turned),
    *VALUES,
)
FUSED_QKV = both(f"{BLOCK}.attn_qkv", *QKV, weight=FUSED, bias=FUSED)
FUSED_UP = both(f"{BLOCK}.ffn_up", f"{LAYER}.ffn.gate_proj", f"{LAYER}.ffn.up_proj", weight=FUSED, bias=FUSED)


class Arch(NamedTuple):
    """An architecture of llama.cpp, and what it cannot do though its published family can."""

    name: str
    table: tuple[Row, ...]
    feed_forward: tuple[str, ...] = ("swiglu",)
    biases: tuple[str, ...] = ()  # of which of our linear maps it reads them
    zeros: bool = False  # no bias may be missing: those that a model has not are zeros
    scalings: tuple[str, ...] = ("none", "linear", "yarn")
    square: bool = True  # whether heads are together as wide as the model
    windows: bool = False
    output: str = "may"  # whether there "must" be a head, though it is the embeddings, or may "not", or may
    keys: Callable[[ModelConfig], Keys] = lambda config: {}
    limits: Callable[[ModelConfig], Iterator[str]] = lambda config: iter(())


MAPS = (*NAMES, "o_proj", "gate_proj", "up_proj", "down_proj")
LLAMA3 = ("none", "linear", "yarn", "llama3")
GELU = ("gelu",)


def factors(config: ModelConfig) -> Keys:
    """Those of Granite on embeddings, what sub-layers add, scores, and what the head reads."""
    root, scale = config.d_model**0.5, config.attention.options["scale"]
    assert config.head_dim is not None
    return {
        "embedding_scale": factor_of(config.scale_embedding, root),
        "residual_scale": config.scale_residual,
        "attention.scale": config.head_dim**-0.5 if scale is None else scale,
        "logit_scale": factor_of(config.scale_output, root),
    }


def bounds(config: ModelConfig) -> Keys:
    """Where scores are bounded; a file that is silent means the bounds of Gemma 2."""
    found = {
        "attn_logit_softcapping": part(config, "attention", 0).options["softcap"],
        "final_logit_softcapping": config.logit_softcap,
    }
    return {key: value for key, value in found.items() if value is not None}


def both_bounds(config: ModelConfig) -> Iterator[str]:
    """Gemma 2 has both."""
    for key, option in {"attn": "softcap of attention", "final": "logit_softcap"}.items():
        if f"{key}_logit_softcapping" not in bounds(config):
            yield f"{option} is null, there a number"


def every_fourth(config: ModelConfig) -> Iterator[str]:
    """Layers without positions are the fourth, the eighth and so on."""
    without = [part(config, "position", i).name == "none" for i in range(config.n_layers)]
    if without != [(i + 1) % 4 == 0 for i in range(config.n_layers)]:
        yield "layers without positions are other ones than every fourth"


def head_scale(config: ModelConfig) -> Keys:
    """What Command R multiplies scores by."""
    return {"logit_scale": 1 / factor_of(config.scale_output, config.d_model**0.5)}


def side_by_side(config: ModelConfig) -> Keys:
    """Whether sub-layers read the same."""
    return {"use_parallel_residual": config.block.name == "parallel"}


# by the families that have these parts; of those that say a model alike the first is taken
ARCHS = {
    "llama": Arch("llama", (*GATED, *TURNED), biases=MAPS, scalings=LLAMA3, square=False),
    "gpt2": Arch("gpt2", (*COMMON, *UP, *FUSED_QKV), GELU, MAPS, zeros=True),
    "mistral": Arch("llama", (*GATED, *TURNED), square=False),
    "qwen2": Arch("qwen2", (*GATED, *APART), biases=NAMES),
    "qwen3": Arch("qwen3", (*GATED, *APART), square=False),
    "gemma": Arch("gemma", (*GATED, *APART), ("geglu",), square=False, output="not"),
    "gemma2": Arch(
        "gemma2", (*GATED, *APART), ("geglu",), square=False, windows=True, output="not", keys=bounds, limits=both_bounds
    ),
    "gemma3_text": Arch("gemma3", (*GATED, *APART), ("geglu",), square=False, windows=True, keys=bounds),
    "phi3": Arch("phi3", (*COMMON, *FUSED_UP, *APART)),
    "gpt_neox": Arch(
        "gptneox", (*COMMON, *UP, *FUSED_QKV), GELU, MAPS, zeros=True, output="must", keys=side_by_side
    ),
    "bloom": Arch("bloom", (*COMMON, *UP, *FUSED_QKV), GELU, MAPS, zeros=True),
    "gpt_bigcode": Arch("starcoder", (*COMMON, *UP, *FUSED_QKV), GELU, MAPS, zeros=True),
    "mpt": Arch("mpt", (*COMMON, *UP, *FUSED_QKV), GELU, keys=lambda config: {"attention.max_alibi_bias": 8.0}),
    "starcoder2": Arch("starcoder2", (*COMMON, *UP, *APART), GELU, MAPS, zeros=True),
    "stablelm": Arch("stablelm", (*GATED, *APART), biases=NAMES, output="must", keys=side_by_side),
    "olmo2": Arch("olmo2", (*GATED, *APART), output="must"),
    "granite": Arch(
        "granite", (*GATED, *TURNED), biases=MAPS, scalings=LLAMA3, square=False, keys=factors
    ),
    "smollm3": Arch("smollm3", (*GATED, *TURNED), square=False, limits=every_fourth),
    "arcee": Arch("arcee", (*COMMON, *UP, *TURNED), ("relu2",), scalings=LLAMA3, square=False),
    "ernie4_5": Arch("ernie4_5", (*GATED, *APART), square=False),
    "cohere": Arch("command-r", (*GATED, *APART), output="not", keys=head_scale),
}  # fmt: skip
