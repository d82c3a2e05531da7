"""Small variants of Llama: Mistral, Arcee, ERNIE 4.5, Helium, Seed-OSS, Gemma and nanochat."""

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
from polyhead.hf.families.llama import (
    BIASES,
    BLOCK,
    DIVISIBLE_HEADS,
    TABLE,
    llama_keys,
    map_qk_norm,
    register_llama,
)
from polyhead.hf.family import HF_ACTIVATIONS, STACK_LAYER, map_activation
from polyhead.hf.weight_map import halves_swapped, linear

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
