"""The script of a letter and of a text, next to Unicode's own tables."""

from __future__ import annotations

import re
import unicodedata

import pytest
import regex

from polyhead.tokenizers.scripts import find_unspaced_script, script_of_letter, script_of_text


@pytest.mark.parametrize(
    "script", ["Latin", "Han", "Cyrillic", "Hangul", "Arabic", "Hiragana", "Greek", "Thai"]
)
def test_letters_have_the_script_that_unicode_gives_them(script: str) -> None:
    in_script = regex.compile(rf"\p{{Script={script}}}")
    names = {chr(i): unicodedata.name(chr(i), "") for i in range(0x10000)}
    # not the signs of old inscriptions, LATIN EPIGRAPHIC LETTER REVERSED F and ROMAN NUMERAL FIVE HUNDRED
    usual = [
        letter
        for letter, name in names.items()
        if re.match(r"(?!MODIFIER)\w+ (\w+ )*(LETTER|SYLLABLE|IDEOGRAPH|CHARACTER)\b", name)
    ]
    letters = [letter for letter in usual if in_script.fullmatch(letter) and letter.isalpha()]
    assert len(letters) > 50
    for letter in letters:
        assert script_of_letter(letter) == script, names[letter]


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("a dog barks at the door", "Latin"),
        ("собака лает у самой двери", "Cyrillic"),
        ("一只狗在门口叫", "Han"),
        ("犬がドアのところで吠えている", "Japanese"),
        ("개가 문 앞에서 짖고 있다", "Hangul"),
        ("كلب ينبح عند باب البيت", "Arabic"),
        ("我喜欢用 PyTorch 和 TensorFlow 训练", "Han"),
        ("12 000 € (2024), 3:1", ""),
        ("PyTorch Windows Server Hugging Face NVIDIA", ""),  # names are the same in every language
        ("一只狗 a dog barks loudly", ""),
        ("OK", ""),
        ("", ""),
    ],
)
def test_a_text_has_the_script_of_most_of_its_words(text: str, script: str) -> None:
    assert script_of_text([text]) == script


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("今天天气很好", "Han"),
        ("我喜欢用 PyTorch 和 TensorFlow 训练翻译模型", "Han"),
        ("犬がドアのところで吠えている", "Japanese"),
        ("แมวนั่งอยู่บนเสื่อ", "Thai"),
        ("ແມວນັ່ງຢູ່ເທິງເສື່ອ", "Lao"),
        ("ឆ្មាអង្គុយលើកន្ទេល", "Khmer"),
        ("ကြောင်သည်ဖျာပေါ်တွင်ထိုင်သည်", "Myanmar"),
        ("བྱི་ལ་གདན་ཐོག་ལ་བསྡད་འདུག", "Tibetan"),
        ("개가 문 앞에서 짖고 있다", ""),
        ("बिल्ली चटाई पर बैठी है", ""),
        ("In Beijing (北京) it rains", ""),
        ("12 000 €", ""),
        ("", ""),
    ],
)
def test_a_script_without_spaces_is_found_in_a_text(text: str, script: str) -> None:
    assert find_unspaced_script([text]) == script
