"""MPNet (Song et al., 2020): RoBERTa without segments, with T5's relative position bias on the scores."""

from __future__ import annotations

from polyhead.hf.config_map import ConfigField, ModelFields, constant, defaults, ignore, require
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.bert import bert_keys
from polyhead.hf.families.encoder_common import (
    ENCODER_EMBEDDING,
    ENCODER_LAYER,
    LEGACY_NORM_SUFFIXES,
    encoder_architectures,
    tied_head_weights,
)
from polyhead.hf.families.roberta import LM_HEAD, roberta_head_rules
from polyhead.hf.family import FAMILY, ModelFamily
from polyhead.hf.weight_map import linear, weight
from polyhead.tokenizers.special_tokens import SPECIAL_TOKENS_MAP

PAD = 1  # positions are counted from the next row on, whatever pad_token_id is
BUCKETS = 32  # for distances up to 128, as in the code


def _read_positions(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the position table, of which the rows up to that of padding are unused."""
    if fields["max_len"] < PAD + 2:
        raise reader.value_error(
            "max_position_embeddings", f"more than {PAD + 1}, the number of rows before the first position"
        )
    return {"max_len": fields["max_len"] - PAD - 1}


KEYS = (
    defaults(vocab_size=30527),
    *bert_keys("MPNet", head_tensor="lm_head.bias", segments=ignore("type_vocab_size")),
    require("relative_attention_num_buckets", BUCKETS, is_written=True),
    require("pad_token_id", PAD, is_written=True),
    constant(position={"name": "learned", "offset": PAD + 1}),
    constant(layer_pattern=[{"position": {"name": "t5", "buckets": BUCKETS}}]),
    ConfigField(
        _read_positions,
        lambda config: {"max_position_embeddings": config.max_len + PAD + 1},
    ),
)
BLOCK = "mpnet.encoder.layer.{n}"
TABLE = (
    *weight("mpnet.embeddings.word_embeddings.weight", f"{ENCODER_EMBEDDING}.token.weight"),
    *weight("mpnet.embeddings.position_embeddings.weight", f"{ENCODER_EMBEDDING}.position.weight"),
    *linear("mpnet.embeddings.LayerNorm", f"{ENCODER_EMBEDDING}.norm"),
    # all layers share the bias of the first one
    *weight(
        "mpnet.encoder.relative_attention_bias.weight", f"{ENCODER_LAYER.format(n=0)}.attn.position.weight"
    ),
    *(row for x in "qkvo" for row in linear(f"{BLOCK}.attention.attn.{x}", f"{ENCODER_LAYER}.attn.{x}_proj")),
    *linear(f"{BLOCK}.attention.LayerNorm", f"{ENCODER_LAYER}.attn_residual.norm"),
    *linear(f"{BLOCK}.intermediate.dense", f"{ENCODER_LAYER}.ffn.up_proj"),
    *linear(f"{BLOCK}.output.dense", f"{ENCODER_LAYER}.ffn.down_proj"),
    *linear(f"{BLOCK}.output.LayerNorm", f"{ENCODER_LAYER}.ffn_residual.norm"),
    *LM_HEAD,
)
BUFFERS = r"mpnet\.embeddings\.position_ids|mpnet\.pooler\.dense\..*"
SPECIALS = SPECIAL_TOKENS_MAP | {"cls_token": "<s>", "sep_token": "</s>", "unk_token": "[UNK]"}
FAMILY.register("mpnet")(
    ModelFamily(
        encoder_architectures("MPNet"),
        KEYS,
        TABLE,
        "mpnet.",
        BUFFERS,
        tied_head_weights("lm_head", "mpnet"),
        roberta_head_rules("mpnet."),
        LEGACY_NORM_SUFFIXES,
        SPECIALS,
    )
)
