import contextlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.plain_text_helpers import PARAGRAPHS, PLAY, read_documents

from polyhead import Choice
from polyhead.core.errors import UserError
from polyhead.data.readers.plain_text import TextFiles, TextReport, open_text
from polyhead.data.stores.token_store import TokenStore
from polyhead.tokenizers.train_tokenizer import train_tokenizer

LINES = ["ROMEO:", "But soft!", "JULIET:", "Ay me.", "ROMEO:", "She speaks."]


def read_values(paths, columns, **options):
    report = TextReport("x")
    chunks = open_text(paths, options.pop("kind", "line"), columns=columns, **options).read_chunks(report)
    return [chunk.text for chunk in chunks], report


@pytest.mark.parametrize(
    ("kind", "expected", "n_lines"), [("file", [PLAY], 8), ("line", LINES, 6), ("blank", PARAGRAPHS, 6)]
)
def test_documents_are_files_lines_or_paragraphs(write_file, kind, expected, n_lines):
    documents, report = read_documents(open_text([write_file("play", PLAY)], kind))
    assert documents == expected
    assert (report.documents, report.lines) == (len(expected), n_lines)
    # each line end of a file is a word, and the end of each other document is one with its last line end
    n_words, n_characters = (17, len(PLAY)) if kind == "file" else (9 + 6, sum(len(d) + 1 for d in expected))
    assert (report.words, report.characters) == (n_words, n_characters)


def test_invalid_lines_are_skipped_and_counted(write_file):
    path = write_file("a", b"good\n\xff\xfe bad\nfine\nnu\x00l\nlast")
    documents, report = read_documents(open_text([path], "line"))
    assert documents == ["good", "fine", "last"]
    skipped = "skipped 2 lines that are not text or too long"
    assert str(report) == f"a: 3 documents, 3 lines, 15 characters; {skipped}"
    assert read_documents(open_text([path], "file"))[0] == ["good\nfine\nlast"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    contents=st.lists(st.text(alphabet="ab \n", min_size=3, max_size=50), min_size=1, max_size=3),
    fraction=st.floats(0.05, 0.95),
    kind=st.sampled_from(["file", "line", "blank"]),
)
def test_two_splits_hold_everything_once(write_file, contents, fraction, kind):
    paths = tuple(write_file(f"part{i}", "x" + content) for i, content in enumerate(contents))

    def read_split(start, end):
        with contextlib.suppress(UserError):  # a split without text
            return read_documents(TextFiles(paths, kind, (start, end)))[0]
        return []

    train, valid = read_split(0.0, fraction), read_split(fraction, 1.0)
    expected = read_documents(TextFiles(paths, kind))[0]
    if kind != "file":  # no document is cut
        assert train + valid == expected
        return
    text = "".join(expected)
    assert "".join(train) == text[: int(len(text) * fraction)]
    assert "".join(train + valid) == text
    assert "" not in train + valid


def test_missing_text_is_refused(write_file):
    one, blank = write_file("one", "a line that is the whole text\n"), write_file("blank", "\n \n\n")
    for paths, split, message in (
        ([one], (0.9, 1.0), r"one: no text in this split: data\.valid_fraction is too small or"),
        ([blank], (0.0, 1.0), r"^blank: no visible text$"),
        ([one, write_file("unseen", "\u200b\u3000\n\xa0")], (0.0, 1.0), "^unseen: no visible text$"),
        ([], (0.0, 1.0), "no files: expected a plain text file"),
    ):
        with pytest.raises(UserError, match=message):
            read_documents(open_text(paths, "line", split))


TSV = "label\tsentence\n0\ta b\n1\tsecond one\n1\t \nbroken\n0\tthe end\n"
JSONL = '{"x": {"s": "a b"}}\n\n{"x": {"s": "second one"}}\n{"x": {"s": 3}}\n{"x": {"s": "the end"}}\n'


@pytest.mark.parametrize(
    ("name", "content", "column"), [("a.tsv", TSV, "sentence"), ("a.jsonl", JSONL, "x.s")]
)
def test_column_of_a_table_equals_lines_of_text(write_file, tokenizer, tmp_path, name, content, column):
    text = open_text([write_file("plain.txt", "a b\nsecond one\nthe end\n")], "line")
    table = open_text([write_file(name, content)], "file", columns=[column])
    documents, expected = TextReport("x"), TextReport("x")
    assert [c.text for c in table.read_chunks(documents)] == [c.text for c in text.read_chunks(expected)]
    assert (documents.documents, documents.malformed) == (3, 1)
    assert (documents.words, documents.characters) == (expected.words, expected.characters)
    stores = [TokenStore.open_or_build(files, tokenizer, tmp_path / "cache") for files in (table, text)]
    assert stores[0].ids.tolist() == stores[1].ids.tolist()
    assert stores[0].document_starts.tolist() == stores[1].document_starts.tolist()


def test_columns_of_tables_are_selected(write_file):
    path, data = write_file("a.tsv", TSV), write_file("table.data", "0\ta b\n")
    # a column number implies no header, so that the first line is text
    assert read_values([path], [1])[0] == ["sentence", "a b", "second one", "the end"]
    both = ["0", "a b", "1", "second one", "1", "0", "the end"]
    assert read_values([path], ["label", "sentence"])[0] == both
    assert read_values([data], [1], format="tsv")[0] == ["a b"]
    assert read_values([data], [1])[0] == ["0\ta b"]
    with pytest.raises(UserError, match=r"unknown column of a.tsv 'sentense'; did you mean 'sentence'"):
        open_text([path], "line", columns=["sentense"])


def test_values_of_a_table_keep_line_ends(write_file, tmp_path, monkeypatch):
    code, book = "def f(x):\n    return x\n", "word " * 400_000  # longer than lines of other files may be
    lines = [json.dumps({"text": text}) for text in (code, book, "\n", "end")]
    table = write_file("code.jsonl", "\n".join(lines) + "\n")
    values, report = read_values([table], ["text"], kind="file")
    assert values == [code, book, "end"]
    assert (report.documents, report.malformed, report.lines) == (3, 0, code.count("\n") + 3)
    for name, content, column in (("a.csv", f"text\n{book}", "text"), ("a.tsv", book, 0)):
        assert "".join(read_values([write_file(name, f"{content}\n")], [column], kind="file")[0]) == book
    path = write_file("code.csv", f'id,text\n1,"{code}"\n2,end\n')
    tokenizer = train_tokenizer([code, "word end"], Choice("byte"), 300)
    text = open_text([path], "file", columns=["text"])
    store = TokenStore.open_or_build(text, tokenizer, tmp_path / "cache")
    start, end, *_ = store.document_starts.tolist()
    assert tokenizer.decode([store.ids[start + 1 : end].tolist()]) == [code]
    monkeypatch.setattr("polyhead.data.readers.plain_text.MAX_VALUE_BYTES", 1 << 20)
    values, report = read_values([table], ["text"], kind="file")
    assert (values, report.malformed) == ([code, "end"], 1)
    path = write_file("lines.jsonl", json.dumps({"t": "a\u2028b\x85c\x0bd\r\ne\n\nf\n"}) + "\n")
    assert read_values([path], ["t"])[0] == ["a\u2028b\x85c\x0bd\ne\n\nf\n"]


def test_row_with_a_null_column_is_not_used(write_file):
    rows = [{"a": "one", "b": "two"}, {"a": "x", "b": None}, {"a": 3, "b": "four"}]
    values, report = read_values([write_file("a.jsonl", "\n".join(map(json.dumps, rows)))], ["a", "b"])
    assert (values, report.malformed) == (["one", "two", "four"], 2)


@pytest.mark.parametrize("kind", ["file", "line", "blank"])
@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.81])
def test_malformed_line_is_counted_in_one_split(write_file, kind, fraction):
    lines = [b"\xff" if i in (0, 3, 4, 9) else b"one %d" % i for i in range(10)]
    path, splits = write_file("broken", b"\n\n".join(lines) + b"\n"), ((0.0, fraction), (fraction, 1.0))
    counts = [read_documents(open_text([path], kind, split))[1].malformed for split in splits]
    assert sum(counts) == 4 and all(counts)


def test_marks_and_line_ends_of_files_are_removed(write_file):
    content = b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\nth\xef\xbb\xbfree\n\xef\xbb\xbf"
    path = write_file("a.txt", content)
    paths = [write_file("a", b"\xef\xbb\xbfone\r\ntwo\r\n"), write_file("b", "three\n\n")]
    documents = {"file": ["one\ntwo\n", "three\n\n"], "blank": ["one\ntwo", "three"]}
    documents["line"] = ["one", "two", "three"]
    assert {kind: read_documents(open_text(paths, kind))[0] for kind in documents} == documents
    (text,), report = read_documents(open_text([path], "file"))
    assert text == "one\ntwo\nth\ufeffree\n"
    assert (report.bom, report.characters, report.malformed) == (2, len(text), 0)
    assert str(report).endswith("; removed 2 byte order marks inside the file")
    splits = ((0.0, 0.5), (0.5, 1.0))
    assert sum(read_documents(open_text([path], "file", split))[1].bom for split in splits) == 2
