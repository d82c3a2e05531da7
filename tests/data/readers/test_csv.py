"""CSV files are read as the same rows in JSONL are, by every reader of tables."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.data.readers.files import fingerprint, iter_lines
from polyhead.data.readers.labeled import LabeledReport, open_labeled
from polyhead.data.readers.parallel_corpus import CorpusReport, open_corpus
from polyhead.data.readers.plain_text import TextReport, open_text

N = 1000
TEXTS = ["a dog", 'two\nlines, "quoted"\t;', "犬 \u2028 🐕", " b" * 5000, '"', "a\r\nb"]
ROWS: list[dict[str, Any]] = [
    {"label": "ab"[i % 2], "text": f"{TEXTS[i % len(TEXTS)]}{i}", "de": f"Hund, {i}", "empty": ""}
    for i in range(N)
]


def written(path: Path, rows: list[dict[str, Any]] = ROWS, encoding: str = "utf-8", **way: Any) -> Path:
    """As spreadsheets write it."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding=encoding, newline="") as file:
        to = csv.DictWriter(file, list(rows[0]), **way)
        to.writeheader()
        to.writerows(rows)
    return path


WAYS: list[tuple[str, dict[str, Any]]] = [
    ("a.csv", {}),
    ("a.csv.gz", {}),
    ("A.CSV", {"encoding": "utf-8-sig"}),
    ("a.csv", {"delimiter": ";", "lineterminator": "\n"}),
    ("a.csv", {"delimiter": "\t", "quoting": csv.QUOTE_ALL}),
]


@pytest.mark.parametrize(("name", "way"), WAYS, ids=str)
def test_a_row_is_a_line_of_its_columns(name: str, way: dict[str, Any], tmp_path: Path) -> None:
    path, plain = written(tmp_path / name, **way), tmp_path / "a.jsonl"
    plain.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS))
    assert [json.loads(line or b"") for line in iter_lines(path)] == ROWS
    assert fingerprint(path) == fingerprint(plain)
    found: list[Any] = []
    for one in (path, plain):
        labelled, pairs = LabeledReport(""), CorpusReport("")
        given = open_labeled(
            [one], text=["text", "de"], label="label", validation_fraction=0.3, is_validation=True
        )
        corpus = open_corpus([one], source="text", target="de")
        texts = open_text([one], "file", columns=["text"]).read_chunks(TextReport(""))
        found.append((list(given.iter_examples(labelled)), list(corpus.iter_pairs(pairs)), list(texts)))
        assert labelled.used > 200 and pairs.used == N
    assert found[0] == found[1]


def test_rows_of_other_lengths_are_broken_and_empty_ones_blank(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,label\none,a\n\ntwo\nthree,b,c\n"fo\nur",a\nl\xe4t,b\nfive,b\n')
    report = LabeledReport("")
    given = open_labeled([path], text=["text"], label="label")
    assert [(one.texts, one.label) for one in given.iter_examples(report)] == [
        (("one",), "a"),
        (("fo\nur",), "a"),
        (("five",), "b"),
    ]
    assert (report.used, report.empty, report.malformed) == (3, 1, 3)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b'text,label\n"one,a\ntwo,b\n',
            "is damaged: line 2 of the file is not CSV: the quote that opens there is not closed",
        ),
        (
            b'sep=;\ntext;label\n"o\nne";"a\ntwo;"b"\nthree;c\n',
            "line 4 of the file is not CSV: the quote that opens there is closed only in line 5",
        ),
        (
            b'text,label\n"one"x,a\ntwo,b\n',
            "is damaged: line 2 of the file is not CSV: ',' expected after '\"'",
        ),
        (
            b"text,label,text\none,a,b\n",
            "has 2 columns named 'text': the name is ambiguous; rename one",
        ),
        (b"text,label\n", "is empty"),
        (b"", "is empty"),
        ("text,label\none,a\n".encode("utf-16"), "is UTF-16, expected UTF-8"),
        (b"PK\x03\x04 and more", "is compressed with zip"),
        (b"sentence,label\none,a\n", "unknown key of a.csv 'text'; known: label, sentence"),
        (b"text,l\xe4bel\n\xe4h,\xe4\n", "does not look like UTF-8 text"),
    ],
    ids=str,
)
def test_a_mistake_is_told_in_a_line(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(UserError) as told:
        open_labeled([tmp_path / "a.csv"], text=["text"], label="label")
    assert "a.csv" in str(told.value) and said in str(told.value) and "\n" not in str(told.value)


def read_texts(path: Path, content: bytes) -> tuple[list[tuple[str, str]], LabeledReport]:
    path.write_bytes(content)
    report = LabeledReport(path.name)
    examples = open_labeled([path], text=["text"], label="label").iter_examples(report)
    return [(example.texts[0], example.label) for example in examples], report


FILES = {
    "unnamed and doubled columns": (b",text,x,label,x,,\n0,one,,a,,,\n1,two,3,b,4,,\n", {}),
    "a row without the unnamed cells at its end": (b"text,label,,\none,a\ntwo,b,,\n", {}),
    "empty cells after the last column": (b"text,label\none,a,,\ntwo,b\n", {}),
    "the header again": (b"text,label\none,a\ntext,label\ntwo,b\n", {"header": 1}),
    "joined files": (
        b"\xef\xbb\xbftext,label\none,a\n\xef\xbb\xbftext,label\n\xef\xbb\xbftwo,b\n",
        {"header": 1, "bom": 2},
    ),
    "a mark before a quote": (b'text,label\none,a\n\xef\xbb\xbf"two",b\n', {"bom": 1}),
    "spaces before quotes": (b'text, "label"\n "one",  "a"\n"two", b\n', {}),
    "sep": (b"sep=|\r\ntext|label\r\none|a\r\ntwo|b\r\n", {}),
    "quoted sep": (b'\xef\xbb\xbf"sep=;"\r\ntext;label\r\none;a\r\ntwo;b\r\n', {}),
}


@pytest.mark.parametrize("name", FILES)
def test_a_table_as_programs_write_it_is_read(name: str, tmp_path: Path) -> None:
    content, counted = FILES[name]
    texts, report = read_texts(tmp_path / "a.csv", content)
    assert texts == [("one", "a"), ("two", "b")]
    skipped = {"empty": 0, "malformed": 0, "header": 0, "bom": 0}
    assert {kind: getattr(report, kind) for kind in skipped} == skipped | counted
    assert report.total == report.used + report.header


def test_what_is_skipped_and_removed_is_counted(tmp_path: Path) -> None:
    content = b"text,label\none,a\n\xef\xbb\xbftext,label\n\xef\xbb\xbftwo,b\n"
    report = read_texts(tmp_path / "a.csv", content)[1]
    assert str(report) == (
        "a.csv: 2 of 3 texts; skipped 1 equal to the header (first: line 2); removed 2 byte order marks "
        "inside the file (first: line 2)"
    )
    text = TextReport("a.csv")
    pieces = open_text([tmp_path / "a.csv"], "file", columns=["text"]).read_chunks(text)
    assert [piece.text for piece in pieces] == ["one", "two"]
    assert (text.header, text.bom, text.malformed) == (1, 2, 0)


def test_only_a_space_before_a_quoted_field_is_removed(tmp_path: Path) -> None:
    texts = [' "a" b', " a", 'x "a, ""b""" y', 'two\nlines, "b", "c"\n, "d", e']
    with (tmp_path / "a.csv").open("w", newline="") as file:
        file.write('text,label\n "a" b,1\n')  # as it is: text that contains quotes
        csv.writer(file).writerows([(text, "1") for text in texts[1:]])
    assert read_texts(tmp_path / "a.csv", (tmp_path / "a.csv").read_bytes())[0] == [
        (text, "1") for text in texts
    ]
    content = b'text,label\n "two\nlines, ""b"", c", "1"\n'
    assert read_texts(tmp_path / "a.csv", content)[0] == [('two\nlines, "b", c', "1")]


def test_a_column_that_is_asked_for_must_be_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text,text,label\none,two,a\n")
    with pytest.raises(UserError, match=r"has 2 columns named 'text': the name is ambiguous; rename one"):
        open_text([tmp_path / "a.csv"], "file", columns=["text"])
    assert open_text([tmp_path / "a.csv"], "file", columns=["label"]).columns == ("label",)


def test_what_is_csv_by_its_name_is_read_as_nothing_else(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv")
    with pytest.raises(UserError, match=r"a\.csv is CSV by its name, not TSV: remove data\.format"):
        open_labeled([path], text=[1], label=0, format="tsv")
    with pytest.raises(UserError, match=r"a\.csv is a table, but parallel files are plain text"):
        open_corpus([path, path], format="parallel")
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(UserError, match=r"these differ: a\.csv CSV, a\.txt plain text"):
        open_text([path, tmp_path / "a.txt"], "file")
    with pytest.raises(
        UserError, match=r"a\.csv has the keys de, empty, label, text: set text to one of them"
    ):
        open_labeled([path], text=[1], label=0)


def test_a_classifier_learns_from_csv_is_planned_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from polyhead.estimate import data_sample

    rows = [
        {"text": f"{['a good, good day', 'a bad day'][i % 2]} {i}", "label": "+-"[i % 2]} for i in range(300)
    ]
    written(tmp_path / "good.csv", rows)
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text(
        "task: classification\ndata: {train: good.csv, valid_fraction: 0.2, text: text, label: label}\n"
        "tokenizer: {vocab_size: 300}\nmodel: {kind: encoder, d_model: 16, n_layers: 1, n_heads: 2, d_ff: "
        "16}\ntrain: {steps: 30, max_tokens: 256, lr: 0.01}\nout: run\n"
    )
    monkeypatch.setattr(data_sample, "_MAX_SPLIT_BYTES", 2000)
    monkeypatch.setattr(data_sample, "_MAX_BLOCK_LINES", 10)
    assert main(["estimate", "r.yaml", "--no-probe", "--details"]) == 0
    assert "text: 300 lines" in capsys.readouterr().out
    assert main(["train", "r.yaml"]) == 0
    capsys.readouterr()
    assert main(["eval", "run", "good.csv"]) == 0
    assert "300 texts" in capsys.readouterr().out
    assert main(["classify", "run", "good.csv"]) == 2
    assert "good.csv is a table; expected lines of text" in capsys.readouterr().err
