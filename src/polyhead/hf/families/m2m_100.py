"""Multilingual variants of BART: M2M100 with NLLB, and mBART."""

from __future__ import annotations

from functools import partial

from tokenizers.processors import TemplateProcessing

from polyhead.core.errors import UserError, format_value
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.config_map import ConfigField, ModelFields, constant, defaults
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.bart import BUFFERS, LEARNED_POSITIONS, TABLE, TIED, bart_keys
from polyhead.hf.family import FAMILY, ModelFamily, TokenizerFactory
from polyhead.hf.tokenizers.legacy_tokenizers import check_tokenizer_class, load_fairseq, read_tokenizer_class
from polyhead.hf.tokenizers.spm import build_tokenizer, read_spm_model, read_vocab
from polyhead.tokenizers.special_tokens import SPECIAL_TOKENS, SPECIAL_TOKENS_MAP
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import AddedToken


# M2M100 (Fan et al., 2020) and NLLB: many-to-many translation with language tokens.
def _read_offset(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the position offset: the first position is that of the padding id plus one."""
    return {"position": {"offset": int(reader.get_float("pad_token_id", 1)) + 1}}


KEYS = (
    defaults(attention_dropout=0.1, activation_function="relu", scale_embedding=True),
    *bart_keys(norm_first=True),
    constant(position={"name": "sinusoidal", "layout": "halves", "endpoint": True}, lm_head_bias=False),
    ConfigField(_read_offset, lambda config: {"pad_token_id": config.position.options.get("offset", 1) - 1}),
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
        KEYS,
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
