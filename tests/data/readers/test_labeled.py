"""Labelled texts: every usable line with its label, and everything else counted and placed."""

import gzip
import json

import pytest
from tests.data.conftest import Write

from polyhead.core.errors import UserError
from polyhead.data.readers.labeled import (
    LabeledExample,
    LabeledReport,
    collect_labels,
    describe_single_class,
    open_labeled,
    read_labeled,
    read_labeled_texts,
)

ROWS = [("good", "a fine film"), ("bad", 'a "dull" one'), ("good", "x\x0by"), ("bad", "z")]
TSV = "label\tsentence\n" + "".join(f"{label}\t{text}\n" for label, text in ROWS)


def wanted(first: int) -> list[LabeledExample]:
    return [
        LabeledExample(first + i, (text,), label, f"line {first + i}") for i, (label, text) in enumerate(ROWS)
    ]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["header", "numbers", "jsonl"])
def test_each_format_gives_the_same_texts(write: Write, kind: str, packed: bool) -> None:
    name, content, text, label, first = {
        "header": ("a.tsv", TSV, "sentence", "label", 2),
        "numbers": ("a.tsv", TSV.partition("\n")[2], 1, 0, 1),
        "jsonl": (
            "a.jsonl",
            "".join(json.dumps({"c": c, "d": {"t": t}}) + "\n" for c, t in ROWS),
            "d.t",
            "c",
            1,
        ),
    }[kind]
    path = write(name + ".gz" * packed, gzip.compress(content.encode()) if packed else content)
    found = open_labeled([path], text=[text], label=label)
    examples, report = read_labeled(found)
    assert examples == wanted(first)
    assert str(report) == f"{path.name}: 4 of 4 texts"
    assert collect_labels(found) == ("bad", "good")
    assert list(read_labeled_texts(found)) == [text for _, text in ROWS]


def test_pairs_and_labels_that_are_numbers(write: Write) -> None:
    rows = [
        {"a": "one", "b": "two", "y": 1},
        {"a": "three", "b": "four", "y": True},
        {"a": "five", "b": "six", "y": 0.5},
        {"a": "seven", "b": "eight", "y": -2.0},
        {"a": "nine", "b": "ten", "y": ["one"]},
    ]
    path = write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    examples, report = read_labeled(open_labeled([path], text=["a", "b"], label="y"))
    assert examples == [
        LabeledExample(1, ("one", "two"), "1", "line 1"),
        LabeledExample(2, ("three", "four"), "true", "line 2"),
        LabeledExample(4, ("seven", "eight"), "-2", "line 4"),
    ]
    allowed = "expected text, an integer, true or false"
    assert report.malformed == 2
    assert report.examples["malformed"] == [
        f"line 3, label 0.5, {allowed}",
        f"line 5, label ['one'], {allowed}",
    ]


def test_a_whole_number_is_one_label_however_it_is_written(write: Write) -> None:
    path = write("a.tsv", "1\tx\n1.0\ty\n0\tz\n-2.00\tw\n1.\tv\n")
    labels = [example.label for example in read_labeled(open_labeled([path], text=[1], label=0))[0]]
    assert labels == ["1", "1", "0", "-2", "1."]
    published = read_labeled(open_labeled([path], text=[1], label=0), ["1.0", "-2"])[0]
    assert [example.label for example in published] == ["1.0", "1.0", "-2"]  # as the model names it


def test_scores_are_no_classes(write: Write) -> None:
    lines = [f"{(i % 41) / 10}\ttext {i}\n" for i in range(410)]
    said = "a.tsv: the labels are scores, 360 of 410 with a fraction; a classifier needs classes: round them"
    with pytest.raises(UserError, match=said):
        collect_labels(open_labeled([write("a.tsv", "".join(lines))], text=[1], label=0))
    rows = [{"text": f"text {i}", "label": i % 3 + (0.5 if i % 5 == 0 else 0.0)} for i in range(60)]
    path = write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"a.jsonl: the labels are scores, 12 of 60 with a fraction"):
        collect_labels(open_labeled([path]))
    names = write("b.tsv", "v1.5\tx\n2.5\ty\n")
    assert collect_labels(open_labeled([names], text=[1], label=0)) == ("2.5", "v1.5")


def test_a_single_class_is_told() -> None:
    assert describe_single_class(["a", "a"], "t.tsv") == (
        "every text of t.tsv has the label 'a': scores only show how often it is predicted"
    )
    assert describe_single_class(["a", "b"], "t.tsv") == describe_single_class([], "t.tsv") == ""


def test_the_header_again_and_marks_of_joined_files_are_counted(write: Write) -> None:
    content = b"label\ttext\t\ta\ta\ngood\tone\n\xef\xbb\xbflabel\ttext\t\ta\ta\nbad\ttwo\t\t\t\n"
    found = open_labeled([write("a.tsv", content)])
    examples, report = read_labeled(found)
    assert [(e.line, e.label, e.texts) for e in examples] == [(2, "good", ("one",)), (4, "bad", ("two",))]
    assert (report.total, report.header, report.bom, report.malformed) == (3, 1, 1, 0)
    assert report.examples == {"bom": ["line 3"], "header": ["line 3"]}


def test_what_cannot_be_used_is_counted_and_placed(write: Write) -> None:
    lines = ["a\tx", "no tab", "b\t  ", "", "\tempty label", "b\ty", "c\tz", "a\tbad \x00 byte", "a\tw"]
    path = write("a.tsv", "\n".join(lines) + "\n")
    other = write("b.tsv", "a\tlast\n")
    examples, report = read_labeled(open_labeled([path, other], text=[1], label=0), labels=["a", "b"])
    assert [(e.line, e.label) for e in examples] == [(1, "a"), (6, "b"), (9, "a"), (1, "a")]
    assert (report.total, report.used, report.empty, report.malformed, report.unknown_label) == (
        10,
        4,
        2,
        3,
        1,
    )
    assert report.examples["unknown_label"] == ["a.tsv line 7, 'c'"]
    assert report.examples["malformed"] == ["a.tsv line 2", "a.tsv line 5", "a.tsv line 8"]
    assert str(report) == (
        "a.tsv + b.tsv: 4 of 10 texts; skipped 2 blank (first: a.tsv line 3), 3 broken (first: a.tsv line "
        "2), 1 with an unknown label (first: a.tsv line 7, 'c')"
    )


@pytest.mark.parametrize("limit", [0, 1, 3, 4, 10**30, None])
def test_a_limit_stops_reading(write: Write, limit: int | None) -> None:
    given = open_labeled([write("a.tsv", TSV)], text=["sentence"])
    examples, report = read_labeled(given, limit=limit)
    assert examples == wanted(2)[:limit] and report.total == len(examples)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (
            TSV,
            {"text": ["sentense"]},
            "unknown column of a.tsv 'sentense'; did you mean 'sentence'? Known: label, sentence",
        ),
        (TSV, {"text": [1], "label": 2}, "a.tsv has 2 columns: no column 2"),
        (TSV, {"text": ["sentence"], "format": "parallel"}, "format 'parallel' has no labels"),
        ("", {"text": [1], "label": 0}, "a.tsv is empty"),
        (
            "a\tx\na\ty\n",
            {"text": [1], "label": 0},
            "a.tsv: every text has the label 'a'; there is nothing to classify",
        ),
        (
            "".join(f"{i}\tx\n" for i in range(30)),
            {"text": [1], "label": 0},
            "30 different labels for 30 texts, such as '0'; is 0 ",
        ),
        ("a\t\nb\t\n", {"text": [1], "label": 0}, "no usable text in a.tsv: 0 of 2 texts; skipped 2 blank"),
        ("a\tx\nb\nc\n", {"text": [1], "label": 0}, "most lines are invalid: a.tsv: 1 of 3 texts"),
    ],
)
def test_mistakes_are_told_in_a_line(write: Write, content: str, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")) as told:
        collect_labels(open_labeled([write("a.tsv", content)], **options))
    assert "\n" not in str(told.value)


def test_labels_that_train_has_not_are_told_when_none_is_left(write: Write) -> None:
    found = open_labeled([write("a.tsv", "0\tx\n1\ty\n")], text=[1], label=0)
    with pytest.raises(
        UserError, match=r"skipped 2 with an unknown label \(first: line 1, '0'\); the labels are neg, pos"
    ):
        read_labeled(found, ["pos", "neg"])


def test_the_report_counts_everything_once() -> None:
    report = LabeledReport(
        "f",
        total=3,
        used=1,
        empty=1,
        unknown_label=1,
        examples={"empty": ["line 1"], "unknown_label": ["line 2, 'x'"]},
    )
    assert (
        report.total == report.used + report.empty + report.too_long + report.malformed + report.unknown_label
    )
