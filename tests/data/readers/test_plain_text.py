"""Plain text: documents, shares, marks, rows; each token once."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.data.batching.token_windows import collate_windows, plan_windows
from polyhead.data.readers import files, plain_text
from polyhead.data.readers.plain_text import TextFiles, TextReport, open_text, read_text_lines
from polyhead.data.stores.build_cache import cache_dir
from polyhead.data.stores.token_store import TokenStore
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

Write = Callable[[str, bytes | str], Path]
PLAY = "ROMEO:\nBut soft!\n\n\nJULIET:\nAy me.\n \nROMEO:\nShe speaks."


def documents(of: TextFiles) -> tuple[list[str], TextReport]:
    """The documents, whole, and the report."""
    report, found, held = TextReport(of.source_label), [], ""
    for piece in of.read_chunks(report):
        held += piece.text
        if piece.is_last:
            found.append(held)
            held = ""
    assert not held
    return found, report


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
        str(report) == "a: 3 documents, 3 lines, 15 characters; skipped 2 lines that are no text or too long"
    )
    assert documents(open_text([path], "file"))[0] == ["good\nfine\nlast"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.text(alphabet="ab é你\n\r", max_size=40), min_size=1, max_size=4),
    size=st.integers(9, 30),
    piece=st.integers(1, 30),
)
def test_nothing_is_lost_where_long_lines_and_pieces_are_cut(write, monkeypatch, parts, size, piece) -> None:
    content = "x\n" + "".join(parts)
    path = write("long", content)
    spans = list(files.iter_spans(path, size))
    assert b"".join(spans).decode() == content.replace("\r\n", "\n")
    assert all(len(span) <= size and span.count(b"\n") <= 1 for span in spans)
    for span in spans:
        span.decode()  # no character is cut
    whole = {kind: documents(open_text([path], kind)) for kind in ("file", "line", "blank")}
    with monkeypatch.context() as patch:
        patch.setattr(plain_text, "_CHUNK_CHARS", piece)
        for kind, (found, report) in whole.items():
            assert documents(open_text([path], kind)) == (found, report)
        patch.setattr(plain_text, "iter_spans", lambda path: files.iter_spans(path, size))
        assert documents(open_text([path], "line"))[0] == whole["line"][0]
        assert documents(open_text([path], "file"))[0] == whole["file"][0]


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
        UserError, match=r"one: no text in this share of it: data\.valid_share is too small or too large"
    ):
        documents(open_text([path], "line", (0.9, 1.0)))


def test_no_text_and_no_files_are_told(write: Write) -> None:
    with pytest.raises(UserError, match=r"^blank: no text$"):
        documents(open_text([write("blank", "\n \n\n")], "line"))
    with pytest.raises(UserError, match="no files: name a file of plain text"):
        open_text([], "file")


def build(tmp_path: Path, tokenizer: Tokenizer, paths: list[Path], kind: str) -> TokenStore:
    return TokenStore.open_or_build(open_text(paths, kind), tokenizer, tmp_path / "cache")


def test_each_document_begins_with_the_mark_that_ends_the_one_before(write, tokenizer, tmp_path) -> None:
    store = build(tmp_path, tokenizer, [write("play", PLAY)], "blank")
    mark = tokenizer.eos_id
    wanted = [mark]
    begins = []
    for document in ["ROMEO:\nBut soft!", "JULIET:\nAy me.", "ROMEO:\nShe speaks."]:
        begins.append(len(wanted) - 1)
        wanted += [*tokenizer.encode([document])[0], mark]
    assert store.ids.tolist() == wanted
    assert store.document_starts.tolist() == begins
    again = build(tmp_path, tokenizer, [tmp_path / "play"], "blank")
    assert again.directory == store.directory and again.report == store.report
    assert build(tmp_path, tokenizer, [tmp_path / "play"], "line").directory != store.directory


def test_one_file_that_is_one_document_has_no_mark(write, tokenizer, tmp_path) -> None:
    store = build(tmp_path, tokenizer, [write("play", PLAY)], "file")
    assert store.ids.tolist() == tokenizer.encode([PLAY])[0]
    assert store.document_starts.tolist() == [0]


def test_documents_that_begin_with_tokens_of_their_own_stand_apart(write, tokenizer, tmp_path) -> None:
    """No end of one is asked for how the next begins."""
    text, end = open_text([write("play", PLAY)], "blank"), tokenizer.eos_id
    begin = [tokenizer.bos_id]
    assert begin != [end]
    store = TokenStore.open_or_build(text, tokenizer, tmp_path / "cache", begin)
    read = tokenizer.encode(["ROMEO:\nBut soft!", "JULIET:\nAy me.", "ROMEO:\nShe speaks."])
    assert store.ids.tolist() == [token for ids in read for token in (*begin, *ids, end)]
    assert store.document_starts.tolist() == [0, len(read[0]) + 2, len(read[0]) + len(read[1]) + 4]
    rows = collate_windows(store, np.array([0]), len(store), has_documents=True)
    wanted = [token for ids in read for token in (*ids, end, IGNORE_INDEX)]
    assert rows.labels[0].tolist() == wanted
    assert rows.pos[0].tolist() == [i for ids in read for i in range(len(ids) + 2)]
    plain = TokenStore.open_or_build(text, tokenizer, tmp_path / "cache")
    assert plain.directory != store.directory
    same = TokenStore.open_or_build(text, tokenizer, tmp_path / "cache", [end])
    assert (same.directory, same.has_document_prefix) == (plain.directory, False)


@settings(max_examples=100, deadline=None)
@given(length=st.integers(2, 300), width=st.integers(1, 40), rows=st.integers(1, 9), epoch=st.integers(0, 50))
def test_rows_of_an_epoch_lie_side_by_side_and_fit(length, width, rows, epoch) -> None:
    if (length - 1) // width < 2:
        with pytest.raises(UserError, match=f"{length} tokens of text are fewer than two rows of {width}"):
            plan_windows(length, width, rows, seed=3, epoch=epoch)
        return
    batches = plan_windows(length, width, rows, seed=3, epoch=epoch)
    again = plan_windows(length, width, rows, seed=3, epoch=epoch)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))
    starts = np.sort(np.concatenate(batches))
    n = (length - 1) // width - 1
    assert len({len(batch) for batch in batches}) == 1 and len(batches[0]) == min(rows, n)
    assert len(starts) == max(n - n % rows, n % rows if n < rows else 0)
    assert starts[0] >= 0 and starts[-1] + width < length  # the last label is there
    assert len(set(starts % width)) == 1 and (np.diff(starts) >= width).all()


def test_the_order_is_of_seed_and_epoch_and_every_place_begins_a_row_some_day() -> None:
    plans = [
        np.concatenate(plan_windows(50, 7, 2, seed=seed, epoch=epoch)).tolist()
        for seed in (0, 1)
        for epoch in range(40)
    ]
    assert len({tuple(plan) for plan in plans}) > 70
    assert {start for plan in plans for start in plan} == set(range(50 - 7))


@pytest.mark.parametrize("kind", ["file", "line", "blank"])
@pytest.mark.parametrize("width", [1, 3, 10, 1000])
def test_rows_side_by_side_ask_for_each_token_once_and_count_positions_in_documents(
    write, tokenizer, tmp_path, kind, width
) -> None:
    store = build(tmp_path, tokenizer, [write("play", PLAY)], kind)
    starts = np.arange(0, len(store) - 1, width)
    rows = collate_windows(store, starts, width, has_documents=kind != "file")
    asked = rows.labels >= 0
    assert rows.labels[asked].tolist() == store.ids[1:].tolist()
    assert rows.tokens[asked].tolist() == store.ids[:-1].tolist()
    if kind == "file":
        assert rows.pos is None
        return
    assert rows.pos is not None
    begins = set(store.document_starts.tolist())
    for start, tokens, pos in zip(starts.tolist(), rows.tokens.tolist(), rows.pos.tolist(), strict=True):
        at = -1
        for i, p in enumerate(pos):
            at = 0 if start + i in begins else at + 1
            assert p == at
            if p == 0 and i:
                assert tokens[i] == tokenizer.eos_id


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


def test_a_file_that_is_read_as_another_table_is_another_store(
    write: Write, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path, cache = write("t.txt", '["a"]\n["b"]\n'), tmp_path / "cache"
    found = {}
    for format, columns in (("tsv", [0]), ("jsonl", [0]), ("auto", [])):
        text = open_text([path], "line", columns=columns, format=format)
        store = TokenStore.open_or_build(text, tokenizer, cache)
        found[format] = tokenizer.decode([store.ids[store.ids != tokenizer.eos_id].tolist()])[0]
    assert found == {"tsv": '["a"]["b"]', "jsonl": "ab", "auto": '["a"]["b"]'}
    # what older versions have made of plain text is still found
    settings = [2, [files.fingerprint(path)], tokenizer.sha256, "line", (0.0, 1.0)]
    assert store.directory == cache_dir(cache, "text", settings) and len(list(cache.iterdir())) == 3


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
