"""Markdown: the tokens of a parser are those of the document, but for the text."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from tests.data.documents.documents_helpers import check_untouched, seeds, texts, translate, translate_with

from polyhead.data.documents.markdown import escape_markdown

PAGE = """---
title: Ein Titel
---
# Ein *guter* Titel

> Erste Zeile. Zweite
> **fette Zeile** und `code` hier.
> Noch ein [toller **Link**](http://u "t").\\
> Ende

- Punkt <b>x</b> &amp; \\* <http://a.b>
- [ ] Aufgabe siehe [ref] und [^1]

| Kopf | b1 |
|------|:--:|
| c d  | 12 |

    Text Code

```python
Text
```

![alt](img) Bild

[ref]: http://x
"""


def list_tokens(text):
    """Blocks in order, and what inline tokens have besides text."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    tokens = parser.parse(text)
    copied = [child for token in tokens for child in token.children or []]
    kinds = ("text", "softbreak", "text_special")
    found = Counter((one.type, str(one.attrs), one.content) for one in copied if one.type not in kinds)
    return [(token.type, token.tag) for token in tokens], found


def test_page_keeps_all_but_its_text():
    table = {
        "Ein guter Titel": ("Title, a good one", [(0, 1), (1, 2), (1, 3), (2, 0)]),
        "Erste Zeile.": ("First line.", [(0, 0), (1, 1)]),
        "Zweite fette Zeile und hier.": ("Second bold line and here.", [(i, i) for i in range(5)]),
        "Noch ein toller Link.": ("A great_link here.", [(1, 0), (2, 1), (3, 1), (0, 2)]),
        "Ende": ("# End", [(0, 1)]),
        "Punkt x & *": ("Item x & *", [(i, i) for i in range(4)]),
        "Aufgabe siehe und": ("Task see and", [(i, i) for i in range(3)]),
        "Kopf": ("Head", [(0, 0)]),
        "b1": ("b1", [(0, 0)]),
        "c d": ("d|c", [(0, 0)]),
        "Bild": ("1. Picture", [(0, 1)]),
    }
    output = translate_with(PAGE, "markdown", table)
    assert output == (
        PAGE.replace("# Ein *guter* Titel", "# Title, a *good one*")
        .replace("> Erste Zeile. Zweite\n> **fette Zeile** und", "> First line. Second **bold line** and")
        .replace(" hier.\n> Noch ein [toller **Link**]", " here.\n> A [**great\\_link**]")
        .replace('"t").\\\n> Ende', '"t") here.\\\n> \\# End')
        .replace("Punkt <b>x</b> &amp; \\* <", "Item <b>x</b> & \\* <")
        .replace("Aufgabe siehe [ref] und", "Task see [ref] and")
        .replace("Kopf", "Head").replace("c d", "d\\|c").replace(" Bild", " 1\\. Picture")
    )  # fmt: skip
    assert check_untouched(PAGE, "markdown") == list(table)
    blocks, _ = list_tokens(output)
    assert blocks == list_tokens(PAGE)[0]


def test_mark_of_a_footnote_stays_before_its_text():
    page = "Ein Text[^a].\n\n[^a]: Ein Hund.\n\n> [^b]:\tEin Hund.\n> [^c]: Zwei\n"
    table = {"Ein Text.": ("A text.", [(0, 0), (1, 1)]), "Ein Hund.": ("Dogs.", []), "Zwei": ("Two", [])}
    assert translate_with(page, "markdown", table) == (
        "A text[^a].\n\n[^a]: Dogs.\n\n> [^b]:\tDogs.\n> [^c]: Two\n"
    )


parts = texts.map(escape_markdown) | st.sampled_from(
    ["`ein code`", "<http://a.b>", "![alt](x)", "https://a.b/c_d"]
)
MARKS = ["**{}**", "*{}*", "[{}](u)", "<b>{}</b>", "~~{}~~"]
inline = st.lists(
    parts | st.tuples(st.sampled_from(MARKS), texts.map(escape_markdown)).map(
        lambda pair: pair[0].format(pair[1])
    ),
    min_size=1, max_size=4,
).map(" ".join)  # fmt: skip
blocks = st.lists(
    st.sampled_from(["{}\n\n", "# {}\n", "- {}\n", "> {}\n> {}\n\n", "1. {}\n   {}\n", "{}\\\n{}\n\n"]),
    max_size=4,
)


@given(st.data(), seeds)
def test_random_pages_keep_their_tokens(data, seed):
    text = "".join(block.format(*data.draw(st.tuples(inline, inline))) for block in data.draw(blocks))
    check_untouched(text, "markdown")
    output, _ = translate(text, "markdown", seed)
    assert list_tokens(output) == list_tokens(text)


@pytest.mark.parametrize(
    "text", ["", "12\n", "```\nText\n", "<div>\nText\n</div>\n", "    Text\n", "[a]: http://b\r\n"]
)
def test_pages_without_text_stay(text):
    assert check_untouched(text, "markdown") == []


@pytest.mark.parametrize("tag", ["<br>", "<BR/>", "<br />"])
def test_line_breaks_of_html_are_between_texts(tag):
    text = f"| a |\n|---|\n| *ein*{tag}zwei |\n"
    table = {"a": ("b", []), "ein": ("one", [(0, 0)]), "zwei": ("two", [])}
    assert translate_with(text, "markdown", table) == f"| b |\n|---|\n| *one*{tag}two |\n"


def test_blocks_that_would_lose_markup_stay():
    text = "Ein **(gut)** da\n\nBild\n"
    table = {
        "Ein (gut) da": ("你好(好)你", [(0, 0), (0, 1), (1, 2), (1, 3), (1, 4), (2, 5)]),
        "Bild": ("图", []),
    }
    assert translate_with(text, "markdown", table) == text.replace("Bild", "图")
