"""Places of markup in a translation, by the alignment of its words."""

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.documents.documents_helpers import translate_with

from polyhead.data.documents.segment import find_paragraphs, split_sentences

STRAIGHT = [(i, i) for i in range(9)]


@pytest.mark.parametrize(
    ("source", "sentence", "target", "links", "expected"),
    [
        ("<b>Wort</b>, da", "Wort, da", "da word,", [(0, 1), (1, 0)], "da <b>word</b>,"),
        ("<b>Wort,</b> da", "Wort, da", "da word,", [(0, 1), (1, 0)], "da <b>word,</b>"),
        ("a <b>c d</b>", "a c d", "C a D E", [(0, 1), (1, 0), (2, 2), (2, 3)], "C a <b>D E</b>"),
        ("<i>a <b>c</b></i> d", "a c d", "C D A", [(0, 2), (1, 0), (2, 1)], "<i><b>C</b></i> D A"),
        ("<i>a</i> <b>c</b>", "a c", "AC", [(0, 0), (1, 0)], "<i>AC</i><b></b>"),
        ("H<sub>2</sub>O da", "H2O da", "there H2O", [(0, 1), (1, 0)], "there H<sub>2</sub>O"),
        ("a <img> c", "a c", "C A", [(0, 1), (1, 0)], "C A <img>"),
        ("a<img>, c", "a, c", "A, c", STRAIGHT, "A<img>, c"),
        ("<img> a <code>x</code>.", "a.", "A b.", [(0, 0)], "<img> A <code>x</code> b."),
        ("a <b>c</b> d", "a c d", "A C D", [], "A <b>C</b> D"),
        ("a</b> <i>c", "a c", "A C", STRAIGHT, "A</b> <i>C"),
    ],
)
def test_markup_is_around_aligned_words(source, sentence, target, links, expected):
    assert translate_with(f"<p>{source}</p>", "html", {sentence: (target, links)}) == f"<p>{expected}</p>"


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
