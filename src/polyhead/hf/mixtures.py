"""Mixtral (Jiang et al., 2024), Mistral with experts, and Qwen3 (2025) with experts, all of its layers alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, GATED, LAYER, Family
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, fixed, flag, only, passed, size, unsaid
from polyhead.hf.llama import BLOCK, BUFFERS, TABLE, TIED, keys, query_norms
from polyhead.hf.table import Row, one

EACH = {name: gate.name for name, gate in GATED.items() if not gate.options.get("tanh")}
NETWORKS = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # of a family without experts
AROUND = tuple(row for row in TABLE if not any(name in row.theirs for name in NETWORKS))


def experts(n_experts: str, *, normalize: bool = False) -> Key:
    """The feed-forward, of whose keys that of the number of experts differs; what evens out loads in training is no part
    of the model. ``normalize`` is whether picked ones are weighed among themselves."""

    def read(given: Given, fields: Fields) -> Fields:
        given.passed("output_router_logits", "router_aux_loss_coef")
        each, n = EACH[given.word("hidden_act", "silu", EACH)], given.size(n_experts)
        picked = {"n_experts": n, "top_k": given.size("num_experts_per_tok"), "normalize": normalize}
        return {"feed_forward": {"name": "experts", "each": each, "balance": False, **picked}}

    def write(config: ModelConfig) -> dict[str, Any]:
        found = config.feed_forward.options
        words = {each: word for word, each in reversed(EACH.items())}
        return {
            "hidden_act": words.get(found.get("each", ""), "silu"),
            n_experts: found.get("n_experts", 1),
            "num_experts_per_tok": found.get("top_k", 1),
        }

    return Key(read, write)


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


def either(given: Given, fields: Fields) -> Fields:
    """Some files have the number of experts under Mixtral's key."""
    if not given.has("num_experts") and given.has("num_local_experts"):
        given.assume(num_experts=given.size("num_local_experts"))
    return {}


KEYS_MIXTRAL = (
    unsaid(max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=1e6),
    passed("router_jitter_noise"),
    *keys(kv_heads=8),
    fixed(attention={"bias": False}),
    size("sliding_window", "attention.window", optional=True),
    experts("num_local_experts", normalize=True),
)
KEYS_QWEN = (
    unsaid(hidden_size=2048, num_hidden_layers=24, max_position_embeddings=32768),
    passed("sliding_window", "max_window_layers"),
    only("decoder_sparse_step", 1, said=True),
    only("mlp_only_layers", [], said=True),
    only("use_sliding_window", False, said=True),
    Key(either),
    *keys(kv_heads=4),
    size("moe_intermediate_size", "d_ff"),  # of an expert
    flag("attention_bias", "attention.bias", False),
    query_norms(True),
    experts("num_experts"),
    flag("norm_topk_prob", "feed_forward.normalize", False),
)
FAMILY.register("mixtral")(
    Family(
        {"CausalLM": "MixtralForCausalLM"},
        KEYS_MIXTRAL,
        table("block_sparse_moe", ("w1", "w3", "w2")),
        "model.",
        BUFFERS,
        TIED,
    )
)
FAMILY.register("qwen3_moe")(
    Family(
        {"CausalLM": "Qwen3MoeForCausalLM"},
        KEYS_QWEN,
        table("mlp", ("gate_proj", "up_proj", "down_proj")),
        "model.",
        BUFFERS,
        TIED,
    )
)
