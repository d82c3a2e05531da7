"""Helium (Kyutai, 2025): Llama with interleaved rope."""

from __future__ import annotations

from polyhead.hf.config_map import ConfigField, ModelFields, constant, defaults, map_bool
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.llama import BUFFERS, TABLE, TIED, llama_keys
from polyhead.hf.family import FAMILY, ModelFamily


def _check_head_dim(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Require that all heads together are as wide as the model."""
    if fields["head_dim"] * fields["n_heads"] != fields["d_model"]:
        raise reader.value_error(
            "head_dim", "hidden_size / num_attention_heads, the only value of the reference implementation"
        )
    return {}


# defaults of Helium 1 2B
KEYS = (
    defaults(hidden_size=2560, num_attention_heads=20, num_hidden_layers=24, head_dim=128),
    defaults(max_position_embeddings=4096, rms_norm_eps=1e-8, rope_theta=100_000.0),
    *llama_keys(kv_heads=20),
    ConfigField(_check_head_dim),
    constant(position={"layout": "interleaved"}),
    map_bool("attention_bias", "attention.bias", False, true_value="qkv"),
    map_bool("mlp_bias", "feed_forward.bias", False),
)
FAMILY.register("helium")(
    ModelFamily({"CausalLM": "HeliumForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED)
)
