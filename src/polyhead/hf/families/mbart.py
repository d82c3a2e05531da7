"""mBART (Liu et al., 2020) and mBART-50 (Tang et al., 2020): multilingual BART with pre-norm."""

from __future__ import annotations

from polyhead.core.errors import UserError, format_value
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.families.bart import BUFFERS, LEARNED_POSITIONS, TABLE, TIED, bart_keys
from polyhead.hf.family import FAMILY, ModelFamily, TokenizerFactory
from polyhead.hf.tokenizers.legacy_tokenizers import load_fairseq, read_tokenizer_class
from polyhead.tokenizers.special_tokens import SPECIAL_TOKENS_MAP

# language codes in the order of their ids; mBART-50 has those of mBART first
LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM "
    "ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
LANGUAGES_50 = (
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE "
    "sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)


def _load_tokenizer(files: CheckpointFiles) -> TokenizerFactory:
    """Build the tokenizer. A text ends with its language token in mBART and begins with it in mBART-50."""
    path = files.directory / "tokenizer_config.json"
    config = files.read_json(path.name) or {}
    is_mbart50 = read_tokenizer_class(files) == "MBart50Tokenizer"
    languages, source = (
        f"{LANGUAGES} {LANGUAGES_50}" if is_mbart50 else LANGUAGES,
        config.get("src_lang") or "en_XX",
    )
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
        load_legacy_tokenizer=_load_tokenizer,
    )
)
