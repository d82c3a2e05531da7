import json

import pytest
from tests.train.conftest import user_error

from polyhead.core.errors import UserError
from polyhead.data.readers.labeled import count_multi_labels, open_labeled, read_labeled
from polyhead.data.readers.spans import (
    find_conll,
    is_squad,
    parse_answers,
    parse_spans,
    spans_to_tags,
    tags_to_spans,
)

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


CONTEXT = "Ann met Bo in Rome."
ROWS = [("Who met Bo?", [("Ann", 0)]), ("Where?", [("Rome", 14), ("in Rome", 11)]), ("Why?", [])]


def write_squad(path, **extra):
    qas = [
        {"id": str(i), "question": q, "answers": [{"text": t, "answer_start": s} for t, s in answers]}
        for i, (q, answers) in enumerate(ROWS)
    ]
    qas[-1] |= {"is_impossible": True, "plausible_answers": [{"text": "met", "answer_start": 4}]}
    data = [{"title": "x", "paragraphs": [{"context": CONTEXT, "qas": qas}]}]
    path.write_text(json.dumps({**extra, "data": data}))
    return path


def write_rows(path):
    rows = []
    for question, answers in ROWS:
        value = [{"text": text, "start": start} for text, start in answers]
        rows.append({"question": question, "context": CONTEXT, "answers": value})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("form", ["squad", "version", "list"])
def test_all_forms_give_the_same_questions(form, tmp_path):
    if form in ("squad", "version"):
        path = write_squad(tmp_path / "a.json", **({"version": "v2.0"} if form == "version" else {}))
    else:
        path = write_rows(tmp_path / "a.jsonl")
    assert is_squad(path) == (form in ("squad", "version"))
    files = open_labeled([path], text=["question", "context"], label="answers", kind="answers")
    examples, report = read_labeled(files)
    assert [example.texts for example in examples] == [(question, CONTEXT) for question, _ in ROWS]
    found = [[(span.label, span.start) for span in example.spans] for example in examples]
    assert found == [answers for _, answers in ROWS] and examples[1].label == "Rome"
    assert all(CONTEXT[s.start : s.end] == s.label for example in examples for s in example.spans)
    assert (report.used, report.total) == (3, 3)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([{"text": "Ann", "start": 1}], "answer 'Ann' is not at character 1 of its context"),
        ([{"text": "Ann"}], "expected a text and its start"),
        ([{"text": " ", "start": 3}], "expected a text and its start"),
        ("Ann", "answer 'Ann', expected a text and its start"),
    ],
)
def test_wrong_answers_are_named(value, message):
    assert message in str(parse_answers(CONTEXT, value))


def test_damaged_squad_is_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"data": [{"paragraphs": [{"context": "x", "qas": [{}]}]}]}')
    files = open_labeled([tmp_path / "a.json"], text=["question", "context"], label="answers", kind="answers")
    with user_error("a.json is not SQuAD: after question 1"):
        read_labeled(files)


def test_questions_of_a_context_share_its_split(tmp_path):
    rows = [{"question": f"q{i}", "context": f"context {i // 5}", "answers": []} for i in range(100)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {
        "text": ["question", "context"],
        "label": "answers",
        "kind": "answers",
        "validation_fraction": 0.3,
    }
    splits = [
        {
            example.texts[1]
            for example in read_labeled(
                open_labeled([tmp_path / "a.jsonl"], **options, is_validation=is_validation)
            )[0]
        }
        for is_validation in (False, True)
    ]
    assert all(splits) and not splits[0] & splits[1]
