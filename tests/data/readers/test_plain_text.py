"""Plain text: documents, shares, marks, rows; each token once."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.plain_text_helpers import documents

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.data.readers.plain_text import TextFiles, TextReport, open_text, read_text_lines
from polyhead.data.stores.token_store import TokenStore
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

Write = Callable[[str, bytes | str], Path]
PLAY = "ROMEO:\nBut soft!\n\n\nJULIET:\nAy me.\n \nROMEO:\nShe speaks."


@pytest.mark.parametrize(
    ("kind", "wanted", "lines", "words"),
    [
        ("file", [PLAY], 8, 18 - 2),
        ("line", ["ROMEO:", "But soft!", "JULIET:", "Ay me.", "ROMEO:", "She speaks."], 6, 9 + 6),
        ("blank", ["ROMEO:\nBut soft!", "JULIET:\nAy me.", "ROMEO:\nShe speaks."], 6, 9 + 6),
    ],
)
def test_documents_are_files_lines_or_what_stands_between_blank_lines(
    write, kind, wanted, lines, words
) -> None:
    found, report = documents(open_text([write("play", PLAY)], kind))
    assert found == wanted
    assert (report.documents, report.lines) == (len(wanted), lines)
    if kind == "file":  # a word is what stands between blanks, and each line's end is one more
        words, characters = len(PLAY.split()) + PLAY.count("\n"), len(PLAY)
    else:  # the mark of a document stands for the end of its last line
        characters = sum(len(document) + 1 for document in wanted)
    assert (report.words, report.characters) == (words, characters)


def test_files_are_documents_of_their_own_and_windows_line_ends_are_plain(write: Write) -> None:
    paths = [write("a", b"\xef\xbb\xbfone\r\ntwo\r\n"), write("b", "three\n\n")]
    assert documents(open_text(paths, "file"))[0] == ["one\ntwo\n", "three\n\n"]
    assert documents(open_text(paths, "line"))[0] == ["one", "two", "three"]
    assert documents(open_text(paths, "blank"))[0] == ["one\ntwo", "three"]


def test_lines_that_are_no_text_are_skipped_and_counted(write: Write) -> None:
    path = write("a", b"good\n\xff\xfe bad\nfine\nnu\x00l\nlast")
    found, report = documents(open_text([path], "line"))
    assert found == ["good", "fine", "last"]
    assert report.malformed == 2
    assert (
        str(report) == "a: 3 documents, 3 lines, 15 characters; skipped 2 lines that are not text or too long"
    )
    assert documents(open_text([path], "file"))[0] == ["good\nfine\nlast"]


@pytest.mark.slow
def test_a_line_of_many_megabytes_is_read_in_parts(write: Write) -> None:
    path = write("text8", "word " * 700_000)
    found, report = documents(open_text([path], "line"))
    assert found == ["word " * 700_000]
    assert (report.words, report.malformed) == (700_001, 0)
    assert max(map(len, read_text_lines(open_text([path], "line")))) <= 20_000


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    contents=st.lists(st.text(alphabet="ab \n", min_size=3, max_size=50), min_size=1, max_size=3),
    share=st.floats(0.05, 0.95),
    kind=st.sampled_from(["file", "line", "blank"]),
)
def test_two_shares_hold_everything_exactly_once(write, contents, share, kind) -> None:
    paths = tuple(write(f"part{i}", "x" + content) for i, content in enumerate(contents))

    def part(begin: float, end: float) -> list[str]:
        with contextlib.suppress(UserError):  # no text in this share of it
            return documents(TextFiles(paths, kind, (begin, end)))[0]
        return []

    train, valid, whole = part(0.0, share), part(share, 1.0), documents(TextFiles(paths, kind))[0]
    if kind != "file":  # no document is cut
        assert train + valid == whole
        return
    together = "".join(whole)
    assert "".join(train) == together[: int(len(together) * share)]
    assert "".join(train + valid) == together
    assert "" not in train + valid


def test_a_share_without_text_is_told(write: Write) -> None:
    path = write("one", "a line that is the whole text\n")
    with pytest.raises(
        UserError, match=r"one: no text in this split: data\.valid_fraction is too small or too large"
    ):
        documents(open_text([path], "line", (0.9, 1.0)))


def test_no_text_and_no_files_are_told(write: Write) -> None:
    with pytest.raises(UserError, match=r"^blank: no text$"):
        documents(open_text([write("blank", "\n \n\n")], "line"))
    with pytest.raises(UserError, match="no files: expected a plain text file"):
        open_text([], "file")


def test_columns_of_tables_are_documents(write: Write, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Beside the same lines as plain text."""
    plain = write("plain.txt", "a b\nsecond one\nthe end\n")
    tsv = write("labelled.tsv", "label\tsentence\n0\ta b\n1\tsecond one\n1\t \nbroken\n0\tthe end\n")
    jsonl = write(
        "labelled.jsonl",
        '{"x": {"s": "a b"}}\n\n{"x": {"s": "second one"}}\n{"x": {"s": 3}}\n{"x": {"s": "the end"}}\n',
    )
    wanted = open_text([plain], "line")
    for file, column, broken in ((tsv, "sentence", 1), (tsv, 1, 1), (jsonl, "x.s", 1)):
        text = open_text([file], "file", columns=[column])
        # a number names no header, so its line is text like others
        header = ["sentence"] if column == 1 else []
        report, reference = TextReport("x"), TextReport("x")
        assert [piece.text for piece in text.read_chunks(report)] == [
            *header,
            *(p.text for p in wanted.read_chunks(reference)),
        ]
        assert (report.documents, report.malformed) == (len(header) + 3, broken)
        assert header or (report.words, report.characters) == (reference.words, reference.characters)
        store, other = (TokenStore.open_or_build(t, tokenizer, tmp_path / "cache") for t in (text, wanted))
        assert header or (store.ids.tolist(), store.document_starts.tolist()) == (
            other.ids.tolist(),
            other.document_starts.tolist(),
        )
    both = open_text([tsv], "file", columns=["label", "sentence"])
    assert [p.text for p in both.read_chunks(TextReport("x"))] == [
        "0",
        "a b",
        "1",
        "second one",
        "1",
        "0",
        "the end",
    ]
    kept = write("kept.jsonl", json.dumps({"t": "a\u2028b\x85c\x0bd\r\ne\n\nf\n"}) + "\n")
    (piece,) = open_text([kept], "line", columns=["t"]).read_chunks(TextReport("x"))
    assert piece.text == "a\u2028b\x85c\x0bd\ne\n\nf\n"  # one document, as it was written
    named = write("table.data", "0\ta b\n")
    assert [
        p.text for p in open_text([named], "line", columns=[1], format="tsv").read_chunks(TextReport("x"))
    ] == ["a b"]
    assert [p.text for p in open_text([named], "line", columns=[1]).read_chunks(TextReport("x"))] == [
        "0\ta b"
    ]
    with pytest.raises(
        UserError, match=r"unknown column of labelled.tsv 'sentense'; did you mean 'sentence'"
    ):
        open_text([tsv], "line", columns=["sentense"])


def test_values_of_a_table_are_documents_with_their_line_ends(
    write: Write, tmp_path: Path, monkeypatch
) -> None:
    code = "def f(x):\n    return x\n"
    book = "word " * 400_000  # more bytes than a line of other files may have
    table = write(
        "code.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in (code, book, "\n", "end"))
    )
    csv = write("code.csv", f'id,text\n1,"{code}"\n2,end\n')
    tokenizer = train_tokenizer([code, "word end"], Choice("byte"), 300)
    report = TextReport("x")
    assert [piece.text for piece in open_text([table], "file", columns=["text"]).read_chunks(report)] == [
        code,
        book,
        "end",
    ]
    assert (report.documents, report.malformed, report.lines) == (3, 0, code.count("\n") + 3)
    store = TokenStore.open_or_build(
        open_text([csv], "file", columns=["text"]), tokenizer, tmp_path / "cache"
    )
    begins = store.document_starts.tolist()
    assert tokenizer.decode([store.ids[begins[0] + 1 : begins[1]].tolist()]) == [code]
    monkeypatch.setattr("polyhead.data.readers.plain_text.MAX_VALUE_BYTES", 1 << 20)
    kept = open_text([table], "file", columns=["text"]).read_chunks(report := TextReport("x"))
    assert ([piece.text for piece in kept], report.malformed) == ([code, "end"], 1)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv"])
def test_a_table_may_hold_nothing_but_books(write: Write, name: str) -> None:
    book = "so long " * (1 << 18)
    line = json.dumps({"text": book}) if name == "a.jsonl" else f"text\n{book}" if name == "a.csv" else book
    path = write(name, f"{line}\n".encode())
    opened = open_text([path], "file", columns=[0 if name == "a.tsv" else "text"])
    assert "".join(piece.text for piece in opened.read_chunks(TextReport("x"))) == book


@pytest.mark.parametrize("kind", ["file", "line", "blank"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.81])
def test_a_line_that_is_no_text_is_counted_in_one_share(write: Write, kind: str, share: float) -> None:
    lines = [b"\xff" if i in (0, 3, 4, 9) else b"one %d" % i for i in range(10)]
    path = write("broken", b"\n\n".join(lines) + b"\n")
    reports = [documents(open_text([path], kind, part))[1] for part in ((0.0, share), (share, 1.0))]
    assert sum(report.malformed for report in reports) == 4
    assert all(report.malformed for report in reports)


def test_marks_of_joined_files_are_removed_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\nth\xef\xbb\xbfree\n\xef\xbb\xbf")
    report = TextReport("a.txt")
    text = "".join(piece.text for piece in open_text([path], "file").read_chunks(report))
    assert text == "one\ntwo\nth\ufeffree\n"
    assert (report.bom, report.characters, report.malformed) == (2, len(text), 0)
    assert str(report).endswith("; removed 2 byte order marks inside the file")
    parts = [TextReport("a.txt"), TextReport("a.txt")]
    for part, fractions in zip(parts, ((0.0, 0.5), (0.5, 1.0)), strict=True):
        list(open_text([path], "file", fractions).read_chunks(part))
    assert sum(part.bom for part in parts) == 2
