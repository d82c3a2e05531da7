"""BART (Lewis et al., 2019), and the tables shared by mBART, Marian, Pegasus and M2M100."""

from __future__ import annotations

from polyhead.hf.config_map import (
    ConfigField,
    ModelFields,
    constant,
    ignore,
    map_bool,
    map_float,
    map_int,
    require,
)
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.family import FAMILY, HEAD_WEIGHT, ModelFamily, map_activation
from polyhead.hf.tokenizers.legacy_tokenizers import load_roberta_bpe
from polyhead.hf.weight_map import COPY, TensorTransform, WeightRule, linear, weight
from polyhead.tokenizers.special_tokens import SPECIAL_TOKENS_MAP

BIAS = "final_logits_bias"
SHARED_EMBEDDING = "model.shared.weight"
SOURCE_EMBEDDING = "model.encoder.embed_tokens.weight"
TARGET_EMBEDDING = "model.decoder.embed_tokens.weight"
LM_HEAD = "lm_head.weight"
ROW = TensorTransform(lambda params: params[0][None], lambda tensor, rows: [tensor[0]])  # (V,) as (1, V)


def _map_both_sides(name: str, field: str, default: int) -> ConfigField:
    """Map a size that encoder and decoder must share. A missing key of the decoder means its own default."""
    encoder, decoder = f"encoder_{name}", f"decoder_{name}"

    def read(reader: ConfigReader, fields: ModelFields) -> ModelFields:
        value = reader.get_int(encoder, default)
        reader.set_defaults(**{decoder: default})
        reader.require(decoder, value)
        return {field: value}

    return ConfigField(read, lambda config: dict.fromkeys((encoder, decoder), getattr(config, field)))


def _read_tied_embeddings(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read whether all embeddings are tied, or each is separate.

    Before version 5, transformers shared the embeddings of both sides even in the second case, and files of
    that time hold one copy.
    """
    untied_value = "none" if reader.has_tensor(TARGET_EMBEDDING, True) else "inputs"
    return {"tie_embeddings": "all" if reader.get_bool("tie_word_embeddings", True) else untied_value}


def bart_keys(
    *, norm_first: bool, embedding_norm: bool = False, static: bool = True
) -> tuple[ConfigField, ...]:
    """Return the rows shared by these families.

    ``norm_first``: pre-norm, otherwise post-norm; ``embedding_norm``: a norm on the embeddings; ``static``:
    sinusoidal positions, otherwise learned ones.
    """
    return (
        # of configs before 2021, which state properties of the family
        require("normalize_before", norm_first),
        require("add_final_layer_norm", norm_first),
        require("normalize_embedding", embedding_norm),
        require("static_position_embeddings", static),
        require("add_bias_logits", False),
        ignore("extra_pos_embeddings", "force_bos_token_to_be_generated", "save_step"),
        ignore("init_std", "encoder_layerdrop", "decoder_layerdrop"),
        ignore("classifier_dropout", "classif_dropout", "num_hidden_layers"),
        constant(kind="encoder-decoder", attention="softmax", norm="layernorm", init="normal"),
        constant(norm_first=norm_first, embedding_norm=embedding_norm),
        ConfigField(
            _read_tied_embeddings,
            lambda config: {"tie_word_embeddings": config.tie_embeddings in ("all", "target")},
        ),
        map_int("vocab_size", "vocab_size"),
        map_int("d_model", "d_model", 1024),
        map_int("encoder_layers", "n_layers", 12),
        map_int("decoder_layers", "n_decoder_layers", 12),
        _map_both_sides("attention_heads", "n_heads", 16),
        _map_both_sides("ffn_dim", "d_ff", 4096),
        map_int("max_position_embeddings", "max_len", 1024),
        map_activation("activation_function", "gelu"),
        map_float("attention_dropout", "attention.dropout", 0.0),
        map_float("activation_dropout", "feed_forward.dropout", 0.0),
        map_float("dropout", "dropout", 0.1),
        map_bool("scale_embedding", "scale_embedding", False),
        ConfigField(lambda reader, fields: {"lm_head_bias": reader.has_tensor(BIAS, True)}),
        ConfigField(write=lambda config: {"is_encoder_decoder": True}),
    )


LEARNED_POSITIONS = constant(position={"name": "learned", "offset": 2})
KEYS = (*bart_keys(norm_first=False, embedding_norm=True, static=False), LEARNED_POSITIONS)


def _stack_rules(side: str) -> list[WeightRule]:
    """Return the rows of the encoder or the decoder."""
    hf_layer, layer = f"model.{side}.layers.{{n}}", f"{side}.layers.{{n}}"
    rules = [
        *weight(f"model.{side}.embed_positions.weight", f"{side}_embedding.position.weight"),
        *linear(f"model.{side}.layernorm_embedding", f"{side}_embedding.norm"),
    ]
    for name, attention, residual in [("self_attn", "attn", "attn"), ("encoder_attn", "cross", "cross")]:
        for x in "qkv":
            rules += linear(f"{hf_layer}.{name}.{x}_proj", f"{layer}.{attention}.{x}_proj")
        rules += linear(f"{hf_layer}.{name}.out_proj", f"{layer}.{attention}.o_proj")
        rules += linear(f"{hf_layer}.{name}_layer_norm", f"{layer}.{residual}_residual.norm")
    return [
        *rules,
        *linear(f"{hf_layer}.fc1", f"{layer}.ffn.up_proj"),
        *linear(f"{hf_layer}.fc2", f"{layer}.ffn.down_proj"),
        *linear(f"{hf_layer}.final_layer_norm", f"{layer}.ffn_residual.norm"),
        *linear(f"model.{side}.layer_norm", f"{side}.final_norm"),
    ]


EMBEDDING = "encoder_embedding.token.weight"
BODY = (
    *weight(
        SOURCE_EMBEDDING, EMBEDDING, transform=COPY, condition=lambda config: config.tie_embeddings != "all"
    ),
    *weight(
        TARGET_EMBEDDING,
        EMBEDDING,
        transform=COPY,
        condition=lambda config: config.tie_embeddings == "inputs",
    ),
    *weight(TARGET_EMBEDDING, "decoder_embedding.token.weight"),
    *_stack_rules("encoder"),
    *_stack_rules("decoder"),
    *weight(BIAS, "head.bias", transform=ROW),
    *weight(LM_HEAD, HEAD_WEIGHT),
)
# the shared embedding is always in the files, even if encoder, decoder and head have their own
TABLE = (*weight(SHARED_EMBEDDING, EMBEDDING), *BODY)
TIED = {SOURCE_EMBEDDING: SHARED_EMBEDDING, TARGET_EMBEDDING: SHARED_EMBEDDING, LM_HEAD: SHARED_EMBEDDING}
BUFFERS = r"model\.(en|de)coder\.version"  # of files before 2021
FAMILY.register("bart")(
    ModelFamily(
        {"Seq2Seq": "BartForConditionalGeneration"},
        KEYS,
        TABLE,
        "model.",
        BUFFERS,
        TIED,
        special_tokens=SPECIAL_TOKENS_MAP,
        load_legacy_tokenizer=load_roberta_bpe,
    )
)
