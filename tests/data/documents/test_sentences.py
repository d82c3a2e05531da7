"""Sentences of several languages, and paragraphs of wrapped and of other lines."""

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhead.data.documents.sentences import find_paragraphs, split_sentences


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("de", ["Dr. Müller kommt am 3. Mai um 8 Uhr.", "Geht das?", "Ja!"]),
        ("en", ["Mr. Smith paid $3.50 to the U.S. in 1990.", "He said: “No.”", "Then he left..."]),
        ("zh_CN", ["今天天气很好。", "我们去公园吧！", "好吗？"]),
        ("ja", ["これはペンです。", "本ですか？"]),
        ("hi", ["यह एक है।", "वह दो है।"]),
        ("", ["This is one.", "That is two."]),
    ],
)
def test_sentences_follow_the_rules_of_languages(language, sentences):
    text = ("" if language in ("zh_CN", "ja") else "  ").join(sentences) + "\n"
    assert [text[a:b] for a, b in split_sentences(text, language)] == sentences


@given(
    st.text(
        st.sampled_from("aB1.。!? \n\t\xa0\u2028\u3000“”()é😀-") | st.characters(codec="utf-8"), max_size=40
    )
)
def test_all_but_white_space_is_in_sentences(text):
    for language in ("de", "zh", "fr", "xx"):
        spans = split_sentences(text, language)
        rest, done = "", 0
        for start, end in spans:
            assert done <= start < end and text[start:end] == text[start:end].strip()
            rest, done = rest + text[done:start], end
        assert not (rest + text[done:]).strip()


LONG = "Das hier ist ein recht langer Satz, der an einer Stelle umbrochen wird und der dann noch weiter geht."


@pytest.mark.parametrize("width", [45, 60])
def test_wrapped_lines_are_one_paragraph(width):
    text = (
        f"Titel\n\n{textwrap.fill(LONG, width)}\n \nEine Zeile\nNoch eine lange Zeile mit vielen Worten\n\n"
    )
    found = [text[a:b] for a, b in find_paragraphs(text)]
    assert found == [
        "Titel",
        textwrap.fill(LONG, width),
        "Eine Zeile",
        "Noch eine lange Zeile mit vielen Worten",
    ]
