from babel.core import get_global
from tests.tokenizers.conftest import SCRIPTS
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

from polyhead.tokenizers.languages import (
    _LANGUAGES,
    _SCRIPTS,
    _SCRIPTS_BY_TAG,
    is_same_language,
    normalize_language,
    script_of_language,
)
from polyhead.tokenizers.scripts import script_of_letter

CODES, SCRIPT_LETTERS = SCRIPTS["codes"], SCRIPTS["letters"]


def test_scripts_and_alternative_codes_equal_cldr():
    assert {script_of_letter(letter): letter for letter in SCRIPT_LETTERS.values()} == SCRIPT_LETTERS
    assert set(_SCRIPTS_BY_TAG.values()) == {*SCRIPT_LETTERS, "Japanese"}
    assert set(_SCRIPTS.values()) <= {*SCRIPT_LETTERS, "Japanese", ""}
    likely = get_global("likely_subtags")
    tags = {language: likely[language].split("_")[1] for language in _SCRIPTS if language in likely}
    compared_tags = {language: tag for language, tag in tags.items() if _SCRIPTS[language]}
    wrong = {name: tag for name, tag in compared_tags.items() if _SCRIPTS[name] != _SCRIPTS_BY_TAG[tag]}
    assert not wrong and len(compared_tags) > 200
    aliases = {code: name for code, name in get_global("language_aliases").items() if name in _SCRIPTS}
    three_letters = {code: name for code, name in aliases.items() if len(code) == 3 and len(name) == 2}
    wrong = {code: name for code, name in three_letters.items() if normalize_language(code) != name}
    assert wrong.keys() <= {"twi"}, "Twi has a code of its own, tw"
    assert len(three_letters) > 200
    # every language of ISO 639-1 has an entry, but for two of scriptures alone
    languages = {code for code in get_global("likely_subtags") if len(code) == 2}
    assert languages - _LANGUAGES.keys() <= {"ae", "cu"}


def test_flores_codes_have_script_of_their_tag():
    """So do their languages, where FLORES has them in one script."""
    wrong = []
    for code in FAIRSEQ_LANGUAGE_CODES:
        language, tag = code.split("_")
        n_scripts = sum(other.startswith(language) for other in FAIRSEQ_LANGUAGE_CODES)
        scripts = {script_of_language(code), _SCRIPTS_BY_TAG[tag]}
        if script_of_language(language) and n_scripts == 1:
            scripts.add(script_of_language(language))
        if len(scripts) > 1:
            wrong.append(code)
    assert not wrong


def test_codes_in_all_spellings():
    codes = {code: script for script, line in CODES.items() for code in line.split()} | {"": ""}
    assert {code: script_of_language(code) for code in codes} == codes
    chinese = ("zh", "zho", "chi", "cmn", "zh_CN", "ZH-Hant-TW", "zho_Hans", "__zh__", ">>cmn_Hans<<")
    assert {normalize_language(code) for code in chinese} == {"zh"}
    assert normalize_language("yue_Hant") == "yue" and normalize_language("xyz") == "xyz"
    assert is_same_language("deu", "de_DE") and is_same_language("zho_Hans", "zh")
    assert not is_same_language("pt_BR", "por_Latn") and not is_same_language("de", "en")
