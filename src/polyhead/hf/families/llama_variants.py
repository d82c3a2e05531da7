"""Mistral, Mixtral, Arcee, ERNIE, Helium, Seed-OSS, Gemma, nanochat, Qwen, GLM, Granite: Llama variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.option_types import resolve_factor
from polyhead.hf.config_map import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    ConfigField,
    ConfigReader,
    ModelFields,
    build_pattern,
    constant,
    defaults,
    ignore,
    map_bool,
    map_float,
    map_int,
    parse_layer_types,
    require,
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
from polyhead.hf.family import (
    CONCAT,
    HF_ACTIVATIONS,
    HF_GATED_ACTIVATIONS,
    STACK_LAYER,
    WeightRule,
    halves_swapped,
    linear,
    map_activation,
    per_expert,
    weight,
)

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


# Mixtral (Jiang et al., 2024), Mistral with experts, and Qwen3-MoE (2025): experts in every layer.
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


# Granite 3 (IBM, 2024): Llama with scales on embeddings, scores, sub-layer outputs, and the input of the
# head.
#
# The MoE models store the experts of a layer in one tensor.
def read_positive(reader: ConfigReader, key: str) -> float:
    """Return a positive factor, 1 by default."""
    value = reader.get_float(key, 1.0)
    if value <= 0:
        raise reader.value_error(key, "a number above 0")
    return value


def _read_scales(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the four scales."""
    root, usual = fields["d_model"] ** 0.5, fields["head_dim"] ** -0.5
    scale = read_positive(reader, "attention_multiplier")
    embeddings = read_positive(reader, "embedding_multiplier")
    outputs = read_positive(reader, "logits_scaling")
    return {
        "attention": {"scale": None if scale == usual else scale},
        "scale_embedding": embeddings == root or embeddings,
        "residual_scale": read_positive(reader, "residual_multiplier"),
        "logits_scale": outputs == root or outputs,
    }


def _write_scales(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_scales``."""
    root, scale = config.d_model**0.5, config.attention.options.get("scale")
    assert config.head_dim is not None
    return {
        "attention_multiplier": config.head_dim**-0.5 if scale is None else scale,
        "embedding_multiplier": resolve_factor(config.scale_embedding, root),
        "residual_multiplier": config.residual_scale,
        "logits_scaling": resolve_factor(config.logits_scale, root),
    }


SCALES = ConfigField(_read_scales, _write_scales)
KEYS = (*llama_keys(), *BIASES, SCALES)
# the weights of the chosen experts are normalized
KEYS_MIXTURE = (
    *llama_keys(),
    map_bool("attention_bias", "attention.bias", False),
    SCALES,
    map_experts("num_local_experts", normalize=True),
)
FFN, EXPERT = f"{BLOCK}.block_sparse_moe", f"{STACK_LAYER}.ffn.experts.{{e}}"
EXPERT_INPUTS = (f"{EXPERT}.gate_proj.weight", f"{EXPERT}.up_proj.weight")
MIXTURE = (
    *NON_MLP_RULES,
    *weight(f"{FFN}.router.layer.weight", f"{STACK_LAYER}.ffn.router.weight"),
    *weight(f"{FFN}.input_linear.weight", *EXPERT_INPUTS, transform=per_expert),
    *weight(f"{FFN}.output_linear.weight", f"{EXPERT}.down_proj.weight", transform=per_expert),
)
register_llama("granite", "GraniteForCausalLM", KEYS)
register_llama("granitemoe", "GraniteMoeForCausalLM", KEYS_MIXTURE, MIXTURE)
