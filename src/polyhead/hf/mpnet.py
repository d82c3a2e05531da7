"""MPNet (Song et al., 2020): RoBERTa without segments, whose scores have T5's biases of distance as well."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.bert import common, said
from polyhead.hf.encoders import EMBEDDING, LAYER, OLD, model_of, named
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.roberta import LM_HEAD, own, tied
from polyhead.hf.table import both, one
from polyhead.text.specials import ROLES

PAD = 1  # positions are counted after it, whatever config.json says of padding
BUCKETS = 32  # of distances up to 128, as the code has them


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    fields = common(given, model_of(given, "MPNet", head="lm_head.bias"))
    given.only("relative_attention_num_buckets", BUCKETS)
    given.only("pad_token_id", PAD)
    if fields["max_len"] < PAD + 2:
        raise given.wrong(
            "max_position_embeddings", f"more than {PAD + 1}, the rows before the first position"
        )
    return fields | {
        "vocab_size": given.size("vocab_size", 30527),
        "max_len": fields["max_len"] - PAD - 1,
        "segments": 0,
        "position": {"name": "learned", "offset": PAD + 1},
        "pattern": [{"position": {"name": "t5", "buckets": BUCKETS}}],
    }


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    told = said(config) | {"relative_attention_num_buckets": BUCKETS, "pad_token_id": PAD}
    del told["type_vocab_size"]
    return told | {"max_position_embeddings": config.max_len + PAD + 1}


BLOCK = "mpnet.encoder.layer.{n}"
TABLE = (
    *one("mpnet.embeddings.word_embeddings.weight", f"{EMBEDDING}.token.weight"),
    *one("mpnet.embeddings.position_embeddings.weight", f"{EMBEDDING}.position.weight"),
    *both("mpnet.embeddings.LayerNorm", f"{EMBEDDING}.norm"),
    # all layers have the one of the first
    *one("mpnet.encoder.relative_attention_bias.weight", f"{LAYER.format(n=0)}.attn.position.weight"),
    *(row for x in "qkvo" for row in both(f"{BLOCK}.attention.attn.{x}", f"{LAYER}.attn.{x}_proj")),
    *both(f"{BLOCK}.attention.LayerNorm", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.intermediate.dense", f"{LAYER}.ffn.up_proj"),
    *both(f"{BLOCK}.output.dense", f"{LAYER}.ffn.down_proj"),
    *both(f"{BLOCK}.output.LayerNorm", f"{LAYER}.ffn_residual.norm"),
    *LM_HEAD,
)
BUFFERS = r"mpnet\.embeddings\.position_ids|mpnet\.pooler\.dense\..*"
SPECIALS = ROLES | {"cls_token": "<s>", "sep_token": "</s>", "unk_token": "[UNK]"}
MPNET = FAMILY.register("mpnet")(
    Family(
        named("MPNet"), read, write, TABLE, "mpnet.", BUFFERS, tied("mpnet."), own("mpnet."), OLD, SPECIALS
    )
)
