"""Command R, Aya (Cohere, 2024) and Command R7B: parallel sub-layers after one norm, interleaved rope."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.core.option_types import resolve_factor
from polyhead.hf.config_map import (
    PARALLEL_BLOCK,
    ConfigField,
    ModelFields,
    constant,
    defaults,
    ignore,
    map_bool,
    map_norm,
)
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.granite import read_positive
from polyhead.hf.families.layer_types import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    build_pattern,
    parse_layer_types,
    read_window,
    rope_options,
    write_windows,
)
from polyhead.hf.families.llama import (
    BLOCK,
    DIVISIBLE_HEADS,
    llama_keys,
    map_qk_norm,
    register_llama,
    write_rope,
)
from polyhead.hf.families.llama import TABLE as LLAMA
from polyhead.hf.family import STACK_LAYER
from polyhead.hf.weight_map import STACK, weight


def _read_logit_scale(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read logit_scale: transformers multiplies the logits, we divide the input of the head."""
    divisor = 1 / read_positive(reader, "logit_scale")
    return {"logits_scale": divisor == fields["d_model"] ** 0.5 or divisor}


def _read_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the layer types: by default three of four layers have a window, the others no positions."""
    period = reader.get_int("sliding_window_pattern", 4)
    kinds = parse_layer_types(reader, fields["n_layers"], lambda layer: (layer + 1) % period > 0)
    overrides: dict[str, ModelFields] = {FULL_ATTENTION: {"position": "none"}}
    if SLIDING_ATTENTION in kinds:
        overrides[SLIDING_ATTENTION] = {"attention": fields["attention"] | {"window": read_window(reader)}}
    return {"layer_pattern": build_pattern(kinds, overrides)}


def _write_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_layer_types``, with the rope of the layers that have it."""
    return write_rope(rope_options(config)) | write_windows(config, config.max_len)


_COMMON_KEYS = (
    defaults(hidden_size=8192, num_hidden_layers=40, num_attention_heads=64, max_position_embeddings=8192),
    defaults(logit_scale=0.0625, tie_word_embeddings=True),
    ignore("rms_norm_eps", "model_max_length"),  # transformers reads other keys
    *llama_keys(norms=map_norm("layer_norm_eps", "layernorm", 1e-5)),
    DIVISIBLE_HEADS,
    constant(block=PARALLEL_BLOCK),
    constant(norm={"bias": False}, position={"layout": "interleaved"}),
    map_bool("attention_bias", "attention.bias", False),
    ConfigField(
        _read_logit_scale,
        lambda config: {"logit_scale": 1 / resolve_factor(config.logits_scale, config.d_model**0.5)},
    ),
)
KEYS = (defaults(rope_theta=500_000.0), *_COMMON_KEYS, map_qk_norm("per_head", "use_qk_norm"))
# keys in the files that transformers does not read
_UNREAD_KEYS = """
    _sliding_window_pattern cache_implementation layer_switch order_of_interleaved_layers
    position_embedding_type rotary_pct     use_embedding_sharing use_gated_activation use_parallel_block
    use_parallel_embedding
""".split()  # noqa: SIM905
KEYS_2 = (
    ignore("sliding_window", *_UNREAD_KEYS),
    *_COMMON_KEYS,
    ConfigField(_read_layer_types, _write_layer_types),
)
TABLE = (
    *(row for row in LLAMA if "post_attention" not in row.hf_name and "_norm." not in row.hf_name),
    *weight(f"{BLOCK}.self_attn.q_norm.weight", f"{STACK_LAYER}.attn.q_norm.heads.{{q}}", transform=STACK),
    *weight(f"{BLOCK}.self_attn.k_norm.weight", f"{STACK_LAYER}.attn.k_norm.heads.{{k}}", transform=STACK),
)
register_llama("cohere", "CohereForCausalLM", KEYS, TABLE)
register_llama("cohere2", "Cohere2ForCausalLM", KEYS_2, TABLE)
