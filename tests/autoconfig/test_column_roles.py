"""Tests of autoconfig/column_roles.py."""

import json
from pathlib import Path

import pytest
from tests.autoconfig.propose_recipe_helpers import CONVERSATIONS, LABELS, REVIEWS, SENTENCES, write_table

from polyhead.autoconfig.inspect_data import inspect_data
from polyhead.core.errors import UserError

pytestmark = pytest.mark.usefixtures("workdir")
INFERENCE = [{"premise": s, "hypothesis": f"so {s}", "label": i % 3} for i, s in enumerate(SENTENCES)]
PAIRS = [{"en": s, "de": s.replace("the", "der")} for s in SENTENCES]
NESTED_PAIRS = [{"translation": pair, "id": i} for i, pair in enumerate(PAIRS)]
STORIES = [{"title": f"no {i}", "n": i, "text": f"{s}\n{s}"} for i, s in enumerate(SENTENCES)]
LANGUAGES = {"source_lang": "en", "target_lang": "de"}


@pytest.mark.parametrize(
    ("name", "rows", "task", "roles"),
    [
        ("a.csv", REVIEWS, "classification", {"text": "review", "label": "stars"}),
        ("a.tsv.gz", REVIEWS, "classification", {"text": "review", "label": "stars"}),
        ("a.bare.tsv", REVIEWS, "classification", {"text": 1, "label": 2}),
        ("a.parquet", INFERENCE, "classification", {"text": ["premise", "hypothesis"], "label": "label"}),
        ("a.bare.tsv", PAIRS, "translation", {"source": 0, "target": 1}),
        ("a.jsonl", PAIRS, "translation", {"source": "en", "target": "de"} | LANGUAGES),
        (
            "a.jsonl",
            NESTED_PAIRS,
            "translation",
            {"source": "translation.en", "target": "translation.de"} | LANGUAGES,
        ),
        ("a.parquet", [{"story": s} for s in SENTENCES], "language-model", {"text": "story"}),
        ("a.jsonl", CONVERSATIONS, "chat", {}),
    ],
)
def test_columns_determine_the_task(name, rows, task, roles):
    summary = inspect_data([write_table(name, rows)], {})
    assert summary.task == task
    data = {
        key: value for key, value in summary.data.items() if key not in ("root", "train", "valid_fraction")
    }
    assert data == roles
    assert (summary.rows, summary.is_complete) == (60, True)
    texts = [value for row in rows for value in row.values() if isinstance(value, str) and value in SENTENCES]
    assert summary.size >= sum(len(text.encode()) for text in texts)
    assert summary.labels == (0 if task != "classification" else 3 if rows is INFERENCE else 2)


@pytest.mark.parametrize(
    ("column", "is_label"),
    [("paid", True), ("valid", True), ("user_id", False), ("userId", False), ("ID", False)],
)
def test_identifier_is_no_label(column, is_label):
    rows = [{"note": sentence, column: i % 2} for i, sentence in enumerate(SENTENCES)]
    task = "classification" if is_label else "language-model"
    assert inspect_data([write_table("a.csv", rows)], {}).task == task


def test_column_named_text_may_have_short_values():
    names = [{"text": f"Anna{i}", "label": "mf"[i % 2]} for i in range(60)]
    summary = inspect_data([write_table("names.jsonl", names)], {})
    assert (summary.task, summary.data["text"], summary.labels) == ("classification", "text", 2)
    numbers = [{"text": i, "label": "mf"[i % 2]} for i in range(60)]
    with pytest.raises(UserError, match="the columns to use are ambiguous"):
        inspect_data([write_table("numbers.jsonl", numbers)], {})


def test_ambiguous_columns_are_selected_by_settings():
    rows = [{"a": s, "b": f"{s}.", "c": f"{s}!"} for s in SENTENCES]
    file = write_table("three.jsonl", rows)
    message = r"three.jsonl has the columns a, b, c: the columns to use are ambiguous; set"
    with pytest.raises(UserError, match=message):
        inspect_data([file], {})
    assert inspect_data([file], {"text": "b"}).task == "language-model"


@pytest.mark.parametrize(
    ("settings", "task", "expected"),
    [
        ({}, None, {"text": "text"}),
        ({"text": "title"}, None, {"text": "title"}),
        ({"source": "text", "target": "title"}, None, {"source": "text", "target": "title"}),
        ({}, "masked-lm", {"text": "text"}),
    ],
)
def test_settings_override_the_detected_columns(settings, task, expected):
    summary = inspect_data([write_table("a.jsonl", STORIES)], settings, *([task] if task else []))
    assert summary.task == (task or ("translation" if "source" in settings else "language-model"))
    assert expected.items() <= summary.data.items() and summary.rows == 60


@pytest.mark.parametrize("settings", [{"source": "summary"}, {"target": "article"}])
def test_one_given_side_determines_the_other(settings):
    file = write_table("two.jsonl", [{"article": f"{s} {s}", "summary": s} for s in SENTENCES])
    data = inspect_data([file], settings).data
    assert (data["source"], data["target"]) == ("summary", "article")


def test_given_task_needs_its_columns():
    file = write_table("b.jsonl", REVIEWS)
    assert inspect_data([file], {}, "language-model").data["text"] == "review"
    for task, message in (
        ("classification", r"none has few frequent values; set the label column"),
        ("clasification", r"unknown task supported by init 'clasification'; did you mean"),
    ):
        with pytest.raises(UserError, match=message):
            inspect_data([write_table("c.jsonl", PAIRS)], {}, task)


def write_labels(*labels):
    """Write pairs of sentences with these labels in turn."""
    rows = [
        {"sentence1": s, "sentence2": f"so {s}", "label": labels[i % len(labels)]}
        for i, s in enumerate(SENTENCES)
    ]
    return write_table("a.jsonl", rows)


def test_labels_may_be_integers_of_any_type():
    assert inspect_data([write_labels(0.0, 1.0)], {}).labels == 2  # as columns with missing values have


@pytest.mark.parametrize(
    ("labels", "value"), [((3.25, 1.0), r"3\.25"), (([1], [2, 3]), r"\[1\]")], ids=["scores", "lists"]
)
def test_scores_and_lists_are_no_labels(labels, value):
    file = write_labels(*labels)
    message = rf"a.jsonl: 'label' holds {value}; a label must be text, an integer"
    with pytest.raises(UserError, match=message):
        inspect_data([file], {})
    assert inspect_data([file], {"text": "sentence1"}).task == "language-model"


@pytest.mark.parametrize(
    ("header", "columns", "expected"),
    [
        (["phrase", "polarity"], (SENTENCES, LABELS), {"text": "phrase", "label": "polarity"}),
        (["en", "de"], (SENTENCES, SENTENCES), {"source": "en", "target": "de"} | LANGUAGES),
        (["so so", f"{SENTENCES[0]}, {SENTENCES[0]}"], (LABELS[1:], SENTENCES[1:]), {"text": 1, "label": 0}),
        (["bad", SENTENCES[0]], (LABELS[1:], SENTENCES[1:]), {"text": 1, "label": 0}),
    ],
)
def test_header_of_a_tsv_is_detected(header, columns, expected):
    rows = [header, *zip(*columns, strict=True)]
    Path("a.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    summary = inspect_data(["a.tsv"], {})
    assert summary.rows == 60 and expected.items() <= summary.data.items()


@pytest.mark.parametrize("indent", [None, 2])
def test_json_list_is_refused_with_advice(indent):
    Path("a.json").write_text(json.dumps(REVIEWS, indent=indent))
    with pytest.raises(UserError, match=r"a.json is one JSON list; .*jq -c '.\[\]' a.json > a.jsonl"):
        inspect_data(["a.json"], {})


def test_rows_may_be_long():
    rows = [{"text": f"{i} is so long " * (1 << 17)} for i in range(3)]
    summary = inspect_data([write_table("books.jsonl", rows)], {})
    assert (summary.task, summary.rows) == ("language-model", 3)


@pytest.mark.parametrize(
    ("inputs", "is_ambiguous"),
    [([""] * 60, False), (SENTENCES, True), ([*SENTENCES[:6], *[""] * 54], True)],
    ids=["no input", "inputs", "few inputs"],
)
def test_instruction_with_input_is_ambiguous(inputs, is_ambiguous):
    rows = [
        {"instruction": f"say {s}", "input": text, "output": s}
        for s, text in zip(SENTENCES, inputs, strict=True)
    ]
    file = write_table("a.jsonl", rows)
    if is_ambiguous:
        message = r"a.jsonl: each of instruction, input may be the source: merge them into one column"
        with pytest.raises(UserError, match=message):
            inspect_data([file], {})
    data = inspect_data([file], {"source": "instruction"} if is_ambiguous else {}).data
    assert (data["source"], data["target"]) == ("instruction", "output")


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ","), ("a.tsv", "\t")])
def test_unnamed_and_repeated_columns_are_ignored(name, separator):
    header = separator.join(["", "phrase", "polarity", "n", "n"])
    rows = zip(map(str, range(60)), SENTENCES, LABELS, strict=True)
    lines = [separator.join([*row, "x", "y"]) for row in rows]
    Path(name).write_text("\n".join([header, *lines[:30], header, *lines[30:]]) + "\n")
    summary = inspect_data([name], {})
    data = summary.data
    assert (summary.task, data["text"], data["label"]) == ("classification", "phrase", "polarity")
    assert (summary.rows, summary.labels) == (60, 2), "the repeated header is no row"
    if name == "a.csv":
        with pytest.raises(UserError, match=r"a.csv has 2 columns named 'n': the name is ambiguous"):
            inspect_data([name], {"label": "n"})


def inspect_column(name, values):
    rows = [{"text": s, name: values[i % len(values)]} for i, s in enumerate(SENTENCES)]
    return inspect_data([write_table("a.csv", rows)], {})


def test_text_scores_and_single_class_are_refused():
    assert inspect_column("label", ["1", "1.0", "0"]).labels == 2
    with pytest.raises(UserError, match=r"a.csv: 'label' holds '0.5'; a label must be text, an integer"):
        inspect_column("label", [0.0, 0.5, 1.0])
    with pytest.raises(UserError, match=r"a.csv: every text has the label 'pos'; there is nothing to class"):
        inspect_column("label", ["pos"])


def test_column_that_is_no_label_is_noted():
    summary = inspect_column("stars", [3.5, 4.0])
    note = "stars has scores such as 3.5, not classes: round them to integers to train a classifier."
    assert (summary.task, summary.notes) == ("language-model", [note])
    note = "stars is 'good' in each text: a classifier needs at least two classes."
    assert inspect_column("stars", ["good"]).notes == [note]


@pytest.mark.parametrize("files", [["a.txt", "b.txt"], ["b.txt", "a.txt"]])
def test_blank_last_line_of_one_side_is_ignored(files):
    Path("a.txt").write_text("a dog barks .\n" * 40 + "\n")
    Path("b.txt").write_text("a cat sleeps .\n" * 40)
    summary = inspect_data(files, {})
    assert (summary.task, summary.rows) == ("translation", 40)
