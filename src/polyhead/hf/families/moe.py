"""Mixtral (Jiang et al., 2024), Mistral with experts, and Qwen3-MoE (2025): experts in every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import (
    ConfigField,
    ModelFields,
    constant,
    defaults,
    ignore,
    map_bool,
    map_int,
    require,
)
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.llama import BLOCK, TABLE, llama_keys, map_qk_norm, register_llama
from polyhead.hf.family import HF_GATED_ACTIVATIONS, STACK_LAYER
from polyhead.hf.weight_map import WeightRule, weight

EXPERT_ACTIVATIONS = {
    name: gate.name for name, gate in HF_GATED_ACTIVATIONS.items() if not gate.options.get("tanh")
}
MLP_NAMES = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # of a family without experts
NON_MLP_RULES = tuple(row for row in TABLE if not any(name in row.hf_name for name in MLP_NAMES))


def map_experts(count_key: str, *, normalize: bool = False) -> ConfigField:
    """Map the MoE feed-forward. ``count_key`` is the key of the number of experts.

    Load balancing of training is not part of the model. ``normalize``: the weights of the chosen experts are
    normalized.
    """

    def read(reader: ConfigReader, fields: ModelFields) -> ModelFields:
        reader.ignore("output_router_logits", "router_aux_loss_coef")
        activation = EXPERT_ACTIVATIONS[reader.get_choice("hidden_act", "silu", EXPERT_ACTIVATIONS)]
        n = reader.get_int(count_key)
        options = {"n_experts": n, "top_k": reader.get_int("num_experts_per_tok"), "normalize": normalize}
        return {"feed_forward": {"name": "moe", "expert": activation, "balance": False, **options}}

    def write(config: ModelConfig) -> dict[str, Any]:
        options = config.feed_forward.options
        hf_names = {activation: hf_name for hf_name, activation in reversed(EXPERT_ACTIVATIONS.items())}
        return {
            "hidden_act": hf_names.get(options.get("expert", ""), "silu"),
            count_key: options.get("n_experts", 1),
            "num_experts_per_tok": options.get("top_k", 1),
        }

    return ConfigField(read, write)


def _moe_rules(router: str, expert_names: Sequence[str]) -> tuple[WeightRule, ...]:
    """Return Llama's rows with a router and the three matrices of each expert as feed-forward."""
    names = zip(expert_names, ("gate_proj", "up_proj", "down_proj"), strict=True)
    return (
        *NON_MLP_RULES,
        *weight(f"{BLOCK}.{router}.gate.weight", f"{STACK_LAYER}.ffn.router.weight"),
        *(
            row
            for hf_name, name in names
            for row in weight(
                f"{BLOCK}.{router}.experts.{{e}}.{hf_name}.weight",
                f"{STACK_LAYER}.ffn.experts.{{e}}.{name}.weight",
            )
        ),
    )


def _read_expert_count(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the number of experts, which some files have under Mixtral's key."""
    if not reader.has("num_experts") and reader.has("num_local_experts"):
        reader.set_defaults(num_experts=reader.get_int("num_local_experts"))
    return {}


KEYS_MIXTRAL = (
    defaults(max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=1e6),
    ignore("router_jitter_noise"),
    *llama_keys(kv_heads=8),
    constant(attention={"bias": False}),
    map_int("sliding_window", "attention.window", optional=True),
    map_experts("num_local_experts", normalize=True),
)
KEYS_QWEN = (
    defaults(hidden_size=2048, num_hidden_layers=24, max_position_embeddings=32768),
    ignore("sliding_window", "max_window_layers"),
    require("decoder_sparse_step", 1, is_written=True),
    require("mlp_only_layers", [], is_written=True),
    require("use_sliding_window", False, is_written=True),
    ConfigField(_read_expert_count),
    *llama_keys(kv_heads=4),
    map_int("moe_intermediate_size", "d_ff"),  # of one expert
    map_bool("attention_bias", "attention.bias", False),
    map_qk_norm(True),
    map_experts("num_experts"),
    map_bool("norm_topk_prob", "feed_forward.normalize", False),
)
register_llama(
    "mixtral", "MixtralForCausalLM", KEYS_MIXTRAL, _moe_rules("block_sparse_moe", ("w1", "w3", "w2"))
)
register_llama(
    "qwen3_moe", "Qwen3MoeForCausalLM", KEYS_QWEN, _moe_rules("mlp", ("gate_proj", "up_proj", "down_proj"))
)
