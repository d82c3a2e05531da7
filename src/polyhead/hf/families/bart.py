"""BART (Lewis et al., 2019), and mBART, M2M100, NLLB, Marian and Pegasus, which share its tables."""

from __future__ import annotations

from functools import partial

from tokenizers.processors import TemplateProcessing
from torch import Tensor

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError, format_value
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.config_map import (
    ConfigField,
    ConfigReader,
    ModelFields,
    constant,
    defaults,
    ignore,
    map_bool,
    map_float,
    map_int,
    require,
)
from polyhead.hf.family import (
    COPY,
    FAMILY,
    HEAD_WEIGHT,
    ModelFamily,
    TensorTransform,
    TokenizerFactory,
    WeightRule,
    linear,
    map_activation,
    weight,
)
from polyhead.hf.tokenizers.legacy_tokenizers import (
    check_tokenizer_class,
    load_fairseq,
    load_roberta_bpe,
    read_tokenizer_class,
)
from polyhead.hf.tokenizers.spm import build_tokenizer, read_spm_model, read_vocab
from polyhead.nn.position.absolute import sinusoids
from polyhead.tokenizers.special_tokens import (
    SPECIAL_TOKENS,
    SPECIAL_TOKENS_MAP,
    TARGET_LANGUAGE_TOKEN,
    UNK_TOKEN,
)
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import AddedToken

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


# M2M100 (Fan et al., 2020) and NLLB: many-to-many translation with language tokens.
M2M100_KEYS = (
    defaults(attention_dropout=0.1, activation_function="relu", scale_embedding=True),
    *bart_keys(norm_first=True),
    constant(position={"name": "sinusoidal", "layout": "halves", "endpoint": True}, lm_head_bias=False),
    ConfigField(
        lambda reader, fields: {"position": {"offset": int(reader.get_float("pad_token_id", 1)) + 1}},
        lambda config: {"pad_token_id": config.position.options.get("offset", 1) - 1},
    ),
)
# language codes in the order of their ids, by the name of the list
LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he "
        "hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl "
        "no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh "
        "yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}


def _load_tokenizer(files: CheckpointFiles) -> TokenizerFactory:
    """Build the tokenizer: pieces, their ids in vocab.json, then one token per language.

    The source's language token, such as ``__de__``, begins a text.
    """
    check_tokenizer_class(files, "M2M100Tokenizer")
    path, ids = files.directory / "tokenizer_config.json", read_vocab(files)
    config = files.read_json(path.name) or {}
    codes = config.get("language_codes", "m2m100")
    if not isinstance(codes, str) or codes not in LANGUAGES:
        raise UserError(
            f"{path}: language_codes is {format_value(codes)}, expected one of {', '.join(LANGUAGES)}"
        )
    languages = [f"__{code}__" for code in LANGUAGES[codes].split()]
    source = f"__{config.get('src_lang') or 'en'}__"
    if source not in languages:
        raise UserError(
            f"{path}: src_lang is {format_value(config['src_lang'])}, expected one of {LANGUAGES[codes]}"
        )
    pieces = read_spm_model(files, "sentencepiece.bpe.model")
    tokenizer = build_tokenizer(pieces, ids, [token for token in ids if token in SPECIAL_TOKENS])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in languages])
    eos = SPECIAL_TOKENS_MAP["eos_token"]
    tokenizer.post_processor = TemplateProcessing(
        single=f"{source} $A {eos}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (source, eos)],
    )
    return partial(Tokenizer, tokenizer)


OLD_BUFFERS = BUFFERS + r"|model\.(en|de)coder\.embed_positions\.weights"  # sinusoids of older files
FAMILY.register("m2m_100")(
    ModelFamily(
        {"Seq2Seq": "M2M100ForConditionalGeneration"},
        M2M100_KEYS,
        TABLE,
        "model.",
        OLD_BUFFERS,
        TIED,
        special_tokens=SPECIAL_TOKENS_MAP,
        load_legacy_tokenizer=_load_tokenizer,
    )
)


# mBART (Liu et al., 2020) and mBART-50 (Tang et al., 2020): multilingual BART with pre-norm.
# language codes in the order of their ids; mBART-50 has those of mBART first
MBART_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM "
    "ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
MBART_LANGUAGES_50 = (
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE "
    "sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)


def _load_mbart_tokenizer(files: CheckpointFiles) -> TokenizerFactory:
    """Build the tokenizer. A text ends with its language token in mBART and begins with it in mBART-50."""
    path = files.directory / "tokenizer_config.json"
    config = files.read_json(path.name) or {}
    is_mbart50 = read_tokenizer_class(files) == "MBart50Tokenizer"
    languages = f"{MBART_LANGUAGES} {MBART_LANGUAGES_50}" if is_mbart50 else MBART_LANGUAGES
    source = config.get("src_lang") or "en_XX"
    if source not in languages.split():
        raise UserError(f"{path}: src_lang is {format_value(source)}, expected one of {languages}")
    template = (
        {"prefix": source, "suffix": "</s>"} if is_mbart50 else {"prefix": "", "suffix": f"</s> {source}"}
    )
    return load_fairseq(files, languages.split(), **template)


FAMILY.register("mbart")(
    ModelFamily(
        {"Seq2Seq": "MBartForConditionalGeneration"},
        (*bart_keys(norm_first=True, embedding_norm=True, static=False), LEARNED_POSITIONS),
        TABLE,
        "model.",
        BUFFERS,
        TIED,
        special_tokens=SPECIAL_TOKENS_MAP,
        load_legacy_tokenizer=_load_mbart_tokenizer,
    )
)


# Marian (Junczys-Dowmunt et al., 2018), the format of the OPUS-MT models.
def _read_vocabulary_sharing(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read whether both sides share the embeddings; they always share the vocabulary."""
    reader.require("decoder_vocab_size", fields["vocab_size"])
    is_untied = not reader.get_bool("share_encoder_decoder_embeddings", True)
    return {"tie_embeddings": "target"} if is_untied and fields["tie_embeddings"] == "all" else {}


MARIAN_KEYS = (
    *bart_keys(norm_first=False),
    constant(position={"name": "sinusoidal", "layout": "halves"}),
    ConfigField(
        _read_vocabulary_sharing,
        lambda config: (
            {
                "decoder_vocab_size": config.vocab_size,
                "share_encoder_decoder_embeddings": config.tie_embeddings == "all",
            }
        ),
    ),
)


def _load_marian_tokenizer(files: CheckpointFiles) -> TokenizerFactory:
    """Build one tokenizer for sources and one for translations; vocab.json has the ids of both.

    Models with several target languages have a token for each, such as ``>>fra<<``, which begins a source.
    """
    path = files.directory / "tokenizer_config.json"
    if (files.read_json(path.name) or {}).get("separate_vocabs"):
        raise UserError(
            f"{path}: separate_vocabs is true, expected false: only a shared vocabulary is supported, "
            "without target_vocab.json"
        )
    ids = read_vocab(files)
    specials = [token for token in ids if token in SPECIAL_TOKENS or TARGET_LANGUAGE_TOKEN.fullmatch(token)]
    source, target = (
        build_tokenizer(read_spm_model(files, name), ids, specials) for name in ("source.spm", "target.spm")
    )
    return lambda roles: Tokenizer(source, roles, target_tokenizer=Tokenizer(target, roles))


# unless all embeddings are tied, config.json states no sharing and the files hold only those of encoder and
# decoder
MARIAN_TABLE = (
    *weight(SHARED_EMBEDDING, EMBEDDING, condition=lambda config: config.tie_embeddings == "all"),
    *BODY,
)
# sinusoids of older files, and an embedding that no code reads
MARIAN_BUFFERS = r"model\.((en|de)coder\.embed_positions|shared)\.weight"
FAMILY.register("marian")(
    ModelFamily(
        {"Seq2Seq": "MarianMTModel"},
        MARIAN_KEYS,
        MARIAN_TABLE,
        "model.",
        MARIAN_BUFFERS,
        TIED,
        special_tokens={"eos_token": "</s>", "pad_token": "<pad>", "unk_token": UNK_TOKEN},
        load_legacy_tokenizer=_load_marian_tokenizer,
    )
)


# Pegasus (Zhang et al., 2020): BART with pre-norm and sinusoids in halves, which are also in its files.
PEGASUS_KEYS = (
    require("do_blenderbot_90_layernorm", False),
    *bart_keys(norm_first=True),
    constant(position={"name": "sinusoidal", "layout": "halves"}),
)


def _generate_positions(config: ModelConfig) -> dict[str, Tensor]:
    """Return the sinusoids of both sides, which other tools read from the files."""
    names = (f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder"))
    return {name: sinusoids(config.max_len, config.d_model, layout="halves") for name in names}


FAMILY.register("pegasus")(
    ModelFamily(
        {"Seq2Seq": "PegasusForConditionalGeneration"},
        PEGASUS_KEYS,
        TABLE,
        "model.",
        MARIAN_BUFFERS,
        TIED,
        generate_tensors=_generate_positions,
    )
)
