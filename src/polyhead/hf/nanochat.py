"""nanochat (Karpathy, 2025): norms without weights, of the embeddings too, squared ReLUs, bounded scores, rope that turns backwards."""

from __future__ import annotations

from polyhead.errors import UserError
from polyhead.hf.arcee import ACTIVATIONS
from polyhead.hf.family import FAMILY, LAYER, Family, activation
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, fixed, flag, number, unsaid
from polyhead.hf.llama import BLOCK, BUFFERS, TIED, keys, query_norms
from polyhead.hf.llama import TABLE as LLAMA
from polyhead.hf.table import both, halves_swapped


def no_yarn(given: Given, fields: Fields) -> Fields:
    """The reference normalises what rope has turned, which undoes the gain of yarn."""
    if fields["position"].get("scaling") == "yarn":
        raise UserError(f"{given.where}: rope_type is 'yarn', wanted one of default, linear, llama3")
    return {}


KEYS = (
    unsaid(hidden_size=768, num_attention_heads=6, num_hidden_layers=12),
    *keys(feed_forward=activation("hidden_act", "relu2", ACTIVATIONS)),
    Key(no_yarn),
    flag("attention_bias", "attention.bias", False),
    Key(flag("mlp_bias", "feed_forward.bias", False).read),
    query_norms("plain"),
    fixed(norm={"weight": False}, embedding_norm=True),
    number("final_logit_softcapping", "logit_softcap", 15.0, optional=True),
)
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
FAMILY.register("nanochat")(Family({"CausalLM": "NanoChatForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
