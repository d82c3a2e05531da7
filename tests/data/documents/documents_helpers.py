"""Translations without a model: words in reverse and in capitals, in another order."""

import random

from hypothesis import strategies as st

from polyhead.data.documents.document import Document
from polyhead.tokenizers.scripts import find_words

WORDS = [
    "eins",
    "Zwei",
    "drei,",
    "vier.",
    "a&b",
    "<fünf>",
    "*sechs*",
    "x_y",
    "(sieben)",
    "8",
    "»neun«",
    "你好",
]
# white space that stays and that nobody reads as the end of a paragraph
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
seeds = st.integers(0, 2**20)


def translate(text, format, seed=0, language="de", alignments=None):
    """A document with its words changed and shuffled, and the words of the outputs."""
    document, random_state = Document(text, format, language, "en"), random.Random(seed)
    outputs, links = [], []
    for sentence in document.sentences:
        words = [sentence[a:b] for a, b in find_words(sentence)]
        order = random_state.sample(range(len(words)), len(words))
        outputs.append(" ".join(words[i][::-1].upper() for i in order))
        links.append([(i, j) for j, i in enumerate(order) if random_state.random() < 0.9])
    return document.render(outputs, links if alignments is None else alignments), outputs


def translate_with(text, format, table, language="de"):
    """A document with the translations of a table: sentence -> (translation, aligned words)."""
    document = Document(text, format, language, "en")
    pairs = [table[sentence] for sentence in document.sentences]
    return document.render([output for output, _ in pairs], [links for _, links in pairs])


def check_untouched(text, format):
    """A document of which nothing is translated is the same to the byte."""
    document = Document(text, format, "de", "en")
    stays = [None] * len(document.sentences)
    assert document.render(stays, [()] * len(stays)) == text
    return document.sentences
