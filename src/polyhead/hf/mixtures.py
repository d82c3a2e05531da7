"""Mixtral (Jiang et al., 2024), Mistral with experts, and Qwen3 (2025) with experts, all of its layers alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, GATED, LAYER, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import BLOCK, BUFFERS, TABLE, TIED, attention, common, said
from polyhead.hf.table import Row, one

EACH = {name: gate.name for name, gate in GATED.items() if not gate.options.get("tanh")}
NETWORKS = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # of a family without experts
AROUND = tuple(row for row in TABLE if not any(name in row.theirs for name in NETWORKS))


def experts(given: Given, n_experts: str, *, normalize: bool) -> dict[str, Any]:
    """The feed-forward of config.json, whose key of their number differs; what evens out loads in training is no part
    of the model."""
    given.passed("output_router_logits", "router_aux_loss_coef")
    each, n = EACH[given.word("hidden_act", "silu", EACH)], given.size(n_experts)
    picked = {"n_experts": n, "top_k": given.size("num_experts_per_tok"), "normalize": normalize}
    return {"feed_forward": {"name": "experts", "each": each, "balance": False, **picked}}


def experts_said(config: ModelConfig, n_experts: str) -> dict[str, Any]:
    """The way back of ``experts``."""
    found = config.feed_forward.options
    words = {each: word for word, each in reversed(EACH.items())}
    return {
        "hidden_act": words.get(found.get("each", ""), "silu"),
        n_experts: found.get("n_experts", 1),
        "num_experts_per_tok": found.get("top_k", 1),
    }


def table(router: str, names: Sequence[str]) -> tuple[Row, ...]:
    """Llama's, with a router and the three matrices of each expert in the place of its feed-forward."""
    inside = zip(names, ("gate_proj", "up_proj", "down_proj"), strict=True)
    return (
        *AROUND,
        *one(f"{BLOCK}.{router}.gate.weight", f"{LAYER}.ffn.router.weight"),
        *(
            row
            for theirs, ours in inside
            for row in one(
                f"{BLOCK}.{router}.experts.{{e}}.{theirs}.weight", f"{LAYER}.ffn.experts.{{e}}.{ours}.weight"
            )
        ),
    )


def read_mixtral(given: Given) -> dict[str, Any]:
    """config.json of Mixtral -> fields of ModelConfig."""
    given.passed("router_jitter_noise")
    window = given.size("sliding_window") if given.has("sliding_window") else None
    fields = common(given, kv_heads=8, max_len=131072, eps=1e-5, theta=1e6)
    return (
        fields
        | attention(given, bias=False, window=window)
        | experts(given, "num_local_experts", normalize=True)
    )


def write_mixtral(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json of Mixtral."""
    window = {"sliding_window": config.attention.options.get("window")}
    return said(config) | window | experts_said(config, "num_local_experts")


def read_qwen(given: Given) -> dict[str, Any]:
    """config.json of Qwen3 with experts -> fields of ModelConfig. The width of an expert has a key of its own."""
    for key, built in (("decoder_sparse_step", 1), ("mlp_only_layers", []), ("use_sliding_window", False)):
        given.only(key, built)
    given.passed("sliding_window", "max_window_layers")
    given.assume(hidden_size=2048, num_hidden_layers=24)
    fields = common(given, kv_heads=4, max_len=32768)
    count = "num_experts" if given.has("num_experts") else "num_local_experts"
    return (
        fields
        | {"d_ff": given.size("moe_intermediate_size")}
        | attention(
            given, bias=given.flag("attention_bias", False), qk_norm=True, qk_eps=fields["norm"]["eps"]
        )
        | experts(given, count, normalize=given.flag("norm_topk_prob", False))
    )


def write_qwen(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json of Qwen3 with experts."""
    return (
        said(config)
        | experts_said(config, "num_experts")
        | {
            "moe_intermediate_size": config.d_ff,
            "norm_topk_prob": config.feed_forward.options.get("normalize", True),
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "use_sliding_window": False,
            "attention_bias": config.attention.options.get("bias") is True,
        }
    )


MIXTRAL = FAMILY.register("mixtral")(
    Family(
        {"CausalLM": "MixtralForCausalLM"},
        read_mixtral,
        write_mixtral,
        table("block_sparse_moe", ("w1", "w3", "w2")),
        "model.",
        BUFFERS,
        TIED,
    )
)
QWEN3_MOE = FAMILY.register("qwen3_moe")(
    Family(
        {"CausalLM": "Qwen3MoeForCausalLM"},
        read_qwen,
        write_qwen,
        table("mlp", ("gate_proj", "up_proj", "down_proj")),
        "model.",
        BUFFERS,
        TIED,
    )
)
