import json

import pytest

from polyhead.core.errors import UserError
from polyhead.data.readers.labeled import count_multi_labels, open_labeled, read_labeled
from polyhead.data.readers.spans import find_conll, parse_spans, spans_to_tags, tags_to_spans

TEXT = "Ann Lee met Bo in Rome ."
SPANS = [(0, 7, "PER"), (12, 14, "PER"), (18, 22, "LOC")]
TAGS = {
    "IOB1": "I-PER I-PER O I-PER O I-LOC O",
    "BIO": "B-PER I-PER O B-PER O B-LOC O",
    "BIOES": "B-PER E-PER O S-PER O S-LOC O",
    "BILOU": "B-PER L-PER O U-PER O U-LOC O",
}


def write_conll(path, *sentences):
    path.write_bytes(b"\n".join("".join(f"{row}\n" for row in rows).encode() for rows in sentences))
    return path


def read(path, labels=None, **options):
    return read_labeled(open_labeled([path], kind="spans", **options), labels)


@pytest.mark.parametrize("scheme", TAGS)
def test_schemes_of_tags_give_the_same_spans(scheme, tmp_path):
    rows = [f"{word} NN {tag}" for word, tag in zip(TEXT.split(), TAGS[scheme].split(), strict=True)]
    path = write_conll(tmp_path / "a.txt", ["-DOCSTART- -X- O"], ["# id 7", *rows], [], rows[:2])
    assert find_conll(path)
    (one, two), report = read(path)
    assert (one.texts, list(one.spans), one.location) == ((TEXT,), SPANS, "line 4")
    assert (two.texts, list(two.spans)) == (("Ann Lee",), SPANS[:1])
    assert str(report) == "a.txt: 2 of 2 texts"
    lines = [
        line if line[:1] == b"#" else line.replace(b" ", b"\t") for line in path.read_bytes().split(b"\n")
    ]
    path.write_bytes(b"\r\n".join(lines))
    assert read(path)[0][0].spans == one.spans


def test_neighbours_of_one_label_are_two_spans():
    assert tags_to_spans(["I-A", "B-A", "I-A", "I-B", "O", "A", "A", "E-A", "A"]) == [
        (0, 1, "A"), (1, 3, "A"), (3, 4, "B"), (5, 8, "A"), (8, 9, "A"),
    ]  # fmt: skip
    spans = [(0, 1, "A"), (1, 3, "A"), (4, 5, "B")]
    assert spans_to_tags(spans, 6) == ["B-A", "B-A", "I-A", "O", "B-B", "O"]
    assert tags_to_spans(spans_to_tags(spans, 6)) == spans


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["Ann B-PER", "Lee NN I-PER"], "line 2, columns: 3, expected 2 as before"),
        (["Ann", "Lee"], "line 1, columns: 1, expected 2"),
        (["Ann NNP", "Lee NNP"], "line 1, tag 'NNP', expected O, or B-, I-, E- or S- and a label"),
        (["Ann B_PER"], "line 1, tag 'B_PER', expected O, or"),
        ([], "is empty"),
    ],
)
def test_bad_sentences_are_counted_with_the_reason(rows, message, tmp_path):
    path = write_conll(tmp_path / "a.conll", rows)
    with pytest.raises(UserError, match=message):
        read(path)
    good = ["Bo B-PER", "came O"]
    if rows:
        examples, report = read(write_conll(path, good, good, ["came O", *rows]))
        place = 8 + message.startswith("line 2")
        assert len(examples) == 2 and f"skipped 1 broken (first: line {place}, " in str(report)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([[0, 99, "PER"]], "line 1, span 0:99 is outside of its text of 24 characters"),
        ([[3, 3, "PER"]], "span 3:3 is outside"),
        ([[3, 4, "PER"]], "span 3:4 is blank"),
        ([[0, 7, "PER"], [4, 9, "LOC"]], "spans 0:7 and 4:9 overlap"),
        ([{"start": 0, "end": 3}], "expected start, end and label"),
        ([["0", 3, "PER"]], "start and end must be numbers of characters"),
        ("PER", "span 'PER', expected start, end and label"),
    ],
)
def test_bad_spans_are_refused(spans, message, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": TEXT, "spans": spans}))
    with pytest.raises(UserError, match=message):
        read(path, label="spans")


def test_spans_of_json(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [[[18, 23, "LOC"], {"start": 0, "end": 7, "label": " PER "}], [], None, [[0, 3, "ORG"]]]
    path.write_text("".join(json.dumps({"text": TEXT, "spans": row}) + "\n" for row in rows))
    examples, report = read(path, ["LOC", "PER"], label="spans")
    assert [list(example.spans) for example in examples] == [[SPANS[0], SPANS[2]], [], []]
    assert "skipped 1 with an unknown label (first: line 4, 'ORG')" in str(report)
    files = open_labeled([path], kind="spans", label="spans")
    assert count_multi_labels(files) == {"LOC": 1, "ORG": 1, "PER": 1}
    path.write_text(json.dumps({"text": TEXT, "spans": []}))
    with pytest.raises(UserError, match="no text has a span; there is nothing to learn"):
        count_multi_labels(files)
    assert parse_spans(TEXT, [[0, 3, " "]]) == "span [0, 3, ' '], expected start, end and label"
