"""Documents: white space stays, what is not translated stays, a name tells the format."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.documents.documents_helpers import check_untouched, seeds, texts, translate, translate_with

from polyhead.core.errors import UserError
from polyhead.data.documents.document import DOCUMENT_FORMATS, Document, format_of_file

blanks = st.sampled_from([" ", "  ", "\n", "\n\n", "\r\n", "\n \t\n", "\t"])
sentences = st.lists(
    st.sampled_from(["Das ist gut.", "Wer kommt da?", "Ja!", "Na, so was..."]), min_size=1, max_size=6
)


@given(sentences, st.data())
def test_white_space_between_sentences_stays(sentences, data):
    gaps = [data.draw(blanks) for _ in sentences]
    text = "".join(gap + sentence for gap, sentence in zip(gaps, sentences, strict=True)) + "\n"
    output, _ = translate(text, "text")
    assert len(output) == len(text)
    places = [match.span() for match in re.finditer(r"(?<=[.?!])\s+(?=\S)", text)]
    assert all(output[a:b] == text[a:b] for a, b in places)
    assert text[: len(gaps[0])] == output[: len(gaps[0])]


@given(
    st.text(st.characters(codec="utf-8"), max_size=30) | texts,
    st.sampled_from(["text", "html", "markdown"]),
    seeds,
)
def test_any_text_is_a_document(text, format, seed):
    check_untouched(text, format)
    translate(text, format, seed)


def test_addresses_and_numbers_are_copied():
    text = "Siehe https://a.b/c?d=1, bitte (an x@y.de)!\n\n3,5\n"
    table = {"Siehe, bitte (an)!": ("Please see (at)!", [(0, 1), (1, 0), (2, 2)])}
    assert translate_with(text, "text", table) == "Please see https://a.b/c?d=1 (at x@y.de)!\n\n3,5\n"


def test_languages_with_spaces_get_them():
    text = "今天很好。我们走吧！\n好"
    table = {"今天很好。": ("It is fine.", []), "我们走吧！": ("Let us go!", []), "好": ("Good", [])}
    assert translate_with(text, "text", table, "zh") == "It is fine. Let us go!\nGood"


def test_sentences_without_translations_stay():
    text = "<p>Eins  <b>ist</b> da. Zwei &lt; drei.</p><p>Vier.</p>"
    document = Document(text, "html", "de")
    assert document.render([None, "Two < three.", None], [[], [], []]) == (
        "<p>Eins  <b>ist</b> da. Two &lt; three.</p><p>Vier.</p>"
    )


def test_file_names_have_formats():
    assert [format_of_file(name) for name in ("a/B.HTML", "b.md", "c.xlf", "d.srt", "e.txt", "f")] == [
        "html", "markdown", "xliff", "srt", "text", None
    ]  # fmt: skip
    with pytest.raises(UserError, match="unknown document format 'htm'; did you mean 'html'"):
        Document("", "htm")
    assert [*DOCUMENT_FORMATS] == ["text", "html", "markdown", "srt", "xliff"]
