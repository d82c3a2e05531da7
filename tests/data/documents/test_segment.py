"""Places of markup in a translation, by the alignment of its words."""

import pytest
from tests.data.documents.documents_helpers import translate_with

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
