"""Detect the encoding of text that is not UTF-8, by the characters that are frequent in each script."""

from __future__ import annotations

import codecs
import re
from operator import itemgetter

_HAN = (
    "的一是不了人我在有他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后小么心多天而能好"
    "都然没日于起还发成事只作当想看文无开用主行方又如前所本见经头面公同三已从动两长知民样现分将外但些与高意进把法此实世界"
    "這來國個說們為時會後過學對沒還發當開經頭從動兩長樣現將與進實"
)
_HANGUL = "이다는에의을가고를하은도지로한사기서아나들어일리시그으라인대자정것수있해보스과만전했부게니면"
_ROMAN_SMALL = "äöüßéèêàâîçñóôáíúãõåøæëï"
_ROMAN = "äöüßÄÖÜéèêàâîçñóôáíúãõåøæëïÉ‘’“”–¿¡"
_CENTRAL = "ąćęłńśźżčďěňřšťůýžőűăâîţşșțáéíóúöüŚŻŁČŠŽ"
_GREEK = "αεηιονςστάέίόή"
_CYRILLIC, _CYRILLIC_CAPITALS = "оеаинтсрвляі", "ОЕАИНТСРВЛЯІ"
_HEBREW, _ARABIC = "יוהלאמתרשבנםקחדע", "الينمرتوبعدسفهكقحج"
_IN_LATIN_WORD = "(?<=[A-Za-z])[{0}]|[{0}](?=[A-Za-z])"
_IN_OTHER_WORD = r"(?<=[^\x00-\x7f])[{0}]|[{0}](?=[^\x00-\x7f])"
_CONTROLS = re.compile("[\x01-\x08\x0e-\x19\x80-\x84\x86-\x9f]")
_INVISIBLE = re.compile("[\\s\xad\u200b-\u200f\u2028-\u202e]")  # in text, though not printable
# encodings of each script, as iconv and Python call them; its frequent characters, where they are expected;
# and the least share of them among all that are not ASCII. Of equal shares, the first one counts
_ENCODINGS = [
    (names.split(), re.compile(place.format(frequent)), least)
    for names, frequent, place, least in (
        ("GBK GB18030 BIG5 BIG5-HKSCS", _HAN, _IN_OTHER_WORD, 0.12),
        ("SHIFT_JIS CP932 EUC-JP", "\u3041-\u30fc", _IN_OTHER_WORD, 0.3),
        ("EUC-KR CP949", _HANGUL, _IN_OTHER_WORD, 0.25),
        ("LATIN1 CP1252", _ROMAN, _IN_LATIN_WORD, 0.5),
        ("LATIN1 CP1252", "áéíóúýþæöðÞ", _IN_LATIN_WORD, 0.5),
        ("MACINTOSH CP850 CP437", _ROMAN_SMALL, _IN_LATIN_WORD, 0.5),
        ("CP1250 ISO-8859-2 ISO-8859-16 CP852", _CENTRAL, _IN_LATIN_WORD, 0.5),
        ("CP1257", "ąčęėįšųūžāēģīķļņŠŽ", _IN_LATIN_WORD, 0.5),
        ("CP1258", "ăâđêôơư\u0300\u0301\u0303\u0309\u0323", _IN_LATIN_WORD, 0.5),
        ("CP1254 CP857", "ğüşıöçİŞÇ", _IN_LATIN_WORD, 0.5),
        ("CP1251 KOI8-R KOI8-U CP866 CP1125 ISO-8859-5 MAC-CYRILLIC", _CYRILLIC, _IN_OTHER_WORD, 0.55),
        ("CP1251 KOI8-R KOI8-U CP866 CP1125 ISO-8859-5", _CYRILLIC_CAPITALS, _IN_OTHER_WORD, 0.55),
        ("ISO-8859-7 CP1253 CP737", _GREEK, _IN_OTHER_WORD, 0.6),
        ("CP1255 CP862", _HEBREW, _IN_OTHER_WORD, 0.6),
        ("CP1256 ISO-8859-6", _ARABIC, _IN_OTHER_WORD, 0.6),
        ("CP874", "านรอกเงมยลวดทสต่้ิีัะ", _IN_OTHER_WORD, 0.6),
    )
]


def detect_encoding(sample: bytes) -> str:
    """The encoding of a sample of text, which may be cut inside a character; "" if none is convincing."""
    if b"\x00" in sample:
        for name in ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE"):
            text = _decode(sample, name)
            if "\n" in text and _INVISIBLE.sub("", text).isprintable():
                return name
        return ""
    if sample.isascii():
        return _detect_ascii_encoding(sample)
    shares = [
        (_share_of(_decode(sample, name), frequent) / least, name)
        for names, frequent, least in _ENCODINGS
        for name in names
    ]
    share, name = max(shares, key=itemgetter(0))
    return name if share >= 1 else ""


def _detect_ascii_encoding(sample: bytes) -> str:
    """UTF-7 or HZ, whose bytes are ASCII; "" unless the text has three frequent characters of a script."""
    for name, mark in (("UTF-7", b"+"), ("HZ", b"~{")):
        text = _decode(sample, name) if mark in sample else ""
        for _, frequent, least in _ENCODINGS:
            if _share_of(text, frequent) >= least and len(frequent.findall(text)) > 2:
                return name
    return ""


def _decode(sample: bytes, encoding: str) -> str:
    """The text of a sample; "" if it has bytes that the encoding does not, or those of control characters."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(sample)
    except UnicodeDecodeError:
        return ""
    return "" if _CONTROLS.search(text) else text


def _share_of(text: str, frequent: re.Pattern[str]) -> float:
    """The share of frequent characters among those that are not ASCII."""
    return len(frequent.findall(text)) / max(sum(not character.isascii() for character in text), 1)
