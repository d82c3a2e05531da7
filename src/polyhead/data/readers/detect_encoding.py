"""Detect the encoding of text that is not UTF-8, by the characters that are frequent in each script."""

from __future__ import annotations

import codecs
import re

_HAN = (
    "的一是不了人我在有他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后小么心多天而能好"
    "都然没日于起还发成事只作当想看文无开用主行方又如前所本见经头面公同三已从动两长知民样现分将外但些与高意进把法此实世界"
    "這來國個說們為時會後過學對沒還發當開經頭從動兩長樣現將與進實"
)
_HANGUL = "이다는에의을가고를하은도지로한사기서아나들어일리시그으라인대자정것수있해보스과만전했부게니면"
_ROMAN = "äöüßÄÖÜéèêàâçñóôáíúãõåøæëïÉ‘’“”–¿¡"
_CENTRAL = "ąćęłńśźżčďěňřšťůýžőűăţşáéíóúöüŚŻŁČŠŽ"
_IN_LATIN_WORD = "(?<=[A-Za-z])[{0}]|[{0}](?=[A-Za-z])"
_IN_OTHER_WORD = r"(?<=[^\x00-\x7f])[{0}]|[{0}](?=[^\x00-\x7f])"
# encodings of each script, as iconv and Python call them; its frequent characters, where they are expected;
# and the least share of them among all that are not ASCII. Of equal shares, the first one counts
_ENCODINGS = [
    (names.split(), re.compile(place.format(frequent)), least)
    for names, frequent, place, least in (
        ("GBK GB18030 BIG5 BIG5-HKSCS", _HAN, _IN_OTHER_WORD, 0.12),
        ("SHIFT_JIS CP932 EUC-JP", "\u3041-\u30fc", _IN_OTHER_WORD, 0.3),
        ("EUC-KR CP949", _HANGUL, _IN_OTHER_WORD, 0.25),
        ("LATIN1 CP1252", _ROMAN, _IN_LATIN_WORD, 0.5),
        ("CP1250 ISO-8859-2", _CENTRAL, _IN_LATIN_WORD, 0.5),
        ("CP1254", "ğüşıöçİŞÇ", _IN_LATIN_WORD, 0.5),
        ("CP1251 KOI8-R KOI8-U CP866 ISO-8859-5", "оеаинтсрвлкмдпуяьі", _IN_OTHER_WORD, 0.6),
        ("ISO-8859-7 CP1253", "αεηιονςστρκλμυπάέίόή", _IN_OTHER_WORD, 0.6),
        ("CP1255", "יוהלאמתרשבנםקחדע", _IN_OTHER_WORD, 0.6),
        ("CP1256", "الينمرتوبعدسفهكقحج", _IN_OTHER_WORD, 0.6),
        ("CP874", "านรอกเงมยลวดทสต่้ิีัะ", _IN_OTHER_WORD, 0.6),
    )
]


def detect_encoding(sample: bytes) -> str:
    """The encoding of a sample of text, which may be cut inside a character; "" if none is convincing."""
    if b"\x00" in sample:
        texts = {name: _decode(sample, name) for name in ("UTF-16LE", "UTF-16BE")}
        name = max(texts, key=lambda key: texts[key].count("\n"))
        return name if "\n" in texts[name] and re.sub("[\t\r\n]", "", texts[name]).isprintable() else ""
    shares = {
        name: _share_of(_decode(sample, name), frequent) / least
        for names, frequent, least in _ENCODINGS
        for name in names
    }
    name = max(shares, key=shares.__getitem__)
    return name if shares[name] >= 1 else ""


def _decode(sample: bytes, encoding: str) -> str:
    """The text of a sample; "" if it has bytes that the encoding does not."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(sample)
    except UnicodeDecodeError:
        return ""


def _share_of(text: str, frequent: re.Pattern[str]) -> float:
    """The share of frequent characters among those that are not ASCII."""
    return len(frequent.findall(text)) / max(sum(not character.isascii() for character in text), 1)
