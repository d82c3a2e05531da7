"""nanochat (Karpathy, 2025): norms without weights, embedding norm, squared ReLU, softcapped logits, reversed
rope.
"""

from __future__ import annotations

from polyhead.core.errors import UserError
from polyhead.hf.config_map import ConfigField, ModelFields, constant, defaults, map_bool, map_float
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.arcee import ACTIVATIONS
from polyhead.hf.families.llama import BLOCK, BUFFERS, TIED, llama_keys, map_qk_norm
from polyhead.hf.families.llama import TABLE as LLAMA
from polyhead.hf.family import FAMILY, STACK_LAYER, ModelFamily, map_activation
from polyhead.hf.weight_map import halves_swapped, linear


def _reject_yarn(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Reject yarn: transformers norms queries and keys after rope, which cancels its attention factor."""
    if fields["position"].get("scaling") == "yarn":
        raise UserError(f"{reader.location}: rope_type is 'yarn', expected one of default, linear, llama3")
    return {}


KEYS = (
    defaults(hidden_size=768, num_attention_heads=6, num_hidden_layers=12),
    *llama_keys(feed_forward=map_activation("hidden_act", "relu2", ACTIVATIONS)),
    ConfigField(_reject_yarn),
    map_bool("attention_bias", "attention.bias", False),
    ConfigField(map_bool("mlp_bias", "feed_forward.bias", False).read),
    map_qk_norm("unweighted"),
    constant(norm={"weight": False}, embedding_norm=True),
    map_float("final_logit_softcapping", "logit_softcap", 15.0, optional=True),
)
QK_PREFIXES = tuple(f"{BLOCK}.self_attn.{part}_proj" for part in "qk")
TABLE = (
    *(row for row in LLAMA if ".mlp." not in row.hf_name and not row.hf_name.startswith(QK_PREFIXES)),
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
FAMILY.register("nanochat")(
    ModelFamily({"CausalLM": "NanoChatForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED)
)
