from dataclasses import replace

import pytest

from polyhead.core.errors import UserError
from polyhead.data.readers.parallel_corpus import CorpusReport, merge_corpora, open_corpus
from polyhead.data.readers.plain_text import TextReport, merge_texts, open_text
from polyhead.data.readers.text_filter import TextFilter, TextRules, are_in_languages

PAIRS = ["a b\tA B", "a b\tA  B", "a\tA", "abcdef\tABCDEF", "ab\tABCDEF", "ab\tAC"]


def parallel(tmp_path, rules, name="one"):
    path = tmp_path / f"{name}.tsv"
    path.write_text("\n".join(PAIRS) + "\n")
    return replace(open_corpus([path]), name=name, rules=rules)


@pytest.mark.parametrize(
    ("rules", "lines", "n_filtered"),
    [
        (TextRules(), [1, 2, 3, 4, 5, 6], {}),
        (TextRules(min_chars=2), [1, 2, 4, 5, 6], {"min_chars": 1}),
        (TextRules(max_chars=4), [1, 2, 3, 6], {"max_chars": 2}),
        (TextRules(max_ratio=2), [1, 2, 3, 4, 6], {"max_ratio": 1}),
        (TextRules(unique=True), [1, 3, 4, 5, 6], {"unique": 1}),
        (TextRules(min_chars=2, max_texts=2, unique=True), [1, 4], {"unique": 1, "min_chars": 1}),
    ],
)
def test_pairs_are_filtered_and_counted(rules, lines, n_filtered, tmp_path):
    corpus, report = parallel(tmp_path, rules), CorpusReport("one")
    assert [pair.line for pair in corpus.iter_pairs(report)] == lines
    assert (report.used, report.n_filtered) == (len(lines), n_filtered)


def test_filter_that_drops_all_is_explained(tmp_path):
    corpus = parallel(tmp_path, TextRules(min_chars=3, max_chars=5, unique=True, max_ratio=1.01))
    with pytest.raises(UserError) as error:
        list(parallel(tmp_path, TextRules(min_chars=4, max_chars=5)).iter_pairs())
    assert str(error.value) == (
        "no usable pair in one: 0 of 6 pairs; filtered 5 by min_chars, 1 by max_chars"
    )
    assert [pair.line for pair in corpus.iter_pairs()] == [1]


def test_a_mixture_reads_its_corpora_in_order(tmp_path):
    corpora = [parallel(tmp_path, TextRules(max_texts=2), "one"), parallel(tmp_path, TextRules(), "two")]
    report = CorpusReport("")
    assert [pair.line for pair in merge_corpora(corpora).iter_pairs(report)] == [1, 2, 1, 2, 3, 4, 5, 6]
    assert report.used == 8


@pytest.mark.parametrize(
    ("sides", "languages", "expected"),
    [
        (("The dog sees the cat.", "Der Hund sieht die Katze."), ("en", "de"), True),
        (("Der Hund und das Haus", "Der Hund sieht die Katze."), ("en", "de"), False),
        (("The dog and the house", "the dog and a house"), ("en", "de"), False),
        (("Same", "Same "), ("en", "de"), False),
        (("The dog", "狗 dog"), ("en", "zh"), False),  # one letter of four
        (("The dog Tom", "汤姆的狗"), ("en", "zh"), True),
        (("I am Tom", "トムです"), ("en", "ja"), True),
        (("12", "13"), ("en", "zh"), True),
        (("qwer qwer", "asdf asdf"), ("qa", "qb"), True),  # of unknown languages nothing is known
        (("Привет всем",), ("en",), False),
    ],
)
def test_language_rule(sides, languages, expected):
    assert are_in_languages(sides, languages) is expected
    text_filter = TextFilter(TextRules(languages=languages), {})
    assert text_filter.accepts(*sides) is expected
    assert text_filter.n_filtered == ({} if expected else {"language": 1})


def text(tmp_path, rules):
    path = tmp_path / "one.txt"
    path.write_text("aa\nb\n\naa\ncccc\n")
    return replace(open_text([path], "line"), name="one", rules=rules)


def test_lines_are_filtered_and_the_others_counted(tmp_path):
    corpus, report = text(tmp_path, TextRules(min_chars=2, unique=True)), TextReport("one")
    assert [chunk.text for chunk in corpus.read_chunks(report)] == ["aa", "cccc"]
    assert (report.documents, report.characters, report.lines) == (2, 8, 2)
    assert report.n_filtered == {"min_chars": 1, "unique": 1}
    with pytest.raises(UserError, match=r"no usable text in one: 0 documents.*filtered 4 by min_chars"):
        list(text(tmp_path, TextRules(min_chars=5)).read_chunks())
    both = merge_texts([corpus, text(tmp_path, TextRules(max_texts=1))])
    assert [chunk.text for chunk in both.read_chunks()] == ["aa", "cccc", "aa"]
