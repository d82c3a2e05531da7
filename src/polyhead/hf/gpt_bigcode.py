"""GPTBigCode (Li et al., 2023, StarCoder): GPT-2 with one head of keys and values, and matrices stored as (out, in)."""

from __future__ import annotations

from polyhead.hf import gpt2
from polyhead.hf.family import FAMILY, QKV, Family
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, passed
from polyhead.hf.table import SAME, head_by_head


def kv_heads(given: Given, fields: Fields) -> Fields:
    """How many heads of keys there are ``multi_query`` says alone."""
    return {"n_kv_heads": 1 if given.flag("multi_query", True) else fields["n_heads"]}


KEYS = (
    *gpt2.KEYS,
    passed("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "num_key_value_heads"),
    passed(
        "inference_runner",
        "max_batch_size",
        "pad_key_length",
        "pre_allocate_kv_cache",
        "validate_runner_input",
    ),
    Key(kv_heads, lambda config: {"multi_query": config.kv_heads == 1}),
)
TABLE = tuple(row._replace(step=head_by_head if len(row.ours) == len(QKV) else SAME) for row in gpt2.TABLE)
FAMILY.register("gpt_bigcode")(
    Family(
        {"CausalLM": "GPTBigCodeForCausalLM"},
        KEYS,
        TABLE,
        "transformer.",
        gpt2.GPT2.buffers,
        gpt2.GPT2.tied,
    )
)
