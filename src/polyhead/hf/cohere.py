"""Command R, Aya (Cohere, 2024) and Command R7B: sub-layers side by side behind one norm, rope on features side by side."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, LAYER, Family
from polyhead.hf.given import Given
from polyhead.hf.granite import above_0
from polyhead.hf.llama import BLOCK, BUFFERS, TIED, attention, common, divided, rope_said, said
from polyhead.hf.llama import TABLE as LLAMA
from polyhead.hf.pattern import WHOLE, WINDOW, kinds_of, part, turn, window_of, windows_said
from polyhead.hf.table import STACKED, one
from polyhead.ranges import factor_of

# what files say and the reference does not read
UNREAD = """
    _sliding_window_pattern cache_implementation layer_switch order_of_interleaved_layers position_embedding_type rotary_pct
    use_embedding_sharing use_gated_activation use_parallel_block use_parallel_embedding
""".split()  # noqa: SIM905


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    found = fields(given, 500_000.0)
    if not given.flag("use_qk_norm", False):
        return found
    return found | {"attention": found["attention"] | {"qk_norm": "each", "qk_eps": found["norm"]["eps"]}}


def fields(given: Given, theta: float) -> dict[str, Any]:
    """What both families say alike, and theta where a file says nothing."""
    given.assume(hidden_size=8192, num_hidden_layers=40, num_attention_heads=64, logit_scale=0.0625)
    given.passed("rms_norm_eps", "model_max_length")  # the reference reads others
    found = divided(given, common(given, max_len=8192, theta=theta))
    options = {"bias": given.flag("attention_bias", False)}
    divisor = 1 / above_0(given, "logit_scale")
    return found | attention(given, **options) | {
        "block": {"name": "parallel", "one_norm": True},
        "position": found["position"] | {"layout": "interleaved"},
        "norm": {"name": "layernorm", "eps": given.number("layer_norm_eps", 1e-5), "bias": False},
        "tie_embeddings": "all" if given.flag("tie_word_embeddings", True) else "none",
        "scale_output": divisor == found["d_model"] ** 0.5 or divisor,
    }  # fmt: skip


def read_2(given: Given) -> dict[str, Any]:
    """As that, but three of four layers have a window, and the others no positions."""
    every = given.size("sliding_window_pattern", 4)
    given.passed("sliding_window", *UNREAD)
    found = fields(given, 10_000.0)
    kinds = kinds_of(given, found["n_layers"], lambda layer: (layer + 1) % every > 0)
    turns: dict[str, dict[str, Any]] = {WHOLE: {"position": "none"}}
    if WINDOW in kinds:
        size = window_of(given)
        turns[WINDOW] = {"attention": found["attention"] | {"window": size}}
    return found | {"pattern": [turns[kind] for kind in turn(kinds)]}


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return around(config) | {"use_qk_norm": config.attention.options.get("qk_norm") == "each"}


def around(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``fields``."""
    return {key: value for key, value in said(config).items() if key != "rms_norm_eps"} | {
        "layer_norm_eps": config.norm.options.get("eps", 1e-5),
        "attention_bias": config.attention.options.get("bias") is True,
        "logit_scale": 1 / factor_of(config.scale_output, config.d_model**0.5),
    }


def write_2(config: ModelConfig) -> dict[str, Any]:
    """As that, with the kinds of the layers."""
    layers = [part(config, "position", i) for i in range(config.n_layers)]
    rope = next((position for position in layers if position.name != "none"), config.position)
    return around(config) | rope_said(rope.options) | windows_said(config, config.max_len)


TABLE = (
    *(row for row in LLAMA if "post_attention" not in row.theirs and "_norm." not in row.theirs),
    *one(f"{BLOCK}.self_attn.q_norm.weight", f"{LAYER}.attn.q_norm.heads.{{q}}", step=STACKED),
    *one(f"{BLOCK}.self_attn.k_norm.weight", f"{LAYER}.attn.k_norm.heads.{{k}}", step=STACKED),
)
COHERE = FAMILY.register("cohere")(
    Family({"CausalLM": "CohereForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
COHERE2 = FAMILY.register("cohere2")(
    Family({"CausalLM": "Cohere2ForCausalLM"}, read_2, write_2, TABLE, "model.", BUFFERS, TIED)
)
