import unicodedata

import pytest
from tests.tokenizers.conftest import SCRIPTS

from polyhead.tokenizers import scripts as graphemes

WORDS = SCRIPTS["words"]


@pytest.mark.parametrize("text", WORDS)
def test_words_and_graphemes_of_scripts(text):
    assert graphemes.split_words(text) == WORDS[text]
    clusters = graphemes.split_graphemes(text)
    assert "".join(clusters) == text
    assert not [cluster for cluster in clusters if unicodedata.category(cluster[0])[0] == "M"]
    assert all(
        map(graphemes.continues_grapheme, {c for c in text if unicodedata.category(c) in ("Mn", "Me")})
    )


PAIRS = [("Käse", "KA\u0308SE"), ("が", "か\u3099"), ("co\u00adop", "coop"), ("Straße", "STRASSE")]
PAIRS += [("don't", "don′t"), ("don't", "don´t"), ("e-mail", "e–mail"), ("e-mail", "e−mail"), ('"a"', "„a“")]
PAIRS += [("محمد", "ﻣﺤﻤﺪ"), ("日本", "日\ufe00本\U000e0100")]
PAIRS += [("ខ្ញុំ\u200bមាន", "ខ្ញុំ មាន"), ("\u0958", "\u0915\u093c")]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_equal_texts_fold_to_same_text(first, second):
    assert first != second and graphemes.fold_text(first) == graphemes.fold_text(second)
    assert graphemes.fold_text("Kase") != graphemes.fold_text("Käse")


UNSPACED_NAMES = ("CJK UNIFIED", "HIRAGANA LETTER", "KATAKANA LETTER", "THAI CHARACTER", "LAO LETTER")
UNSPACED_NAMES += ("KHMER LETTER", "MYANMAR LETTER", "TIBETAN LETTER", "YI SYLLABLE", "NEW TAI LUE LETTER")


def test_scripts_without_spaces():
    names = {char: unicodedata.name(char, "") for char in map(chr, range(0x20000))}
    letters = [char for char, name in names.items() if name.startswith(UNSPACED_NAMES)]
    assert len(letters) > 20_000 and all(map(graphemes.is_unspaced_char, letters))
    assert not any(map(graphemes.is_unspaced_char, "aéжαक한ع"))
