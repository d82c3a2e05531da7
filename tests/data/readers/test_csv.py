import csv
import gzip
import io
import json

import pytest

from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.data.readers.csv import LineStream
from polyhead.data.readers.files import fingerprint, iter_lines
from polyhead.data.readers.labeled import LabeledReport, open_labeled
from polyhead.data.readers.parallel_corpus import CorpusReport, open_corpus
from polyhead.data.readers.plain_text import TextReport, open_text

N = 400
TEXTS = ["a dog", 'two\nlines, "quoted"\t;', "犬 \u2028 🐕", " b" * 50, '"', "a\r\nb"]
# a few texts are longer than the buffer of a file
LONG = [f"{TEXTS[i % len(TEXTS)] * (100 if i < 9 else 1)}{i}" for i in range(N)]
ROWS = [{"label": "ab"[i % 2], "text": LONG[i], "de": f"Hund, {i}", "empty": ""} for i in range(N)]


def write_csv(path, rows=ROWS, encoding="utf-8", **dialect):
    open_file = gzip.open if path.suffix == ".gz" else open
    with open_file(path, "wt", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), **dialect)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize(
    ("name", "dialect"),
    [
        ("a.csv", {}),
        ("a.csv.gz", {}),
        ("A.CSV", {"encoding": "utf-8-sig"}),
        ("a.csv", {"delimiter": ";", "lineterminator": "\n"}),
        ("a.csv", {"delimiter": "\t", "quoting": csv.QUOTE_ALL}),
    ],
    ids=str,
)
def test_rows_equal_those_of_jsonl(name, dialect, tmp_path):
    path, jsonl = write_csv(tmp_path / name, **dialect), tmp_path / "a.jsonl"
    jsonl.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS))
    assert [json.loads(line or b"") for line in iter_lines(path)] == ROWS
    assert fingerprint(path) == fingerprint(jsonl)

    def read(path):
        examples, pairs = LabeledReport(""), CorpusReport("")
        split = {"validation_fraction": 0.3, "is_validation": True}
        labeled = open_labeled([path], text=["text", "de"], label="label", **split)
        corpus = open_corpus([path], source="text", target="de")
        chunks = list(open_text([path], "file", columns=["text"]).read_chunks(TextReport("")))
        result = list(labeled.iter_examples(examples)), list(corpus.iter_pairs(pairs)), chunks
        assert examples.used > N / 5 and pairs.used == N
        return result

    assert read(path) == read(jsonl)


def read_texts(path, content):
    path.write_bytes(content)
    report = LabeledReport(path.name)
    examples = open_labeled([path], text=["text"], label="label").iter_examples(report)
    return [(example.texts[0], example.label) for example in examples], report


def test_rows_of_another_length_are_malformed(tmp_path):
    content = b'text,label\none,a\n\ntwo\nthree,b,c\n"fo\nur",a\nl\xe4t,b\nfive,b\n'
    texts, report = read_texts(tmp_path / "a.csv", content)
    assert texts == [("one", "a"), ("fo\nur", "a"), ("five", "b")]
    assert (report.used, report.empty, report.malformed) == (3, 1, 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'text,label\n"one,a\ntwo,b\n', "is damaged: line 2 .* the quote that opens there is not closed"),
        (b'sep=;\ntext;label\n"o\nne";"a\ntwo;"b"\nthree;c\n', "line 4 .* is closed only in line 5"),
        (b'text,label\n"one"x,a\ntwo,b\n', "line 2 of the file is not CSV: ',' expected after '\"'"),
        (b"text,label,text\none,a,b\n", "has 2 columns named 'text': the name is ambiguous; rename one"),
        (b"text,label\n", "is empty"),
        (b"", "is empty"),
        ("text,label\none,a\n".encode("utf-16"), "is UTF-16, expected UTF-8"),
        (b"PK\x03\x04 and more", "is compressed with zip"),
        (b"sentence,label\none,a\n", "unknown key of a.csv 'text'; known: label, sentence"),
        pytest.param(b"c," * 20_000 + b"\n", "it has 20,001 columns; the maximum is 16,384", id="wide"),
        (b"text,l\xe4bel\n\xe4h,\xe4\n", "does not look like UTF-8 text"),
    ],
    ids=str,
)
def test_invalid_file_is_refused_in_one_line(content, message, tmp_path):
    with pytest.raises(UserError, match=r"^[^\n]*a\.csv[^\n]*$") as error:
        read_texts(tmp_path / "a.csv", content)
    assert error.match(message)


JOINED_FILES = b"\xef\xbb\xbftext,label\none,a\n\xef\xbb\xbftext,label\n\xef\xbb\xbftwo,b\n"
FILES = {
    "unnamed and duplicate columns": (b",text,x,label,x,,\n0,one,,a,,,\n1,two,3,b,4,,\n", {}),
    "row without unnamed cells": (b"text,label,,\none,a\ntwo,b,,\n", {}),
    "empty cells after the last column": (b"text,label\none,a,,\ntwo,b\n", {}),
    "repeated header": (b"text,label\none,a\ntext,label\ntwo,b\n", {"header": 1}),
    "joined files": (JOINED_FILES, {"header": 1, "bom": 2}),
    "BOM before a quote": (b'text,label\none,a\n\xef\xbb\xbf"two",b\n', {"bom": 1}),
    "spaces before quotes": (b'text, "label"\n "one",  "a"\n"two", b\n', {}),
    "sep": (b"sep=|\r\ntext|label\r\none|a\r\ntwo|b\r\n", {}),
    "quoted sep": (b'\xef\xbb\xbf"sep=;"\r\ntext;label\r\none;a\r\ntwo;b\r\n', {}),
}


@pytest.mark.parametrize("name", FILES)
def test_dialects_of_programs_are_read(name, tmp_path):
    content, counts = FILES[name]
    texts, report = read_texts(tmp_path / "a.csv", content)
    assert texts == [("one", "a"), ("two", "b")]
    expected = {"empty": 0, "malformed": 0, "header": 0, "bom": 0} | counts
    assert {kind: getattr(report, kind) for kind in expected} == expected
    assert report.total == report.used + report.header


def test_report_names_skipped_headers_and_removed_marks(tmp_path):
    report = read_texts(tmp_path / "a.csv", JOINED_FILES.removeprefix(b"\xef\xbb\xbf"))[1]
    marks = "removed 2 byte order marks inside the file (first: line 2)"
    assert str(report) == f"a.csv: 2 of 3 texts; skipped 1 equal to the header (first: line 2); {marks}"
    report = TextReport("a.csv")
    chunks = open_text([tmp_path / "a.csv"], "file", columns=["text"]).read_chunks(report)
    assert [chunk.text for chunk in chunks] == ["one", "two"]
    assert (report.header, report.bom, report.malformed) == (1, 2, 0)


def test_only_spaces_before_quoted_fields_are_removed(tmp_path):
    texts, path = [' "a" b', " a", 'x "a, ""b""" y', 'two\nlines, "b", "c"\n, "d", e'], tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        file.write('text,label\n "a" b,1\n')  # an unquoted field that contains quotes
        csv.writer(file).writerows([(text, "1") for text in texts[1:]])
    assert read_texts(path, path.read_bytes())[0] == [(text, "1") for text in texts]
    content = b'text,label\n "two\nlines, ""b"", c", "1"\n'
    assert read_texts(path, content)[0] == [('two\nlines, "b", c', "1")]
    path.write_bytes(b"text,text,label\none,two,a\n")
    assert open_text([path], "file", columns=["label"]).columns == ("label",)  # another one is ambiguous


def test_csv_is_not_read_as_another_format(tmp_path):
    path = write_csv(tmp_path / "a.csv", ROWS[:3])
    with pytest.raises(UserError, match=r"a\.csv is CSV by its name, not TSV: remove data\.format"):
        open_labeled([path], text=[1], label=0, format="tsv")
    with pytest.raises(UserError, match=r"a\.csv is a table, but parallel files are plain text"):
        open_corpus([path, path], format="parallel")
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(UserError, match=r"these differ: a\.csv CSV, a\.txt plain text"):
        open_text([path, tmp_path / "a.txt"], "file")
    with pytest.raises(UserError, match=r"has the keys de, empty, label, text: set text to one of them"):
        open_labeled([path], text=[1], label=0)


@pytest.mark.slow
def test_commands_read_csv(tmp_path, monkeypatch, capsys):
    from polyhead.estimate import inputs

    def run(command, code, message):
        assert main(command.split()) == code
        assert message in "".join(capsys.readouterr())

    rows = [{"text": f"a {['good', 'bad'][i % 2]}, long day {i}", "label": "+-"[i % 2]} for i in range(300)]
    write_csv(tmp_path / "good.csv", rows)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(
        "task: classification\ndata: {train: good.csv, valid_fraction: 0.2, text: text, label: label}\n"
        "tokenizer: {vocab_size: 300}\nmodel: {kind: encoder, d_model: 16, n_layers: 1, n_heads: 2, d_ff: "
        "16}\ntrain: {steps: 3, max_tokens: 256, lr: 0.01}\nout: run\n"
    )
    monkeypatch.setattr(inputs, "_MAX_SPLIT_BYTES", 2000)
    monkeypatch.setattr(inputs, "_MAX_BLOCK_LINES", 10)
    run("estimate r.yaml --no-probe --details", 0, "text: 300 lines")
    run("train r.yaml", 0, "")
    run("eval run good.csv", 0, "300 texts")
    run("classify run good.csv", 2, "good.csv is a table; expected lines of text")


CHUNKS = [b"a", b"bc\nd", b"\n", b"e" * 5000 + b"\n", "犬\n".encode(), b"the last"]


@pytest.mark.parametrize("size", [1, 3, 8192])
def test_chunks_are_read_as_one_file(size):
    source = io.BytesIO()
    with io.BufferedReader(LineStream(iter(CHUNKS), source), size) as stream:
        assert list(stream) == io.BytesIO(b"".join(CHUNKS)).readlines()
    assert source.closed
