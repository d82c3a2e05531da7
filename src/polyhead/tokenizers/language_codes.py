"""Language codes of ISO 639-1, ISO 639-2 and 639-3, BCP 47 and FLORES: one language each, and its script."""

from __future__ import annotations

import re

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
