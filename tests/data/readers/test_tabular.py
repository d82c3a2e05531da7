"""Tests of data/readers/tabular.py."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from polyhead.data.readers.parallel_corpus import (
    ColumnKey,
    CorpusReport,
    ParallelFiles,
    open_corpus,
    read_pairs,
)

Write = Callable[[str, bytes | str], Path]


def read(corpus: ParallelFiles) -> tuple[list[str], list[str], CorpusReport]:
    sources, targets, report = read_pairs(corpus)
    assert report.total == report.used + report.empty + report.too_long + report.malformed
    assert report.used == len(sources) == len(targets)
    assert "\n" not in str(report)
    return sources, targets, report


@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0), (0, 2)])
def test_tsv_columns_by_number(source: int, target: int, write: Write) -> None:
    rows = [["a", "b", "c"], ['"d', 'e"', "f"]]
    corpus = open_corpus(
        [write("a.tsv", "".join("\t".join(row) + "\r\n" for row in rows))], source=source, target=target
    )
    assert read(corpus)[:2] == ([row[source] for row in rows], [row[target] for row in rows])


def test_tsv_columns_by_name_and_rows_that_lack_one_or_have_more(write: Write) -> None:
    path = write("a.tsv", "id\ten\tde\n1\tone\teins\n2\ttwo\n\n4\tfour\tvier\textra\n5\tfive\tfünf\t\n")
    sources, targets, report = read(open_corpus([path], source="en", target="de"))
    assert (sources, targets) == (["one", "five"], ["eins", "fünf"])
    assert report.examples == {"malformed": ["line 3", "line 5"], "empty": ["line 4"]}


@pytest.mark.parametrize(("row", "source", "target"), [
    ({"en": "one", "de": "eins"}, "en", "de"),
    ({"translation": {"en": "one", "de": "eins"}}, "translation.en", "translation.de"),
    ({"a.b": "one", "c": "eins"}, "a.b", "c"),
    (["one", "eins"], 0, 1),
])  # fmt: skip
def test_jsonl_by_key_path_or_number(row: object, source: ColumnKey, target: ColumnKey, write: Write) -> None:
    corpus = open_corpus([write("a.jsonl", json.dumps(row) + "\n")], source=source, target=target)
    assert read(corpus)[:2] == (["one"], ["eins"])


def test_jsonl_lines_that_are_no_pair_are_broken(write: Write) -> None:
    good = '{"s": "one\\nline", "t": "eins\\u2028"}\n'
    bad = [
        '{"s": "x"}',
        '{"s": 1, "t": "y"}',
        '{"s": null, "t": "y"}',
        "nonsense",
        '"text"',
        '{"s": "\\ud800", "t": "y"}',
        '{"s": "a\\u0000b", "t": "y"}',
        '{"s": ["x"], "t": "y"}',
        "NaN",
        '{"s": ' + "9" * 5000 + "}",
        "[" * 100_000,
        '{"s": "x", "t": "y", "s": "z"}',
        '{"s": "x", "t": "y", "of": {"id": 1, "id": 2}}',
    ]
    sources, targets, report = read(
        open_corpus([write("a.jsonl", good * 20 + "\n".join(bad))], source="s", target="t")
    )
    assert (sources, targets) == (["one\nline"] * 20, ["eins\u2028"] * 20)
    assert report.malformed == len(bad)
    assert report.examples["malformed"] == [f"line {n}" for n in range(21, 26)]


def test_a_bad_first_line_does_not_hide_the_columns(write: Write) -> None:
    tsv = open_corpus([write("a.tsv", "title\n1\ta\n2\tb\n")])
    assert read(tsv)[2].examples == {"malformed": ["line 1"]}
    jsonl = open_corpus([write("a.jsonl", '{"s": "x"}\n{"s": "1", "t": "a"}\n')], source="s", target="t")
    assert read(jsonl)[2].examples == {"malformed": ["line 1"]}
