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
NESTED_SIDES = {"source": "translation.en", "target": "translation.de"}
SUMMARIES = [{"article": f"{s} {s}", "summary": s} for s in SENTENCES]
THREE = [{"a": s, "b": f"{s}.", "c": f"{s}!"} for s in SENTENCES]
BOOKS = [{"text": f"{i} is so long " * (1 << 17)} for i in range(3)]
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
        ("a.jsonl", NESTED_PAIRS, "translation", NESTED_SIDES | LANGUAGES),
        ("a.parquet", [{"story": s} for s in SENTENCES], "language-model", {"text": "story"}),
        ("a.jsonl", CONVERSATIONS, "chat", {}),
    ],
)
def test_columns_determine_the_task(name, rows, task, roles):
    summary = inspect_data([write_table(name, rows)], {})
    assert summary.task == task
    ignored = {"root", "train", "valid_fraction"}
    assert {key: value for key, value in summary.data.items() if key not in ignored} == roles
    assert (summary.rows, summary.is_complete) == (60, True)
    texts = [value for row in rows for value in row.values() if isinstance(value, str) and value in SENTENCES]
    assert summary.size >= sum(len(text.encode()) for text in texts)
    assert summary.labels == (0 if task != "classification" else 3 if rows is INFERENCE else 2)


@pytest.mark.parametrize(
    ("row", "task", "text"),
    [
        ({"text": "a b", "labels": ["x"]}, "multi-label", "text"),
        ({"note": "a b", "score": 0.5}, "regression", "note"),
        ({"text": "a b", "spans": [[0, 1, "X"]]}, "token-classification", "text"),
        ({"a": "a b", "b": "c d", "score": 0.5}, "regression", ["a", "b"]),
    ],
)
def test_text_columns_of_labels(row, task, text):
    path = write_table("a.jsonl", [row | {"score": i} if "score" in row else row for i in range(60)])
    given = {} if text == ["a", "b"] else {"text": text}
    assert inspect_data([path], given, task).data["text"] == text


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


@pytest.mark.parametrize(
    ("rows", "settings", "task", "expected"),
    [
        (STORIES, {}, "language-model", {"text": "text"}),
        (STORIES, {"text": "title"}, "language-model", {"text": "title"}),
        (
            STORIES,
            {"source": "text", "target": "title"},
            "translation",
            {"source": "text", "target": "title"},
        ),
        (STORIES, {}, "masked-lm", {"text": "text"}),
        (REVIEWS, {}, "language-model", {"text": "review"}),
        (THREE, {"text": "b"}, "language-model", {"text": "b"}),
        (SUMMARIES, {"source": "summary"}, "translation", {"source": "summary", "target": "article"}),
        (SUMMARIES, {"target": "article"}, "translation", {"source": "summary", "target": "article"}),
        (BOOKS, {}, "language-model", {"text": "text"}),
    ],
    ids=range(9),
)
def test_settings_override_the_detected_columns(rows, settings, task, expected):
    file = write_table("a.jsonl", rows)
    summary = inspect_data([file], settings, *([task] if rows is REVIEWS or task == "masked-lm" else []))
    assert (summary.task, summary.rows) == (task, len(rows))
    assert expected.items() <= summary.data.items()


def test_unknown_columns_and_tasks_are_refused():
    for rows, task, message in (
        (PAIRS, "classification", r"none has few frequent values; set the label column"),
        (PAIRS, "clasification", r"unknown task supported by init 'clasification'; did you mean"),
        (THREE, None, r"c.jsonl has the columns a, b, c: the columns to use are ambiguous; set"),
    ):
        with pytest.raises(UserError, match=message):
            inspect_data([write_table("c.jsonl", rows)], {}, *filter(None, [task]))


def write_labels(*labels):
    """Write pairs of sentences with these labels in turn."""
    rows = [{"sentence1": s, "sentence2": f"so {s}"} for s in SENTENCES]
    rows = [row | {"label": labels[i % len(labels)]} for i, row in enumerate(rows)]
    return write_table("a.jsonl", rows)


@pytest.mark.parametrize(
    ("labels", "value", "task"),
    [
        ((3.25, 1.0), r"3\.25", "regression"),
        (([1], [2, 3]), r"\[1\]", "multi-label"),
        ((0.0, 1.0), "", ""),
    ],
    ids=["scores", "lists", "integers"],
)
def test_scores_and_lists_are_no_labels(labels, value, task):
    file = write_labels(*labels)
    if value:
        message = rf"a.jsonl: 'label' holds {value}; a label must be text, .*; task={task} learns such"
        with pytest.raises(UserError, match=message):
            inspect_data([file], {})
        assert inspect_data([file], {"text": "sentence1"}).task == "language-model"
    else:
        assert inspect_data([file], {}).labels == 2  # as columns with missing values have


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
    with pytest.raises(UserError, match=r"a.json is one JSON list[,;] .*jq -c '.\[\]'"):
        inspect_data(["a.json"], {})


@pytest.mark.parametrize(
    ("inputs", "is_ambiguous"),
    [([""] * 60, False), (SENTENCES, True), ([*SENTENCES[:6], *[""] * 54], True)],
    ids=["no input", "inputs", "few inputs"],
)
def test_instruction_with_input_is_ambiguous(inputs, is_ambiguous):
    pairs = zip(SENTENCES, inputs, strict=True)
    rows = [{"instruction": f"say {s}", "input": text, "output": s} for s, text in pairs]
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
    for name, values, note in (
        ("label", [0.0, 0.5, 1.0], r"a.csv: 'label' holds '0.5'; a label must be text, an integer"),
        ("label", ["pos"], r"a.csv: every text has the label 'pos'; there is nothing to class"),
        (
            "stars",
            [3.5, 4.0],
            "stars has scores such as 3.5, not classes: task=regression learns them",
        ),
        ("stars", ["good"], "stars is 'good' in each text: a classifier needs at least two classes."),
    ):
        if name == "label":
            with pytest.raises(UserError, match=note):
                inspect_column(name, values)
        else:
            summary = inspect_column(name, values)
            assert summary.task == "language-model" and summary.notes[0].startswith(note)
