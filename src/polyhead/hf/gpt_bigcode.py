"""GPTBigCode (Li et al., 2023, StarCoder): GPT-2 with one head of keys and values, and matrices stored as (out, in)."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf import gpt2
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.table import SAME, head_by_head


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. How many heads of keys there are ``multi_query`` says alone."""
    given.passed("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "num_key_value_heads")
    given.passed(
        "inference_runner",
        "max_batch_size",
        "pad_key_length",
        "pre_allocate_kv_cache",
        "validate_runner_input",
    )
    fields = gpt2.read(given)
    return fields | {"n_kv_heads": 1 if given.flag("multi_query", True) else fields["n_heads"]}


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return gpt2.write(config) | {"multi_query": config.kv_heads == 1}


TABLE = tuple(
    row._replace(step=head_by_head if len(row.ours) == len(gpt2.QKV) else SAME) for row in gpt2.TABLE
)
GPT_BIGCODE = FAMILY.register("gpt_bigcode")(
    Family(
        {"CausalLM": "GPTBigCodeForCausalLM"},
        read,
        write,
        TABLE,
        "transformer.",
        gpt2.GPT2.buffers,
        gpt2.GPT2.tied,
    )
)
