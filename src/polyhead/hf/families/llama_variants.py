"""Variants of Llama: Mistral, Arcee, ERNIE 4.5, Helium, Seed-OSS, Gemma, nanochat, Qwen and GLM."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.hf.config_map import (
    ConfigField,
    ModelFields,
    constant,
    defaults,
    map_bool,
    map_float,
    map_int,
    require,
)
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.layer_types import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    build_pattern,
    parse_layer_types,
    write_windows,
)
from polyhead.hf.families.layernorm_llama import GATE_UP
from polyhead.hf.families.llama import (
    BIASES,
    BLOCK,
    DERIVED_HEAD_DIM,
    DIVISIBLE_HEADS,
    TABLE,
    llama_keys,
    map_qk_norm,
    map_rope,
    register_llama,
)
from polyhead.hf.family import HF_ACTIVATIONS, STACK_LAYER, map_activation
from polyhead.hf.weight_map import CONCAT, halves_swapped, linear, weight

# Mistral (Jiang et al., 2023): Llama with sliding window attention.
MISTRAL_KEYS = (
    defaults(max_position_embeddings=131072),
    *llama_keys(kv_heads=8),
    constant(attention={"bias": False}),
    map_int("sliding_window", "attention.window", 4096, optional=True),
)
register_llama("mistral", "MistralForCausalLM", MISTRAL_KEYS)


# Arcee's AFM (2025): Llama with squared ReLU in place of a gated feed-forward.
ARCEE_ACTIVATIONS = {"relu2": Choice("relu2"), **HF_ACTIVATIONS}
# defaults of AFM-4.5B
ARCEE_DEFAULTS = defaults(hidden_size=2560, max_position_embeddings=4096, rms_norm_eps=1e-5)
ARCEE_KEYS = (
    ARCEE_DEFAULTS,
    *llama_keys(feed_forward=map_activation("hidden_act", "relu2", ARCEE_ACTIVATIONS)),
    DIVISIBLE_HEADS,
    *BIASES,
)
register_llama("arcee", "ArceeForCausalLM", ARCEE_KEYS)


# ERNIE 4.5 (Baidu, 2025), dense models: Llama with interleaved rope, and biases everywhere or nowhere.
# defaults of ERNIE 4.5 0.3B
ERNIE_KEYS = (
    defaults(hidden_size=1024, num_hidden_layers=18, num_attention_heads=16, head_dim=128, rms_norm_eps=1e-5),
    defaults(max_position_embeddings=131_072, rope_theta=500_000.0, tie_word_embeddings=True),
    *llama_keys(kv_heads=2),
    constant(position={"layout": "interleaved"}),
    map_bool("use_bias", "attention.bias feed_forward.bias", False),
)
register_llama("ernie4_5", "Ernie4_5ForCausalLM", ERNIE_KEYS)


# Helium (Kyutai, 2025): Llama with interleaved rope.
def _check_head_dim(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Require that all heads together are as wide as the model."""
    if fields["head_dim"] * fields["n_heads"] != fields["d_model"]:
        raise reader.value_error(
            "head_dim", "hidden_size / num_attention_heads, the only value of the reference implementation"
        )
    return {}


# defaults of Helium 1 2B
HELIUM_KEYS = (
    defaults(hidden_size=2560, num_attention_heads=20, num_hidden_layers=24, head_dim=128),
    defaults(max_position_embeddings=4096, rms_norm_eps=1e-8, rope_theta=100_000.0),
    *llama_keys(kv_heads=20),
    ConfigField(_check_head_dim),
    constant(position={"layout": "interleaved"}),
    map_bool("attention_bias", "attention.bias", False, true_value="qkv"),
    map_bool("mlp_bias", "feed_forward.bias", False),
)
register_llama("helium", "HeliumForCausalLM", HELIUM_KEYS)


# Seed-OSS (ByteDance, 2025): Llama with biases in q, k and v, and separately in the output projection.
SEED_OSS_BIASES = {(True, True): True, (True, False): "qkv", (False, True): "o", (False, False): False}


def _read_head_dim(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read head_dim: 128 by default, as in Seed-OSS 36B; null means d_model / n_heads."""
    if not reader.is_null("head_dim"):
        reader.set_defaults(head_dim=128)
    return {}


def _read_biases(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the biases of q, k and v, and those of the output projection."""
    qkv_bias, out_bias = reader.get_bool("attention_bias", True), reader.get_bool("attention_out_bias", False)
    return {"attention": {"bias": SEED_OSS_BIASES[qkv_bias, out_bias]}}


def _write_biases(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_biases``."""
    bias = config.attention.options.get("bias", True)
    return {"attention_bias": bias in (True, "qkv"), "attention_out_bias": bias in (True, "o")}


# defaults of Seed-OSS 36B
SEED_OSS_KEYS = (
    defaults(num_hidden_layers=64, num_attention_heads=80, attention_dropout=0.1),
    defaults(max_position_embeddings=524_288),
    ConfigField(_read_head_dim),
    *llama_keys(kv_heads=8),
    ConfigField(_read_biases, _write_biases),
    map_bool("mlp_bias", "feed_forward.bias", False),
    map_float("residual_dropout", "dropout", 0.1),
)
register_llama("seed_oss", "SeedOssForCausalLM", SEED_OSS_KEYS)


# Gemma (2024): Llama with a GELU gate, scaled embeddings, and zero-centered norm weights.
TANH = "gelu_pytorch_tanh"


def _read_gelu(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read "gelu" as its tanh form, as transformers does."""
    reader.require("hidden_activation", TANH)  # of files of 2024; transformers reads hidden_act
    if reader.values["hidden_act"] == "gelu":
        reader.values["hidden_act"] = TANH
    return {}


GEMMA_KEYS = (
    defaults(hidden_size=3072, num_hidden_layers=28, num_attention_heads=16, head_dim=256, hidden_act=TANH),
    defaults(max_position_embeddings=8192, tie_word_embeddings=True),
    require("use_bidirectional_attention", False),
    ConfigField(_read_gelu),
    *llama_keys(kv_heads=16),
    constant(norm={"zero_centered": True}, scale_embedding=True),
    map_bool("attention_bias", "attention.bias", False),
)
register_llama("gemma", "GemmaForCausalLM", GEMMA_KEYS)


# nanochat (Karpathy, 2025): norms without weights, embedding norm, squared ReLU, softcapped logits,
# reversed rope.
def _reject_yarn(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Reject yarn: transformers norms queries and keys after rope, which cancels its attention factor."""
    if fields["position"].get("scaling") == "yarn":
        raise UserError(f"{reader.location}: rope_type is 'yarn', expected one of default, linear, llama3")
    return {}


NANOCHAT_KEYS = (
    defaults(hidden_size=768, num_attention_heads=6, num_hidden_layers=12),
    *llama_keys(feed_forward=map_activation("hidden_act", "relu2", ARCEE_ACTIVATIONS)),
    ConfigField(_reject_yarn),
    map_bool("attention_bias", "attention.bias", False),
    ConfigField(map_bool("mlp_bias", "feed_forward.bias", False).read),
    map_qk_norm("unweighted"),
    constant(norm={"weight": False}, embedding_norm=True),
    map_float("final_logit_softcapping", "logit_softcap", 15.0, optional=True),
)
QK_PREFIXES = tuple(f"{BLOCK}.self_attn.{part}_proj" for part in "qk")
NANOCHAT_TABLE = (
    *(row for row in TABLE if ".mlp." not in row.hf_name and not row.hf_name.startswith(QK_PREFIXES)),
    *(
        row
        for part, theirs in zip("qk", QK_PREFIXES, strict=True)
        for row in linear(
            theirs, f"{STACK_LAYER}.attn.{part}_proj", weight=halves_swapped, bias=halves_swapped
        )
    ),
    *linear(f"{BLOCK}.mlp.fc1", f"{STACK_LAYER}.ffn.up_proj"),
    *linear(f"{BLOCK}.mlp.fc2", f"{STACK_LAYER}.ffn.down_proj"),
)
register_llama("nanochat", "NanoChatForCausalLM", NANOCHAT_KEYS, NANOCHAT_TABLE)


# Qwen2 (2024): Llama with biases in q, k and v only. Qwen3 (2025): no biases, normed queries and keys.
def _read_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the layer types. In older files with use_sliding_window, layers from ``max_window_layers`` on have
    a window.
    """
    size = reader.get_int("sliding_window", 4096)
    first_layer = reader.get_int("max_window_layers", 28, minimum=0)
    has_windows = reader.get_bool("use_sliding_window", False)
    kinds = parse_layer_types(reader, fields["n_layers"], lambda layer: has_windows and layer >= first_layer)
    if SLIDING_ATTENTION in kinds and not has_windows:
        raise reader.value_error("layer_types", "layers with full attention, without use_sliding_window")
    if FULL_ATTENTION not in kinds:
        return {"attention": {"window": size}}
    overrides = {FULL_ATTENTION: {}, SLIDING_ATTENTION: {"attention": fields["attention"] | {"window": size}}}
    return {"layer_pattern": build_pattern(kinds, overrides)}


def _write_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_layer_types``; older readers expect windows from some layer on."""
    windows = write_windows(config)
    kinds = windows["layer_types"]
    return windows | {
        "use_sliding_window": SLIDING_ATTENTION in kinds,
        "max_window_layers": kinds.index(SLIDING_ATTENTION) if SLIDING_ATTENTION in kinds else len(kinds),
    }


LAYER_TYPES = ConfigField(_read_layer_types, _write_layer_types)
QWEN2_KEYS = (
    defaults(max_position_embeddings=32768),
    require("use_mrope", False),
    *llama_keys(kv_heads=32, head_dim=DERIVED_HEAD_DIM),
    constant(attention={"bias": "qkv"}),
    LAYER_TYPES,
)
QWEN3_KEYS = (
    defaults(max_position_embeddings=32768, head_dim=128),
    *llama_keys(kv_heads=32),
    map_bool("attention_bias", "attention.bias", False),
    map_qk_norm(True),
    LAYER_TYPES,
)
register_llama("qwen2", "Qwen2ForCausalLM", QWEN2_KEYS)
register_llama("qwen3", "Qwen3ForCausalLM", QWEN3_KEYS)


# GLM-4 (Zeng et al., 2024) and GLM-4-0414 (2025): interleaved rope on half of the features, few biases.
GLM_KEYS = (
    defaults(num_hidden_layers=40, head_dim=128, max_position_embeddings=131_072, rms_norm_eps=1.5625e-7),
    defaults(partial_rotary_factor=0.5),
    *llama_keys(kv_heads=2, position=map_rope("partial_rotary_factor")),
    constant(position={"layout": "interleaved"}),
    map_bool("attention_bias", "attention.bias", True, true_value="qkv"),
)
GLM4_KEYS = (*GLM_KEYS, constant(sandwich_norm=True))  # norms after the sub-layers as well
GLM_TABLE = (
    *(row for row in TABLE if not row.hf_name.endswith(("gate_proj.weight", "up_proj.weight"))),
    *weight(f"{BLOCK}.mlp.gate_up_proj.weight", *GATE_UP, transform=CONCAT),
)
GLM4_TABLE = (
    *GLM_TABLE,
    *weight(f"{BLOCK}.post_self_attn_layernorm.weight", f"{STACK_LAYER}.attn_residual.sandwich_norm.weight"),
    *weight(f"{BLOCK}.post_mlp_layernorm.weight", f"{STACK_LAYER}.ffn_residual.sandwich_norm.weight"),
)
register_llama("glm", "GlmForCausalLM", GLM_KEYS, GLM_TABLE)
register_llama("glm4", "Glm4ForCausalLM", GLM4_KEYS, GLM4_TABLE)
