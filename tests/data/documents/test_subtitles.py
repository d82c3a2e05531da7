"""Subtitles: numbers and times stay; lines are as many as before."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.documents.documents_helpers import check_untouched, seeds, texts, translate, translate_with

from polyhead.core.errors import UserError
from polyhead.data.documents.subtitles import break_lines

FILM = """1
00:00:01,000 --> 00:00:02,000
Das ist <i>ein Test</i>
mit zwei Zeilen.

2
00:00:03,000 --> 00:00:04,500
{\\an8}- Ja?
- Nein!

3
0:00:05.0 --> 0:00:06.0
- 12 -
"""
TIMES = r"(?m)^(?:\d+\n.*-->.*)$"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_film_keeps_its_times(newline):
    film = FILM.replace("\n", newline)
    table = {
        "Das ist ein Test mit zwei Zeilen.": (
            "This is a test --> of two lines.",
            [(0, 0), (2, 2), (3, 3), (6, 7)],
        ),
        "- Ja?": ("- Yes?", [(0, 0), (1, 1)]),
        "Nein!": ("No!", [(0, 0)]),
    }
    expected = FILM.replace(
        "Das ist <i>ein Test</i>\nmit zwei Zeilen", "This is <i>a test</i> ->\nof two lines"
    )
    expected = expected.replace("Ja", "Yes").replace("Nein", "No")
    assert translate_with(film, "srt", table) == expected.replace("\n", newline)


cues = st.lists(
    st.lists(texts | st.just("<b>Wort</b>") | st.just("- ja"), min_size=1, max_size=3), max_size=4
)


@given(cues, seeds)
def test_random_films_keep_their_times(cues, seed):
    film = "\n\n".join(
        f"{i}\n00:00:0{i},000 --> 00:00:0{i},500\n" + "\n".join(cue) for i, cue in enumerate(cues)
    )
    check_untouched(film, "srt")
    output, _ = translate(film, "srt", seed)
    assert re.findall(TIMES, output) == re.findall(TIMES, film)
    assert output.count("<b>") == film.count("<b>") and output.count("\n\n") == film.count("\n\n")


@pytest.mark.parametrize(
    "text", ["Nur Text", "1\n00:00:01,000 -> 00:00:02,000\nText", "1\n00:01 --> 00:02\nText"]
)
def test_damaged_times_are_an_error(text):
    with pytest.raises(UserError, match=r"srt: .*00:00:01,000 --> 00:00:02,500"):
        translate(text, "srt")


def test_lines_break_near_their_middle():
    assert break_lines("ein langer Satz <i x='a b'>hier</i>", 2) == "ein langer Satz\n<i x='a b'>hier</i>"
    assert break_lines("a b c d", 3) == "a\nb\nc d" and break_lines("kurz", 2) == "kurz"
