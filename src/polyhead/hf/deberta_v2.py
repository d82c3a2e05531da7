"""DeBERTa-v2 and v3 (He et al., 2021): BERT whose attention also reads distances, by its own queries and keys."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.bert import BODY
from polyhead.hf.encoders import (
    EMBEDDING,
    LAYER,
    SPECIALS,
    as_layers,
    model_of,
    named,
    scores,
    ties,
    top,
    top_said,
)
from polyhead.hf.family import FAMILY, Family, activation
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, only, passed, size, unsaid
from polyhead.hf.pattern import part
from polyhead.hf.table import both, one

TERMS = {"both": ["p2c", "c2p"], "c2p": ["c2p"], "p2c": ["p2c"]}
POOLED = ("gelu", "tanh", "relu")


def checked(given: Given, fields: Fields) -> Fields:
    """What is built in one way alone."""
    given.only("embedding_size", fields["d_model"])
    given.only("pooler_hidden_size", fields["d_model"])
    given.only("attention_head_size", fields["d_model"] // fields["n_heads"])
    return {}


def model(given: Given, fields: Fields) -> Fields:
    """What stands on the encoder. The head over the vocabulary has two forms, of which the first (``legacy`` false) has no matrix."""
    pooled = {"name": "first", "activation": given.word("pooler_hidden_act", "gelu", POOLED)}
    tied = {} if given.flag("legacy", True) else {"tie_embeddings": "all"}
    return top(given, model_of(given, "DebertaV2"), pooled=pooled) | tied


def positions(given: Given, fields: Fields) -> Fields:
    """Distances in each layer, beside positions in the embeddings or without any."""
    vectors = distances(given, fields["max_len"], fields["norm"]["eps"]) | {"dropout": fields["dropout"]}
    learned = given.flag("position_biased_input", True)
    return {
        "position": "learned" if learned else vectors,
        "pattern": [{"position": vectors}] if learned else [],
    }


def distances(given: Given, max_len: int, eps: float) -> dict[str, Any]:
    """The position scheme of the layers."""
    for key in ("relative_attention", "share_att_key"):
        if not given.flag(key, False):
            raise given.wrong(key, "true, all that is built")
    given.passed("pos_att_type")
    said = given.values.get("pos_att_type")
    words = [word.strip() for word in said.lower().split("|")] if isinstance(said, str) else said
    terms = next(
        (name for name, parts in TERMS.items() if isinstance(words, list) and {*map(str, words)} == {*parts}),
        None,
    )
    if terms is None:
        raise given.wrong("pos_att_type", "'p2c|c2p' or one of the two")
    farthest = given.size("max_relative_positions", -1, least=-1)
    farthest, buckets = farthest if farthest > 0 else max_len, given.size("position_buckets", -1, least=-1)
    normed = given.word("norm_rel_ebd", "none", ["none", "layer_norm"]) == "layer_norm"
    return {
        "name": "disentangled",
        "span": buckets if buckets > 0 else farthest,
        "max_distance": farthest if buckets > 0 else None,
        "terms": terms,
        "norm_eps": eps if normed else None,
    }


def positions_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``positions``."""
    vectors = part(config, "position", 0).options
    span, farthest = vectors.get("span", 256), vectors.get("max_distance")
    return {
        "relative_attention": True,
        "share_att_key": True,
        "pos_att_type": TERMS[vectors.get("terms", "both")],
        "position_biased_input": config.position.name == "learned",
        "max_relative_positions": farthest or span,
        "position_buckets": span if farthest else -1,
        "norm_rel_ebd": "none" if vectors.get("norm_eps") is None else "layer_norm",
    }


def model_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``model``."""
    pooled = (
        config.pooling.options.get("activation") if config.pooling else "tanh" if config.labels else "gelu"
    )
    return top_said(config) | {
        "pooler_hidden_act": pooled if pooled in POOLED else "gelu",
        "pooler_hidden_size": config.d_model,
        "pooler_dropout": 0,
        "legacy": True,
    }


# what is not given is as in DeBERTa-v2-XLarge
KEYS = (
    unsaid(hidden_size=1536, num_hidden_layers=24, num_attention_heads=24, intermediate_size=6144),
    unsaid(vocab_size=128100, layer_norm_eps=1e-7),
    # dropout of what stands on the encoder, and keys that no code reads
    passed("pooler_dropout", "cls_dropout", "classifier_dropout", "conv_act", "conv_groups"),
    passed("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout"),
    only("conv_kernel_size", 0),
    *BODY,
    Key(checked),
    Key(model, model_said),
    Key(positions, positions_said),
    size("type_vocab_size", "segments", 0, least=0),
    activation("hidden_act", "gelu"),
    Key(as_layers),
)


def added(config: ModelConfig) -> bool:
    """Whether positions are added to the embeddings as well."""
    return config.position.name == "learned"


BLOCK = "deberta.encoder.layer.{n}"
# all layers have the vectors of the first, those of the embedding where nothing is added there
FIRST = LAYER.format(n=0)
TABLE = (
    *one("deberta.embeddings.word_embeddings.weight", f"{EMBEDDING}.token.weight"),
    *one("deberta.embeddings.position_embeddings.weight", f"{EMBEDDING}.position.weight", where=added),
    *one("deberta.embeddings.token_type_embeddings.weight", f"{EMBEDDING}.segment.weight"),
    *both("deberta.embeddings.LayerNorm", f"{EMBEDDING}.norm"),
    *one("deberta.encoder.rel_embeddings.weight", f"{EMBEDDING}.position.weight", where=lambda config: not added(config)),
    *one("deberta.encoder.rel_embeddings.weight", f"{FIRST}.attn.position.weight"),
    *both("deberta.encoder.LayerNorm", f"{EMBEDDING}.position.norm"),
    *both("deberta.encoder.LayerNorm", f"{FIRST}.attn.position.norm"),
    *both(f"{BLOCK}.attention.self.query_proj", f"{LAYER}.attn.q_proj"),
    *both(f"{BLOCK}.attention.self.key_proj", f"{LAYER}.attn.k_proj"),
    *both(f"{BLOCK}.attention.self.value_proj", f"{LAYER}.attn.v_proj"),
    *both(f"{BLOCK}.attention.output.dense", f"{LAYER}.attn.o_proj"),
    *both(f"{BLOCK}.attention.output.LayerNorm", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.intermediate.dense", f"{LAYER}.ffn.up_proj"),
    *both(f"{BLOCK}.output.dense", f"{LAYER}.ffn.down_proj"),
    *both(f"{BLOCK}.output.LayerNorm", f"{LAYER}.ffn_residual.norm"),
    *both("pooler.dense", "pooler.proj"),
    *both("classifier", "classifier"),
    *both("cls.predictions.transform.dense", "transform"),
    *both("cls.predictions.transform.LayerNorm", "transform_norm"),
    *scores("cls.predictions"),
)  # fmt: skip
# positions where none are added, and heads of the first training: over the vocabulary, and for which tokens were replaced
BUFFERS = r"deberta\.embeddings\.position_.*|cls\.predictions\..*|lm_predictions\..*|mask_predictions\..*"
TIED = ties("cls.predictions", "deberta")
NEW = "lm_predictions.lm_head"  # the same head in the files of the authors
RENAMED = {
    **{f"{NEW}.{name}.{end}": f"cls.predictions.transform.{name}.{end}" for name in ("dense", "LayerNorm") for end in ("weight", "bias")},
    f"{NEW}.bias": "cls.predictions.bias",
}  # fmt: skip
FAMILY.register("deberta-v2")(
    Family(named("DebertaV2"), KEYS, TABLE, "deberta.", BUFFERS, TIED, renamed=RENAMED, specials=SPECIALS)
)
