import json

import pytest
from tests.train.conftest import user_error

from polyhead.data.readers.text_pairs import (
    TextPair,
    TextPairReport,
    open_text_pairs,
    parse_text_pair_line,
    read_pair_texts,
)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"anchor": "a", "positive": "b"}, TextPair("a", "b")),
        ({"anchor": "a", "positive": "b", "negatives": ["c", "d"]}, TextPair("a", "b", ("c", "d"))),
        ({"anchor": "a", "positive": "b", "negative": "c", "id": 7}, TextPair("a", "b", ("c",))),
        ({"anchor": "a", "positive": "b", "negatives": None}, TextPair("a", "b")),
        ({"a": "a", "b": "b", "score": 4.5}, TextPair("a", "b", (), 4.5)),
        ({"sentence1": "a", "sentence2": "b", "score": "3"}, TextPair("a", "b", (), 3.0)),
        ({"anchor": "a", "positive": 3}, "unsupported: 3 is not a text"),
        ({"anchor": "a", "positive": "b", "negatives": 3}, "unsupported: negatives is 3, expected a list"),
        ({"a": "a", "b": "b", "score": True}, "unsupported: the score is true, expected a number"),
        ({"a": "a", "b": "b", "score": float("nan")}, "unsupported: the score is nan, expected a number"),
        ({"anchor": "a", "pos": "b"}, "unsupported: the row has the keys anchor, pos"),
        ({"anchor": "a", "positive": "\ud800"}, "malformed"),
    ],
)
def test_row_is_pair_or_problem(row, expected):
    pair = parse_text_pair_line(json.dumps(row).encode())
    assert pair == expected or (isinstance(pair, str) and pair.startswith(str(expected)))


def test_pairs_of_files_are_counted_and_split(tmp_path):
    path = tmp_path / "pairs.jsonl"
    rows = [{"anchor": f"q{i % 20}", "positive": f"p{i}"} for i in range(60)]
    rows.append({"anchor": " ", "positive": "b"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    report = TextPairReport("pairs.jsonl")
    pairs = open_text_pairs([path])
    assert len([*pairs.read(report)]) == 60
    assert (report.total, report.empty, report.malformed) == (62, 1, 1)
    assert [*read_pair_texts(pairs)][:4] == ["q0", "p0", "q1", "p1"]
    splits = [
        {pair.anchor for _, pair in open_text_pairs([path], 0.3, part).read()} for part in (False, True)
    ]
    assert splits[0] and splits[1] and not splits[0] & splits[1]
    path.write_text('{"text": "a"}\n')
    with user_error("none of its first 1 lines is a pair; the row has the keys text; expected JSONL such as"):
        open_text_pairs([path])


def test_pairs_are_read_from_parallel_corpora(tmp_path):
    for name, lines in {"t.en": "a\nb\n\n", "t.de": "A\nB\nC\n", "t.tsv": "a\tA\nb\tB\n"}.items():
        (tmp_path / name).write_text(lines)
    (tmp_path / "t.jsonl").write_text('{"q": "a", "r": {"text": "A"}}\n{"q": "b", "r": {"text": "B"}}\n')
    expected = [TextPair("a", "A"), TextPair("b", "B")]
    report = TextPairReport("t")
    parallel = open_text_pairs([tmp_path / "t.en", tmp_path / "t.de"])
    assert [pair for _, pair in parallel.read(report)] == expected and report.empty == 1
    assert [pair for _, pair in open_text_pairs([tmp_path / "t.tsv"]).read()] == expected
    nested = open_text_pairs([tmp_path / "t.jsonl"], source="q", target="r.text")
    assert [pair for _, pair in nested.read()] == expected
    with user_error("cannot detect the format of t.en"):
        open_text_pairs([tmp_path / "t.en"])


def test_pair_without_a_text_is_counted(tmp_path):
    values = ["a", 5, None, ["b"]]
    path, report = tmp_path / "t.jsonl", TextPairReport("t.jsonl")
    path.write_text("".join(json.dumps({"q": "x", "r": value}) + "\n" for value in values))
    pairs = open_text_pairs([path], source="q", target="r")
    assert [pair for _, pair in pairs.read(report)] == [TextPair("x", "a")]
    reasons = ["line 2, target 5", "line 3, target null", "line 4, target ['b']"]
    assert report.examples == {"malformed": [f"{reason}, expected a string" for reason in reasons]}
