import re
import unicodedata

import pytest
import regex

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


def test_script_of_most_words():
    scripts = {
        "a dog barks at the door": "Latin",
        "собака лает у самой двери": "Cyrillic",
        "一只狗在门口叫": "Han",
        "犬がドアのところで吠えている": "Japanese",
        "개가 문 앞에서 짖고 있다": "Hangul",
        "كلب ينبح عند باب البيت": "Arabic",
        "我喜欢用 PyTorch 和 TensorFlow 训练": "Han",
        "12 000 € (2024), 3:1": "",
        "PyTorch Windows Server Hugging Face NVIDIA": "",  # names are the same in every language
        "一只狗 a dog barks loudly": "",
        "OK": "",
        "": "",
    }
    assert {text: script_of_text([text]) for text in scripts} == scripts


def test_unspaced_script_of_text():
    scripts = {
        "今天天气很好": "Han",
        "我喜欢用 PyTorch 和 TensorFlow 训练翻译模型": "Han",
        "犬がドアのところで吠えている": "Japanese",
        "แมวนั่งอยู่บนเสื่อ": "Thai",
        "ແມວນັ່ງຢູ່ເທິງເສື່ອ": "Lao",
        "ឆ្មាអង្គុយលើកន្ទេល": "Khmer",
        "ကြောင်သည်ဖျာပေါ်တွင်ထိုင်သည်": "Myanmar",
        "བྱི་ལ་གདན་ཐོག་ལ་བསྡད་འདུག": "Tibetan",
        "개가 문 앞에서 짖고 있다": "",
        "बिल्ली चटाई पर बैठी है": "",
        "In Beijing (北京) it rains": "",
        "12 000 €": "",
        "": "",
    }
    assert {text: find_unspaced_script([text]) for text in scripts} == scripts
