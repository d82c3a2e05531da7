import re
import unicodedata

import pytest
import regex
from tests.tokenizers.conftest import SCRIPTS

from polyhead.tokenizers.scripts import find_unspaced_script, script_of_letter, script_of_text

# without signs of old inscriptions such as LATIN EPIGRAPHIC LETTER REVERSED F and ROMAN NUMERAL FIVE HUNDRED
LETTER_NAME = re.compile(r"(?!MODIFIER)\w+ (\w+ )*(LETTER|SYLLABLE|IDEOGRAPH|CHARACTER)\b")


@pytest.mark.parametrize("script", "Latin Han Cyrillic Hangul Arabic Hiragana Greek Thai".split())  # noqa: SIM905
def test_scripts_of_letters_equal_unicode(script):
    in_script = regex.compile(rf"\p{{Script={script}}}")
    letters = [
        char
        for char in map(chr, range(0x10000))
        if LETTER_NAME.match(unicodedata.name(char, "")) and in_script.fullmatch(char) and char.isalpha()
    ]
    assert len(letters) > 50
    assert {letter for letter in letters if script_of_letter(letter) != script} == set()


@pytest.mark.parametrize(
    ("kind", "find"), [("most_words", script_of_text), ("unspaced", find_unspaced_script)]
)
def test_script_of_text(kind, find):
    assert {text: find([text]) for text in SCRIPTS[kind]} == SCRIPTS[kind]
