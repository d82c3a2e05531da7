"""nanochat (Karpathy, 2025): norms without weights, of the embeddings too, squared ReLUs, bounded scores, rope that turns backwards."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.errors import UserError
from polyhead.hf.arcee import ACTIVATIONS
from polyhead.hf.family import FAMILY, LAYER, Family, activation_of
from polyhead.hf.gemma2 import bound
from polyhead.hf.given import Given
from polyhead.hf.llama import BLOCK, BUFFERS, TIED, attention, biased, common, said
from polyhead.hf.llama import TABLE as LLAMA
from polyhead.hf.table import both, halves_swapped


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. The reference normalises what rope has turned, which undoes the gain of yarn."""
    given.assume(hidden_size=768, hidden_act="relu2", num_attention_heads=6, num_hidden_layers=12)
    fields = common(given, max_len=2048, activations=ACTIVATIONS)
    if fields["position"].get("scaling") == "yarn":
        raise UserError(f"{given.where}: rope_type is 'yarn', wanted one of default, linear, llama3")
    bias, eps = given.flag("attention_bias", False), fields["norm"]["eps"]
    return fields | biased(given, fields) | attention(given, bias=bias, qk_norm="plain", qk_eps=eps) | {
        "norm": fields["norm"] | {"weight": False},
        "embedding_norm": True,
        "logit_softcap": bound(given, "final_logit_softcapping", 15.0),
    }  # fmt: skip


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return said(config) | {
        "hidden_act": activation_of(config.feed_forward, ACTIVATIONS),
        "attention_bias": config.attention.options.get("bias") is True,
        "final_logit_softcapping": config.logit_softcap,
    }


TURNED = tuple(f"{BLOCK}.self_attn.{part}_proj" for part in "qk")
TABLE = (
    *(row for row in LLAMA if ".mlp." not in row.theirs and not row.theirs.startswith(TURNED)),
    *(
        row
        for part, theirs in zip("qk", TURNED, strict=True)
        for row in both(theirs, f"{LAYER}.attn.{part}_proj", weight=halves_swapped, bias=halves_swapped)
    ),
    *both(f"{BLOCK}.mlp.fc1", f"{LAYER}.ffn.up_proj"),
    *both(f"{BLOCK}.mlp.fc2", f"{LAYER}.ffn.down_proj"),
)
NANOCHAT = FAMILY.register("nanochat")(
    Family({"CausalLM": "NanoChatForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
