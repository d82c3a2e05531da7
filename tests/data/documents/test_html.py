"""HTML: what another parser finds in the translation is what it finds in the document."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import html
from tests.data.documents.documents_helpers import check_untouched, seeds, texts, translate, translate_with

from polyhead.data.documents.segment import escape_xml

PAGE = """<!doctype html>
<html lang=de><head><title>Ein Titel</title><style>p { color: red }</style>
<script>if (a < b) { f("<p>Text</p>") }</script></head>
<body><!-- Text --><p class="x">Das ist <b>sehr gut</b>, siehe <a href="u?a=1&amp;b=2" title="Titel">hier</a>.
Nutze <code>a &lt; b</code> jetzt!<br>Neu &amp; alt</p><pre>  Text  </pre>
<ul><li>Eins<li>Zwei <img src=x alt="Text"> drei</ul><p translate="no">Text</p></body></html>
"""


def list_tags(text):
    """Each tag with its attributes and the names of the tags around it, of tags that are not moved."""
    root = html.document_fromstring(text)
    return Counter(
        (node.tag, *sorted(node.attrib.items())) for node in root.iter() if isinstance(node.tag, str)
    )


def test_page_keeps_all_but_its_text():
    table = {
        "Ein Titel": ("A title", [(0, 0), (1, 1)]),
        "Das ist sehr gut, siehe hier.": (
            "This is, see here, very good.", [(0, 0), (1, 1), (2, 4), (3, 5), (4, 2), (5, 3)]
        ),
        "Nutze jetzt!": ("Now use!", [(0, 1), (1, 0)]),
        "Neu & alt": ("New & <old>", [(0, 0), (1, 1), (2, 2)]),
        "Eins": ("One", [(0, 0)]),
        "Zwei drei": ("Two three", [(0, 0), (1, 1)]),
    }  # fmt: skip
    assert translate_with(PAGE, "html", table) == (
        PAGE.replace("<title>Ein Titel", "<title>A title")
        .replace("Das ist <b>sehr gut</b>, siehe ", "This is, see ")
        .replace(">hier</a>.", ">here</a>, <b>very good</b>.")
        .replace("Nutze <code>a &lt; b</code> jetzt!", "Now use <code>a &lt; b</code>!")
        .replace("Neu &amp; alt", "New &amp; &lt;old&gt;")
        .replace("Eins", "One").replace("Zwei <img", "Two <img").replace("> drei", "> three")
    )  # fmt: skip
    assert check_untouched(PAGE, "html") == list(table)


TAGS = [("<b>", "</b>"), ('<a href="x>y">', "</a>"), ("<i class=z>", "</i>"), ("<i>", ""), ("", "</b>")]
inline = st.recursive(
    texts.map(escape_xml)
    | st.sampled_from(["<img src=x>", "<code>ein &amp; zwei</code>", "<!-- Text -->", " "]),
    lambda parts: st.tuples(
        st.sampled_from(TAGS),
        st.lists(parts, min_size=1, max_size=3).map(" ".join),
    ).map(lambda pair: pair[0][0] + pair[1] + pair[0][1]),
    max_leaves=8,
)  # fmt: skip
blocks = st.lists(
    st.sampled_from(["<p>{}</p>\n", "<div>{}", "<td>{}</td>", "{}<br>", "<h1 id=y>{}</h1>"]), max_size=4
)


@given(st.data(), seeds)
def test_random_pages_keep_their_tags(data, seed):
    text = "<body>" + "".join(block.format(data.draw(inline)) for block in data.draw(blocks)) + "</body>"
    check_untouched(text, "html")
    output, translations = translate(text, "html", seed)
    tags = [Counter(re.findall(r'<(?:!--|/?[a-z])(?:"[^"]*"|[^>"])*>', one)) for one in (text, output)]
    assert tags[0] == tags[1]
    if re.search("<i>|</b>", re.sub("<b>((?!<b>|<i>).)*</b>", "", text)) is None:  # all is closed
        assert list_tags(text) == list_tags(output)
    found = html.document_fromstring(re.sub("<code>.*?</code>|<!--.*?-->", " ", output)).text_content()
    for word in re.findall(r"\w+", " ".join(translations)):  # markup can stand before punctuation
        assert word in found


@pytest.mark.parametrize(
    "text", ["", "<p>", "<p>12 &amp; 3</p>\r\n", "<script>var a = 'Text'", "&", "1<b>2</i>"]
)
def test_pages_without_text_stay(text):
    assert check_untouched(text, "html") == []
    assert translate(text, "html") == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        "<p translate=no>Hallo<p>Welt ist</p>",
        "<div><p translate=no>Hallo</div><p>Mehr Text</p>",
        "<p translate=no>Hallo</b> Welt<hr>Ende",
        "<ul><li translate=no>Eins<ul><li>Zwei</ul>Drei<li>Vier</ul><p>Ende gut</p>",
        "<dl><dt translate=no>Eins<dd>Zwei Drei</dl>",
        "<table><tr><td translate=no>Eins<td>Zwei<tr translate=no><td>Drei<td>Vier<tr><td>Acht</table>",
    ],
)
def test_end_tags_may_be_left_out(text):
    nodes = html.fromstring(f"<body>{text}</body>").xpath('//text()[not(ancestor::*[@translate="no"])]')
    assert check_untouched(text, "html") == [str(node) for node in nodes]


def test_deep_markup_is_copied():
    text = "<p>" + "<b>" * 3000 + "Text" + "</b>" * 3000 + "</p>"
    output, _ = translate(text, "html")
    assert output.replace("TXET", "Text") == text
