import gzip
import json
import re

import pytest

from polyhead.core.errors import UserError
from polyhead.data.readers.labeled import (
    LabeledExample,
    LabeledReport,
    count_labels,
    describe_similar_labels,
    open_labeled,
    read_labeled,
    read_labeled_texts,
)

ROWS = [("good", "a fine film"), ("bad", 'a "dull" one'), ("good", "x\x0by"), ("bad", "z")]
TSV = "label\tsentence\n" + "".join(f"{label}\t{text}\n" for label, text in ROWS)


def make_examples(first_line):
    return [
        LabeledExample(line, (text,), label, f"line {line}")
        for line, (label, text) in enumerate(ROWS, first_line)
    ]


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "text", "label", "first_line"),
    [
        ("a.tsv", TSV, "sentence", "label", 2),
        ("a.tsv", TSV.partition("\n")[2], 1, 0, 1),
        ("a.jsonl", "\n".join(json.dumps({"c": c, "d": {"t": t}}) for c, t in ROWS), "d.t", "c", 1),
    ],
    ids=["header", "numbers", "jsonl"],
)
def test_every_format_gives_the_same_texts(write_file, name, content, text, label, first_line, is_compressed):
    content = gzip.compress(content.encode()) if is_compressed else content
    path = write_file(name + ".gz" * is_compressed, content)
    files = open_labeled([path], text=[text], label=label)
    examples, report = read_labeled(files)
    assert examples == make_examples(first_line)
    assert str(report) == f"{path.name}: 4 of 4 texts"
    assert tuple(count_labels(files)) == ("bad", "good")
    assert list(read_labeled_texts(files)) == [text for _, text in ROWS]
    for limit in (0, 1, 3, 4, 10**30):
        examples, report = read_labeled(files, limit=limit)
        assert examples == make_examples(first_line)[:limit] and report.total == len(examples)


@pytest.mark.parametrize(("kind", "counts"), [("class", (1, 1)), ("labels", (0, 2))])
def test_class_is_checked_before_a_blank_text(write_file, kind, counts):
    rows = [{"text": " ", "label": None}, {"text": " ", "label": "a"}, {"text": "x", "label": "a"}]
    path = write_file("a.jsonl", "\n".join(map(json.dumps, rows)))
    _, report = read_labeled(open_labeled([path], kind=kind))
    assert (report.missing_label, report.empty) == counts


def test_labels_of_json_are_text_integers_or_booleans(write_file):
    labels = [1, True, 0.5, -2.0, ["one"]]
    lines = [json.dumps({"a": f"a{i}", "b": f"b{i}", "y": label}) for i, label in enumerate(labels)]
    path = write_file("a.jsonl", "\n".join(lines))
    examples, report = read_labeled(open_labeled([path], text=["a", "b"], label="y"))
    usable = [(0, "1"), (1, "true"), (3, "-2")]
    assert examples == [LabeledExample(i + 1, (f"a{i}", f"b{i}"), y, f"line {i + 1}") for i, y in usable]
    places = [message.partition(", expected text, an integer")[0] for message in report.examples["malformed"]]
    assert places == ["line 3, label 0.5", "line 5, label ['one']"]
    files = open_labeled([write_file("a.tsv", "1\tx\n1.0\ty\n0\tz\n-2.00\tw\n1.\tv\n")], text=[1], label=0)
    assert [example.label for example in read_labeled(files)[0]] == ["1", "1", "0", "-2", "1."]
    # to the labels of a model
    assert [example.label for example in read_labeled(files, ["1.0", "-2"])[0]] == ["1.0", "1.0", "-2"]


@pytest.mark.parametrize(
    ("kind", "label"), [("class", "a"), ("labels", ["a"]), ("number", 1.5), ("spans", []), ("answers", [])]
)
def test_value_that_is_no_text_is_named(write_file, kind, label):
    wrong = {"5": "5", "[1]": "[1]", "null": "null", "true": "true", '{"a": 1}': "{'a': 1}"}
    lines = [f'{{"a": "x", "b": {value}, "label": {json.dumps(label)}}}' for value in ('"y"', *wrong)]
    path = write_file("a.jsonl", "\n".join(lines))
    for text, role in ((["b"], "text"), (["a", "b"], "text[1]")):
        report = LabeledReport("a.jsonl")
        examples = open_labeled([path], text=text, kind=kind).iter_examples(report)
        assert next(examples).texts[-1] == "y"
        with pytest.raises(UserError, match=rf"line 2, {re.escape(role)} 5, expected a string"):
            list(examples)
        reasons = [
            f"line {n}, {role} {value}, expected a string" for n, value in enumerate(wrong.values(), 2)
        ]
        assert report.examples == {"malformed": reasons} and report.malformed == len(wrong)


def test_question_of_squad_must_be_a_text(write_file):
    rows = [{"question": question, "answers": []} for question in ("Who?", "Where?", 7)]
    squad = {"data": [{"paragraphs": [{"context": "Ann.", "qas": rows}]}]}
    files = open_labeled(
        [write_file("a.json", json.dumps(squad))], text=["question", "context"], kind="answers"
    )
    examples, report = read_labeled(files)
    assert [example.texts for example in examples] == [("Who?", "Ann."), ("Where?", "Ann.")]
    assert report.examples == {"malformed": ["line 3, text[0] 7, expected a string"]}


@pytest.mark.parametrize(
    ("labels", "counts"),
    [
        ([f"{(i % 41) / 10}" for i in range(410)], "360 of 410"),
        ([i % 3 + (0.5 if i % 5 == 0 else 0.0) for i in range(60)], "12 of 60"),
    ],
    ids=["text", "numbers"],
)
def test_scores_are_refused_as_labels(labels, counts, write_file):
    rows = [json.dumps({"text": f"text {i}", "label": label}) + "\n" for i, label in enumerate(labels)]
    message = f"a.jsonl: the labels are scores, {counts} with a fraction; a classifier needs classes: round"
    with pytest.raises(UserError, match=message):
        count_labels(open_labeled([write_file("a.jsonl", "".join(rows))]))
    path = write_file("b.tsv", "v1.5\tx\n2.5\ty\n2.5\tz\n")
    assert tuple(count_labels(open_labeled([path], text=[1], label=0))) == ("2.5", "v1.5")


def test_repeated_headers_and_marks_are_counted(write_file):
    content = b"label\ttext\t\ta\ta\ngood\tone\n\xef\xbb\xbflabel\ttext\t\ta\ta\nbad\ttwo\t\t\t\n"
    examples, report = read_labeled(open_labeled([write_file("a.tsv", content)]))
    assert [(e.line, e.label, e.texts) for e in examples] == [(2, "good", ("one",)), (4, "bad", ("two",))]
    assert (report.total, report.header, report.bom, report.malformed) == (3, 1, 1, 0)
    assert report.examples == {"bom": ["line 3"], "header": ["line 3"]}


def test_unusable_lines_are_counted_with_their_place(write_file):
    lines = ["a\tx", "no tab", "b\t  ", "", "\tempty label", "b\ty", "c\tz", "a\tbad \x00 byte", "a\tw"]
    paths = [write_file("a.tsv", "\n".join(lines) + "\n"), write_file("b.tsv", "a\tlast\n")]
    files = open_labeled(paths, text=[1], label=0)
    examples, report = read_labeled(files, labels=["a", "b"])
    assert [(e.line, e.label) for e in examples] == [(1, "a"), (6, "b"), (9, "a"), (1, "a")]
    assert report.examples["malformed"] == ["a.tsv line 2", "a.tsv line 8"]
    assert str(report) == (
        "a.tsv + b.tsv: 4 of 10 texts; skipped 2 blank (first: a.tsv line 3), 2 broken (first: a.tsv line "
        "2), 1 with an unknown label (first: a.tsv line 7, 'c'), 1 without a label (first: a.tsv line 5)"
    )
    message = r"5 with an unknown label \(first: a.tsv line 1, 'a'\), .*; the labels are neg, pos"
    with pytest.raises(UserError, match=message):
        read_labeled(files, ["pos", "neg"])


def test_values_that_are_no_numbers_are_counted(write_file):
    values = ["1.5", "1" + "0" * 400, '"1_000"', "NaN", "1e999", '" -2e3 "', "true", '"b"', *"34567"]
    lines = [f'{{"text": "a", "score": {value}}}' for value in values]
    files = open_labeled([write_file("a.jsonl", "\n".join(lines))], label="score", kind="number")
    examples, report = read_labeled(files)
    assert [(e.line, e.number) for e in examples] == [
        (1, 1.5),
        (6, -2000.0),
        (9, 3.0),
        (10, 4.0),
        (11, 5.0),
        (12, 6.0),
        (13, 7.0),
    ]
    assert report.malformed == 6


def test_names_of_labels_in_lists(write_file):
    lines = ['{"text": "a", "label": [true, 2.0, "food"]}', '{"text": "b", "label": ["fod"]}']
    files = open_labeled([write_file("a.jsonl", "\n".join(lines))], kind="labels")
    assert read_labeled(files)[0][0].labels == ("true", "2", "food")
    examples, report = read_labeled(files, ["food", "true", "2.0"])
    assert [e.labels for e in examples] == [("true", "2.0", "food")]  # as the model names them
    assert report.examples["unknown_label"] == ["line 2, 'fod', did you mean 'food'?"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "one\ta\ntwo\t\nthree\nfour\t \nfive\ta\n"),
        ("a.csv", "text,label\none,a\ntwo,\nthree,\nfour,\u3000\nfive,a\n"),
        (
            "a.jsonl",
            '{"text": "one", "label": "a"}\n{"text": "two"}\n{"text": "three", "label": null}\n'
            '{"text": "four", "label": ""}\n{"text": "five", "label": "a"}\n',
        ),
    ],
)
def test_texts_without_a_label_are_counted(name, content, write_file):
    columns = {"text": [0], "label": 1} if name.endswith(".tsv") else {}
    _, report = read_labeled(open_labeled([write_file(name, content)], **columns))
    counted = (report.total, report.used, report.missing_label, report.malformed)
    assert counted == (5, 2, 3, 0)


def test_labels_that_look_alike_are_named():
    labels = [
        "pos",
        "Pos",
        "pós",
        "po\u0301s",
        "neg",
        "ｎｅｇ",
        "very good",
        "very\xa0 good",
        "0",
        "1",
        "po\u200bs",
    ]
    message = describe_similar_labels({label: i for i, label in enumerate(labels)})
    groups = [
        "'pos' (0), 'Pos' (1), 'po\\u200bs' (10)",
        "'pós' (2), 'po\u0301s' (3)",
        "'neg' (4), 'ｎｅｇ' (5)",
    ]
    groups += ["'very good' (6), 'very\\xa0 good' (7)"]
    assert message.endswith("are separate classes: " + "; ".join(groups))
    assert describe_similar_labels({"good": 3, "bad": 2, "0": 1}) == ""
    for a, b in [("good", "gооd"), ("BAD", "ВΑD"), ("a-b", "a–b"), ("x", "x\u3164"), ("1", "01")]:
        assert describe_similar_labels({a: 1, b: 2}).endswith(f"{a!r} (1), {b!r} (2)")


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (TSV, {"text": ["sentense"]}, r"unknown column of a.tsv 'sentense'; did you mean 'sentence'\?"),
        (TSV, {"text": [1], "label": 2}, "a.tsv has 2 columns: no column 2"),
        (TSV, {"text": ["sentence"], "format": "parallel"}, "format 'parallel' has no labels"),
        ("", {}, "a.tsv is empty"),
        ("a\tx\na\ty\n", {}, "a.tsv: every text has the label 'a'; there is nothing to classify"),
        ("".join(f"{i}\tx\n" for i in range(30)), {}, "30 different labels for 30 texts, such as '0'; is 0 "),
        ("a\t\nb\t\n", {}, "no usable text in a.tsv: 0 of 2 texts; skipped 2 blank"),
        ("a\tx\nb\ty\n", {}, "a.tsv: 2 texts, each with a label of its own, are too few"),
        ("a\tx\nb\nc\n", {}, "most lines are invalid: a.tsv: 1 of 3 texts"),
    ],
)
def test_invalid_file_is_refused_in_one_line(write_file, content, options, message):
    with pytest.raises(UserError, match=message) as error:
        count_labels(open_labeled([write_file("a.tsv", content)], **options or {"text": [1], "label": 0}))
    assert "\n" not in str(error.value)
