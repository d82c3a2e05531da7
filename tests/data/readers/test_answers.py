import json

import pytest
from tests.train.conftest import user_error

from polyhead.data.readers.answers import is_squad, parse_answers
from polyhead.data.readers.labeled import open_labeled, read_labeled

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
