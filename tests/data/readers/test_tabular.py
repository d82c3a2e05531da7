import json

import pytest
from tests.data.readers.corpus_helpers import read_checked

from polyhead.data.readers.parallel_corpus import open_corpus


@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0), (0, 2)])
def test_tsv_columns_by_number(source, target, write_file):
    rows = [["a", "b", "c"], ['"d', 'e"', "f"]]
    path = write_file("a.tsv", "".join("\t".join(row) + "\r\n" for row in rows))
    sources, targets, _ = read_checked(open_corpus([path], source=source, target=target))
    assert (sources, targets) == ([row[source] for row in rows], [row[target] for row in rows])


@pytest.mark.parametrize("target", ["de", 2])
def test_tsv_columns_by_name(target, write_file):
    path = write_file("a.tsv", "id\ten\tde\n1\tone\teins\n2\ttwo\n\n4\tfour\tvier\textra\n5\tfive\tfünf\t\n")
    sources, targets, report = read_checked(open_corpus([path], source="en", target=target))
    assert (sources, targets) == (["one", "five"], ["eins", "fünf"])
    assert report.examples == {"malformed": ["line 3", "line 5"], "empty": ["line 4"]}


@pytest.mark.parametrize(
    ("row", "source", "target"),
    [
        ({"en": "one", "de": "eins"}, "en", "de"),
        ({"translation": {"en": "one", "de": "eins"}}, "translation.en", "translation.de"),
        ({"a.b": "one", "c": "eins"}, "a.b", "c"),
        (["one", "eins"], 0, 1),
    ],
)
def test_jsonl_columns_by_key_path_or_number(row, source, target, write_file):
    corpus = open_corpus([write_file("a.jsonl", json.dumps(row) + "\n")], source=source, target=target)
    assert read_checked(corpus)[:2] == (["one"], ["eins"])


def test_jsonl_lines_without_a_pair_are_malformed(write_file):
    valid = '{"s": "one\\nline", "t": "eins\\u2028"}\n'
    values = ["1", "null", '"\\ud800"', '"a\\u0000b"', '["x"]', "9" * 5000, '"x", "s": "z"']
    invalid = [f'{{"s": {value}, "t": "y"}}' for value in [*values, '"x", "of": {"id": 1, "id": 2}']]
    invalid += ['{"s": "x"}', "nonsense", '"text"', "NaN", "[" * 100_000]
    path = write_file("a.jsonl", valid * 20 + "\n".join(invalid))
    sources, targets, report = read_checked(open_corpus([path], source="s", target="t"))
    assert (sources, targets) == (["one\nline"] * 20, ["eins\u2028"] * 20)
    assert report.malformed == len(invalid)
    reasons = ["1", "null", None, None, "['x']"]
    assert report.examples["malformed"] == [
        f"line {n}" + (f", source {value}, expected a string" if value else "")
        for n, value in enumerate(reasons, 21)
    ]
    lines = invalid[-5] + "\n" + valid
    tables = (
        ("b.tsv", "title\n1\ta\n", (0, 1), ""),
        ("b.jsonl", lines, ("s", "t"), ", target null, expected a string"),
    )
    for name, content, columns, reason in tables:
        corpus = open_corpus([write_file(name, content)], source=columns[0], target=columns[1])
        assert read_checked(corpus)[2].examples == {"malformed": [f"line 1{reason}"]}
