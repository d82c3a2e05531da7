"""mBART (Liu et al., 2020) and mBART-50 (Tang et al., 2020): BART with norms before, for many languages."""

from __future__ import annotations

from pathlib import Path

from polyhead.errors import UserError, show
from polyhead.hf.bart import BUFFERS, LEARNED, TABLE, TIED, keys
from polyhead.hf.family import FAMILY, Family, Made
from polyhead.hf.files import read_json
from polyhead.hf.vocabularies import class_of, fairseq
from polyhead.text.specials import ROLES

# in the order of their ids; the second edition has those of the first before its own
LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX ro_RO "
    "ru_RU si_LK tr_TR vi_VN zh_CN"
)
MORE = (
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN "
    "th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)


def vocabulary(directory: Path) -> Made:
    """A text ends with the token of its language, and begins with it in the second edition, which the files name."""
    where = directory / "tokenizer_config.json"
    config = read_json(directory, where.name) or {}
    second = class_of(directory) == "MBart50Tokenizer"
    known, source = f"{LANGUAGES} {MORE}" if second else LANGUAGES, config.get("src_lang") or "en_XX"
    if source not in known.split():
        raise UserError(f"{where}: src_lang is {show(source)}, wanted one of {known}")
    around = {"before": source, "after": "</s>"} if second else {"before": "", "after": f"</s> {source}"}
    return fairseq(directory, known.split(), **around)


FAMILY.register("mbart")(
    Family(
        {"Seq2Seq": "MBartForConditionalGeneration"},
        (*keys(pre=True, embedding_norm=True, static=False), LEARNED),
        TABLE,
        "model.",
        BUFFERS,
        TIED,
        specials=ROLES,
        vocabulary=vocabulary,
    )
)
