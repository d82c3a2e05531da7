"""MPNet (Song et al., 2020): RoBERTa without segments, whose scores have T5's biases of distance as well."""

from __future__ import annotations

from polyhead.hf.bert import keys
from polyhead.hf.encoders import EMBEDDING, LAYER, OLD, named, ties
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, fixed, only, passed, unsaid
from polyhead.hf.roberta import LM_HEAD, own
from polyhead.hf.table import both, one
from polyhead.text.specials import ROLES

PAD = 1  # positions are counted after it, whatever config.json says of padding
BUCKETS = 32  # of distances up to 128, as the code has them


def positions(given: Given, fields: Fields) -> Fields:
    """Of the table of positions the rows up to that of padding are never read."""
    if fields["max_len"] < PAD + 2:
        raise given.wrong(
            "max_position_embeddings", f"more than {PAD + 1}, the rows before the first position"
        )
    return {"max_len": fields["max_len"] - PAD - 1}


KEYS = (
    unsaid(vocab_size=30527),
    *keys("MPNet", head="lm_head.bias", segments=passed("type_vocab_size")),
    only("relative_attention_num_buckets", BUCKETS, said=True),
    only("pad_token_id", PAD, said=True),
    fixed(position={"name": "learned", "offset": PAD + 1}),
    fixed(pattern=[{"position": {"name": "t5", "buckets": BUCKETS}}]),
    Key(
        positions,
        lambda config: {"max_position_embeddings": config.max_len + PAD + 1},
    ),
)
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
FAMILY.register("mpnet")(
    Family(
        named("MPNet"), KEYS, TABLE, "mpnet.", BUFFERS, ties("lm_head", "mpnet"), own("mpnet."), OLD, SPECIALS
    )
)
