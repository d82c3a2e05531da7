"""Documents translated by a run: its sentences, its alignments, what it refuses."""

import pytest
from lxml import html
from tests.serve.conftest import TEXTS, build_run

from polyhead.core.errors import UserError
from polyhead.data.documents.document import Document
from polyhead.run.run_ensemble import ensemble_runs

PAGE = "<p>Two <b>dogs</b> bark.  A dog <code>sits</code>.</p>\n<ul><li>A cat<li>12</ul>"


@pytest.fixture(scope="module")
def translator():
    return build_run("encoder-decoder", n_layers=2, max_len=24)


def test_documents_have_translations_and_alignments(translator):
    document = Document(PAGE, "html", "en")
    outputs = translator.translate(document.sentences)
    pairs = translator.align_pairs(document.sentences, outputs)
    expected = document.render([text or None for text in outputs], [pair.alignment for pair in pairs])
    output = translator.translate_document(PAGE, "html", source_lang=None)
    if all(map(str.strip, outputs)):
        assert output == expected and output != PAGE
    tags = [[node.tag for node in html.document_fromstring(text).iter()] for text in (PAGE, output)]
    assert sorted(tags[0]) == sorted(tags[1])
    assert ensemble_runs([translator, translator]).translate_document(PAGE, "html") == output
    text = "Dogs bark.\n\n  A dog sits.\n"
    first, second = translator.translate(["Dogs bark.", "A dog sits."])
    assert translator.translate_document(text) == f"{first.strip()}\n\n  {second.strip()}\n"


def test_long_sentences_stay_and_are_named(translator):
    text, refusals = f"Dogs bark.\n\n{'dogs bark ' * 30}\n", {}
    output = translator.translate_document(text, refusals=refusals)
    assert output.split("\n\n")[1] == text.split("\n\n")[1] and output != text
    assert [*refusals] == [1] and "the model's maximum is 23" in refusals[1]
    assert translator.translate_document(text, truncate=True) != output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "pdf"}, "unknown document format 'pdf'; known: html, markdown"),
        ({"prefix": [""]}, r"prefix is \[''\]: it is for lists of texts"),
        ({"n_best": 2}, "n_best is 2"),
        ({"format": "xliff"}, "xliff: the document is not well-formed XML"),
        ({"beam": 2}, "beam"),
    ],
)
def test_mistakes_are_named(translator, options, message):
    with pytest.raises(UserError, match=message):
        translator.translate_document(TEXTS[0], **options)
    with pytest.raises(UserError, match="half of a surrogate pair"):
        translator.translate_document("\ud800")
    with pytest.raises(UserError, match="encoder-decoder"):
        build_run("decoder").translate_document("Text")
