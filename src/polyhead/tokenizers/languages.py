"""Language tokens: source and target language of a translator that has several, and names of languages."""

from __future__ import annotations

import re
from collections.abc import Sequence

from polyhead.core.errors import UserError, did_you_mean, is_command_line
from polyhead.tokenizers.special_tokens import DECODER_ROLES, TARGET_LANGUAGE_TOKEN, Seq2SeqTemplate
from polyhead.tokenizers.tokenizer import Tokenizer

# languages by their usual script, "" if they have several; alternative codes of one language follow a slash
_LANGUAGES_BY_SCRIPT = {
    "Arabic": "acm acq aeb ajp apc ar/ara/arb ars ary arz azb ckb fa/fas/per/pes prs ps/pbu/pus/pbt ur/urd",
    "Armenian": "hy/arm/hye",
    "Bengali": "as/asm bn/ben",
    "Cyrillic": "ab/abk av/ava ba/bak be/bel bg/bul ce/che cv/chv kv/kom/kpv ky/kir mk/mac/mkd os/oss ru/rus "
        "tt/tat uk/ukr",
    "Devanagari": "awa bho hi/hin hne mag mai mr/mar ne/nep/npi sa/cls/san",
    "Ethiopic": "am/amh ti/tir",
    "Georgian": "ka/geo/kat",
    "Greek": "el/ell/gre",
    "Gujarati": "gu/guj/prp",
    "Han": "cdo gan hak hsn lzh wuu yue zh/chi/cmn/zho",
    "Hangul": "ko/kor",
    "Hebrew": "he/heb/iw yi/ydd/yid/ji",
    "Japanese": "ja/jpn",
    "Kannada": "kn/kan",
    "Khmer": "km/khm",
    "Lao": "lo/lao",
    "Latin": "aa/aar af/afr ak/aka/fat an/arg ast ay/aym/ayr bem bi/bis bm/bam br/bre ca/cat ceb ch/cha "
        "cjk co/cos cs/ces/cze cy/cym/wel da/dan de/deu/ger dik dyu ee/ewe en/eng eo/epo es/spa "
        "et/ekk/est eu/baq/eus fi/fin fj/fij fo/fao fon fr/fra/fre fur fuv fy/fry ga/gle gd/gla "
        "gl/glg gn/grn/gug gv/glv ha/hau ho/hmo hr/hrv/scr ht/hat hu/hun hz/her ia/ina id/ind/in "
        "ie/ile ig/ibo ik/esk/ipk ilo io/ido is/ice/isl it/ita jv/jav/jw kab kac kam kbp kea "
        "kg/kng/kon ki/kik kj/kua kl/kal kmb kw/cor la/lat lb/ltz lg/lug li/lim lij lmo ln/lin lt/lit "
        "ltg lu/lub lua luo lus lv/lav/lvs mg/mlg/plt mh/mah mi/mao/mri min mos ms/may/msa/zsm mt/mlt "
        "na/nau nb/nob nd/nde ng/ndo nl/dut/nld nn/nno no/nor nr/nbl nso nus nv/nav ny/nya oc/oci "
        "om/gaz/orm pag pap pl/pol pt/por qu/que/quz quy rm/roh rn/run ro/mol/ron/rum/mo rw/kin "
        "sc/src/srd scn se/sme sg/sag sk/slk/slo sl/slv sm/smo sn/sna so/som sq/alb/als/sqi ss/ssw "
        "st/sot su/sun sv/swe sw/swa/swh szl tl/tgl/fil tn/tsn to/ton tpi tr/tur ts/tso tum tw/twi "
        "ty/tah umb ve/ven vec vi/vie vo/vol wa/wln war wo/wol xh/xho yo/yor za/zha/zyb zu/zul",
    "Malayalam": "ml/mal",
    "Myanmar": "ksw mnw my/bur/mya shn",
    "Oriya": "or/ori/ory",
    "Sinhala": "si/sin",
    "Tamil": "ta/tam",
    "Telugu": "te/tel",
    "Thaana": "dv/div",
    "Thai": "th/tha",
    "Tibetan": "bo/bod/tib dz/adp/dzo",
    "Yi": "ii/iii",
    "": "az/aze/azj bs/bos cr/cre/cwd ff/fuc/ful iu/ike/iku kk/kaz kr/kau/knc ks/kas ku/kmr/kur "
        "mn/drh/khk/mon oj/ojg/oji pa/pan pi/pli sd/snd sh sr/scc/srp tg/tgk tk/tuk ug/uig uz/uzb/uzn",
}  # fmt: skip
_SCRIPTS_BY_TAG = {
    "Latn": "Latin", "Hans": "Han", "Hant": "Han", "Hani": "Han", "Jpan": "Japanese",
    "Hrkt": "Japanese", "Hira": "Japanese", "Kana": "Japanese", "Aran": "Arabic", "Kore": "Hangul",
    "Hang": "Hangul", "Cyrl": "Cyrillic", "Arab": "Arabic", "Grek": "Greek", "Hebr": "Hebrew",
    "Deva": "Devanagari", "Beng": "Bengali", "Thai": "Thai", "Taml": "Tamil", "Telu": "Telugu",
    "Armn": "Armenian", "Geor": "Georgian", "Khmr": "Khmer", "Laoo": "Lao", "Mymr": "Myanmar",
    "Tibt": "Tibetan", "Knda": "Kannada", "Mlym": "Malayalam", "Gujr": "Gujarati", "Guru": "Gurmukhi",
    "Orya": "Oriya", "Sinh": "Sinhala", "Ethi": "Ethiopic", "Thaa": "Thaana", "Mtei": "Meetei",
    "Olck": "Ol", "Tfng": "Tifinagh", "Mong": "Mongolian", "Yiii": "Yi", "Java": "Javanese",
    "Bali": "Balinese", "Lana": "Tai", "Tale": "Tai", "Talu": "Tai", "Tavt": "Tai",
}  # fmt: skip
"""ISO 15924 code -> script as in ``script_of_letter``, and Japanese."""
_GROUPS = [
    (group.split("/"), script) for script, text in _LANGUAGES_BY_SCRIPT.items() for group in text.split()
]
_LANGUAGES = {code: codes[0] for codes, _ in _GROUPS for code in codes}
_SCRIPTS = {codes[0]: script for codes, script in _GROUPS}


def normalize_language(code: str) -> str:
    """The shortest code of a language: "zh" for zh_CN, zho, zho_Hans and __cmn__; unknown codes stay."""
    language = _split_code(code)[0].lower()
    return _LANGUAGES.get(language, language)


def script_of_language(code: str) -> str:
    """The script of a language: Han for zh, zh_CN and zho_Hans; "" if unknown or ambiguous."""
    for tag in _split_code(code)[1:]:
        if len(tag) == 4 and tag.isalpha():
            return _SCRIPTS_BY_TAG.get(tag.capitalize(), "")
    return _SCRIPTS.get(normalize_language(code), "")


def is_same_language(code: str, other: str) -> bool:
    """Whether two codes name one language, and at most one has a script or region: zh and zho_Hans."""
    has_tags = [len(_split_code(one)) > 1 for one in (code, other)]
    return normalize_language(code) == normalize_language(other) and not all(has_tags)


def _split_code(code: str) -> list[str]:
    return re.split("[-_]", code.strip("_<>"))


_MAX_LISTED = 24  # languages listed in an error message
LANGUAGE_TOKEN = re.compile(r">>.+<<|__\w+__|[a-z]{2,3}_[A-Z]\w+")  # of OPUS-MT, M2M100, mBART and NLLB


def with_languages(
    tokenizer: Tokenizer, source_lang: str | None = None, target_lang: str | None = None
) -> Seq2SeqTemplate:
    """The template of a tokenizer with language tokens, set to a source and a target language.

    The source language replaces the one in the template, or comes before the text. The target language is the
    decoder start token, if that is a language, else the forced first token. Raises UserError if a required
    language is not given.
    """
    template = tokenizer.seq2seq_template
    roles = {i for role, i in tokenizer.role_ids.items() if role not in DECODER_ROLES}
    languages = {i: tokenizer.ids_to_tokens([i])[0] for i in tokenizer.special_ids if i not in roles}
    target_tokens = {i: token for i, token in languages.items() if TARGET_LANGUAGE_TOKEN.fullmatch(token)}
    if target_tokens:
        return _with_target_token(template, target_tokens, source_lang, target_lang)
    if source_lang is not None:
        i = _find_language(source_lang, languages)
        source_languages = languages.keys() & {*template.source_prefix, *template.source_suffix}
        prefix, suffix = (
            tuple(i if x in source_languages else x for x in ids)
            for ids in (template.source_prefix, template.source_suffix)
        )
        template = template._replace(
            source_prefix=prefix if source_languages else (i, *prefix), source_suffix=suffix
        )
    if target_lang is not None:
        i = _find_language(target_lang, languages)
        if template.decoder_start_id in languages:
            template = template._replace(decoder_start_id=i, opening_ids=())
        else:
            template = template._replace(opening_ids=(i,), opening_forced=True)
    elif not template.opening_forced and template.decoder_start_id not in languages:
        _check_single_language([token for token in languages.values() if LANGUAGE_TOKEN.fullmatch(token)])
    return template


def language_error(tokenizer: Tokenizer) -> str:
    """Error message if the target language is ambiguous without ``target_lang``; else ""."""
    try:
        with_languages(tokenizer)
    except UserError as error:
        return str(error)
    return ""


def list_languages(tokenizer: Tokenizer) -> dict[str, list[str]]:
    """Names of possible "source" and "target" languages, recognised by their tokens; []: no choice."""
    language_tokens = list(filter(LANGUAGE_TOKEN.fullmatch, tokenizer.ids_to_tokens(tokenizer.special_ids)))
    target_tokens = list(filter(TARGET_LANGUAGE_TOKEN.fullmatch, language_tokens))
    names = {"source": [] if target_tokens else language_tokens, "target": target_tokens or language_tokens}
    return {side: sorted(map(_language_name, tokens)) for side, tokens in names.items()}


def default_languages(tokenizer: Tokenizer) -> dict[str, str]:
    """Default "source" and "target" languages, as names of ``list_languages``; "": none in the template."""
    language_tokens = {
        i: name
        for i in tokenizer.special_ids
        if LANGUAGE_TOKEN.fullmatch(name := tokenizer.ids_to_tokens([i])[0])
    }
    template = tokenizer.seq2seq_template
    template_ids = {
        "source": (*template.source_prefix, *template.source_suffix),
        "target": (template.decoder_start_id, *template.opening_ids),
    }
    if any(map(TARGET_LANGUAGE_TOKEN.fullmatch, language_tokens.values())):
        template_ids = {"source": (), "target": template_ids["source"]}
    return {
        side: next((_language_name(language_tokens[i]) for i in ids if i in language_tokens), "")
        for side, ids in template_ids.items()
    }


def _with_target_token(
    seq2seq_template: Seq2SeqTemplate,
    languages: dict[int, str],
    source_lang: str | None,
    target_lang: str | None,
) -> Seq2SeqTemplate:
    """The template of a model whose source starts with a target language token (OPUS-MT)."""
    if source_lang is not None:
        raise UserError(f"source language {source_lang!r}: this model takes only a target language")
    if target_lang is not None:
        prefix = [i for i in seq2seq_template.source_prefix if i not in languages]
        return seq2seq_template._replace(source_prefix=(_find_language(target_lang, languages), *prefix))
    if languages.keys().isdisjoint(seq2seq_template.source_prefix):
        _check_single_language(list(languages.values()))
    return seq2seq_template


def _check_single_language(tokens: Sequence[str]) -> None:
    """Raise UserError if there are several target languages and none was chosen."""
    if len(tokens) > 1:
        names = sorted(map(_language_name, tokens))
        options = (
            "--target-lang of translate, target in a request to translate, or for all else --target-lang of "
            "import"
            if is_command_line()
            else "target_lang"
        )
        omitted = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        raise UserError(
            f"this model translates to several languages; set the target language ({options}), one of "
            f"{', '.join(names[:_MAX_LISTED])}{omitted}"
        )


def _find_language(name: str, languages: dict[int, str]) -> int:
    """Token id of a language: de, __de__, >>de<<, the prefix of one token (de_DE) or another code (deu)."""
    names = {i: _language_name(token) for i, token in languages.items()}
    exact = [i for i, token in languages.items() if name in (token, names[i])]
    starting = [i for i, language in names.items() if language.startswith(f"{name}_")]
    matches = exact or starting or [i for i, code in names.items() if is_same_language(name, code)]
    if not languages:
        raise UserError(
            f"language {name!r}: this model has no language tokens, it translates one pair: remove "
            "the language"
        )
    if len(matches) != 1:
        number = f"{len(matches)} languages of this model match it"
        problem = number if matches else "this model has no token for it"
        raise UserError(f"language {name!r}: {problem}{did_you_mean(name, names.values())}")
    return matches[0]


def _language_name(token: str) -> str:
    """The language in a language token, without its marks."""
    return token.strip("_<>")
