"""GPTBigCode (Li et al., 2023, StarCoder): GPT-2 with multi-query attention, matrices stored as (out, in)."""

from __future__ import annotations

from polyhead.hf.config_map import ConfigField, ModelFields, ignore
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families import gpt2
from polyhead.hf.family import FAMILY, QKV_PROJ, ModelFamily
from polyhead.hf.weight_map import IDENTITY, per_head_qkv


def _read_kv_heads(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the number of key/value heads, which depends only on ``multi_query``."""
    return {"n_kv_heads": 1 if reader.get_bool("multi_query", True) else fields["n_heads"]}


KEYS = (
    *gpt2.KEYS,
    ignore("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "num_key_value_heads"),
    ignore(
        "inference_runner",
        "max_batch_size",
        "pad_key_length",
        "pre_allocate_kv_cache",
        "validate_runner_input",
    ),
    ConfigField(_read_kv_heads, lambda config: {"multi_query": config.kv_heads == 1}),
)
TABLE = tuple(
    row._replace(transform=per_head_qkv if len(row.param_names) == len(QKV_PROJ) else IDENTITY)
    for row in gpt2.TABLE
)
FAMILY.register("gpt_bigcode")(
    ModelFamily(
        {"CausalLM": "GPTBigCodeForCausalLM"},
        KEYS,
        TABLE,
        "transformer.",
        gpt2.GPT2_FAMILY.buffer_pattern,
        gpt2.GPT2_FAMILY.tied_weights,
    )
)
