"""Tests of autoconfig/column_roles.py."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from tests.autoconfig.propose_recipe_helpers import TALKS, table

from polyhead.autoconfig.inspect_data import inspect_data
from polyhead.core.errors import UserError

WORDS = "the cat a dog sees bites and loves no bird that sings here".split()  # noqa: SIM905

DRAWN = random.Random(1)

SENTENCES = [" ".join(DRAWN.choices(WORDS, k=6)) for _ in range(60)]

LABELS = ["good" if i % 3 else "bad" for i in range(60)]

REVIEWS = [{"id": i, "review": s, "stars": k} for i, (s, k) in enumerate(zip(SENTENCES, LABELS, strict=True))]

PAIRED = [{"premise": s, "hypothesis": f"so {s}", "label": i % 3} for i, s in enumerate(SENTENCES)]

MEANT = [{"en": s, "de": s.replace("the", "der")} for s in SENTENCES]

INNER = [{"translation": one, "id": i} for i, one in enumerate(MEANT)]

STORIES = [{"title": f"no {i}", "n": i, "text": f"{s}\n{s}"} for i, s in enumerate(SENTENCES)]


@pytest.mark.parametrize(
    ("name", "rows", "task", "data"),
    [
        ("a.csv", REVIEWS, "classification", {"text": "review", "label": "stars"}),
        ("a.tsv.gz", REVIEWS, "classification", {"text": "review", "label": "stars"}),
        ("a.bare.tsv", REVIEWS, "classification", {"text": 1, "label": 2}),
        ("a.parquet", PAIRED, "classification", {"text": ["premise", "hypothesis"], "label": "label"}),
        ("a.bare.tsv", MEANT, "translation", {"source": 0, "target": 1}),
        (
            "a.jsonl",
            MEANT,
            "translation",
            {"source": "en", "target": "de", "source_lang": "en", "target_lang": "de"},
        ),
        (
            "a.jsonl",
            INNER,
            "translation",
            {
                "source": "translation.en",
                "target": "translation.de",
                "source_lang": "en",
                "target_lang": "de",
            },
        ),
        ("a.parquet", [{"story": s} for s in SENTENCES], "language-model", {"text": "story"}),
        ("a.jsonl", TALKS, "chat", {}),
    ],
)
def test_the_columns_of_a_table_tell_what_it_is(name, rows, task, data, tmp_path):
    found = inspect_data([table(tmp_path, name, rows)], {"root": tmp_path})
    assert found.task == task
    roles = {
        key: value for key, value in found.data.items() if key not in ("root", "train", "valid_fraction")
    }
    assert roles == data
    assert (found.rows, found.is_complete) == (60, True)
    texts = [value for row in rows for value in row.values() if isinstance(value, str) and value in SENTENCES]
    assert found.size >= sum(len(text.encode()) for text in texts)
    assert found.labels == (0 if task != "classification" else 3 if rows is PAIRED else 2)


@pytest.mark.parametrize(
    ("column", "task"),
    [
        ("paid", "classification"),
        ("valid", "classification"),
        ("user_id", "language-model"),
        ("userId", "language-model"),
        ("ID", "language-model"),
    ],
)
def test_what_numbers_things_is_no_label(column, task, tmp_path):
    rows = [{"note": sentence, column: i % 2} for i, sentence in enumerate(SENTENCES)]
    assert inspect_data([table(tmp_path, "a.csv", rows)], {"root": tmp_path}).task == task


def test_a_column_that_is_called_text_is_one_whatever_it_holds(tmp_path):
    names = [{"text": f"Anna{i}", "label": "mf"[i % 2]} for i in range(60)]
    found = inspect_data([table(tmp_path, "names.jsonl", names)], {"root": tmp_path})
    assert (found.task, found.data["text"], found.labels) == ("classification", "text", 2)
    numbers = [{"text": i, "label": "mf"[i % 2]} for i in range(60)]
    with pytest.raises(UserError, match="the columns to use are ambiguous"):
        inspect_data([table(tmp_path, "numbers.jsonl", numbers)], {"root": tmp_path})


def test_what_is_said_of_columns_goes_before_what_is_found(tmp_path):
    three = table(tmp_path, "three.jsonl", [{"a": s, "b": f"{s}.", "c": f"{s}!"} for s in SENTENCES])
    with pytest.raises(
        UserError, match=r"three.jsonl has the columns a, b, c: the columns to use are ambiguous; set"
    ):
        inspect_data([three], {"root": tmp_path})
    assert inspect_data([three], {"root": tmp_path, "text": "b"}).task == "language-model"
    file = table(tmp_path, "a.jsonl", STORIES)
    assert inspect_data([file], {"root": tmp_path}).data["text"] == "text"
    found = inspect_data([file], {"root": tmp_path, "text": "title"})
    assert (found.task, found.data["text"]) == ("language-model", "title")
    two = table(tmp_path, "two.jsonl", [{"article": f"{s} {s}", "summary": s} for s in SENTENCES])
    for given, other in (
        ({"source": "summary"}, {"target": "article"}),
        ({"target": "article"}, {"source": "summary"}),
    ):
        found = inspect_data([two], {"root": tmp_path} | given)
        assert (given | other).items() <= found.data.items()
    found = inspect_data([file], {"root": tmp_path, "source": "text", "target": "title"})
    assert (found.task, found.rows) == ("translation", 60)
    assert inspect_data([file], {"root": tmp_path}, "masked-lm").data["text"] == "text"
    reviews = table(tmp_path, "b.jsonl", REVIEWS)
    assert inspect_data([reviews], {"root": tmp_path}, "language-model").data["text"] == "review"
    with pytest.raises(UserError, match=r"none has few frequent values; set the label column"):
        inspect_data([table(tmp_path, "c.jsonl", MEANT)], {"root": tmp_path}, "classification")
    with pytest.raises(UserError, match=r"unknown task supported by init 'clasification'; did you mean"):
        inspect_data([file], {"root": tmp_path}, "clasification")


def test_labels_may_be_whole_numbers_of_any_kind_but_scores_and_lists_are_told(tmp_path):
    root = {"root": tmp_path}

    def labelled(*kinds: Any) -> str:
        rows = [
            {"sentence1": s, "sentence2": f"so {s}", "label": kinds[i % len(kinds)]}
            for i, s in enumerate(SENTENCES)
        ]
        return table(tmp_path, "a.jsonl", rows)

    assert inspect_data([labelled(0.0, 1.0)], root).labels == 2  # as columns with gaps come
    for kinds, shown in (((3.25, 1.0), r"3\.25"), (([1], [2, 3]), r"\[1\]")):
        file = labelled(*kinds)
        with pytest.raises(
            UserError, match=rf"a.jsonl: 'label' holds {shown}; a label must be text, an integer"
        ):
            inspect_data([file], root)
        assert inspect_data([file], root | {"text": "sentence1"}).task == "language-model"


@pytest.mark.parametrize(
    ("names", "rows", "data"),
    [
        (
            ["phrase", "polarity"],
            zip(SENTENCES, LABELS, strict=True),
            {"text": "phrase", "label": "polarity"},
        ),
        (
            ["en", "de"],
            zip(SENTENCES, SENTENCES, strict=True),
            {"source": "en", "target": "de", "source_lang": "en", "target_lang": "de"},
        ),
        (
            ["so so", f"{SENTENCES[0]}, {SENTENCES[0]}"],
            zip(LABELS[1:], SENTENCES[1:], strict=True),
            {"text": 1, "label": 0},
        ),
        (["bad", SENTENCES[0]], zip(LABELS[1:], SENTENCES[1:], strict=True), {"text": 1, "label": 0}),
    ],
)
def test_a_tsv_may_have_a_header_of_any_names(names, rows, data, tmp_path):
    (tmp_path / "a.tsv").write_text("".join("\t".join(row) + "\n" for row in [names, *rows]))
    found = inspect_data(["a.tsv"], {"root": tmp_path})
    assert found.rows == 60
    assert data.items() <= found.data.items()


def test_a_json_list_is_told_and_rows_may_be_long(tmp_path):
    root = {"root": tmp_path}
    for indent in (None, 2):
        (tmp_path / "a.json").write_text(json.dumps(REVIEWS, indent=indent))
        with pytest.raises(UserError, match=r"a.json is one JSON list; .*jq -c '.\[\]' a.json > a.jsonl"):
            inspect_data(["a.json"], root)
    books = table(tmp_path, "books.jsonl", [{"text": f"{i} is so long " * (1 << 17)} for i in range(3)])
    found = inspect_data([books], root)
    assert (found.task, found.rows) == ("language-model", 3)


def test_an_instruction_and_its_input_are_not_one_of_them_alone(tmp_path):
    root = {"root": tmp_path}

    def asked(inputs: Sequence[str]) -> str:
        rows = [
            {"instruction": f"say {s}", "input": i, "output": s}
            for s, i in zip(SENTENCES, inputs, strict=True)
        ]
        return table(tmp_path, "a.jsonl", rows)

    data = inspect_data([asked([""] * 60)], root).data
    assert (data["source"], data["target"]) == ("instruction", "output")
    for file in (asked(SENTENCES), asked([*SENTENCES[:6], *[""] * 54])):
        with pytest.raises(
            UserError,
            match=r"a.jsonl: each of instruction, input may be the source: merge them into one column",
        ):
            inspect_data([file], root)
        data = inspect_data([file], root | {"source": "instruction"}).data
        assert (data["source"], data["target"]) == ("instruction", "output")


def test_unnamed_and_doubled_columns_and_the_header_again_are_no_columns(tmp_path):
    for name, mark in (("a.csv", ","), ("a.tsv", "\t")):
        lines = [f"{i}{mark}{s}{mark}{LABELS[i]}{mark}x{mark}y" for i, s in enumerate(SENTENCES)]
        header = mark.join(["", "phrase", "polarity", "n", "n"])
        (tmp_path / name).write_text("\n".join([header, *lines[:30], header, *lines[30:]]) + "\n")
        found = inspect_data([name], {"root": tmp_path})
        assert (found.task, found.data["text"], found.data["label"]) == (
            "classification",
            "phrase",
            "polarity",
        )
        assert (found.rows, found.labels) == (60, 2)
    with pytest.raises(UserError, match=r"a.csv has 2 columns named 'n': the name is ambiguous"):
        inspect_data(["a.csv"], {"root": tmp_path, "label": "n"})


def test_scores_as_text_and_a_single_class_are_told(tmp_path):
    def inspect_column(name: str, values: Sequence[Any]) -> Any:
        rows = [{"text": s, name: values[i % len(values)]} for i, s in enumerate(SENTENCES)]
        return inspect_data([table(tmp_path, "a.csv", rows)], {"root": tmp_path})

    assert inspect_column("label", ["1", "1.0", "0"]).labels == 2
    with pytest.raises(UserError, match=r"a.csv: 'label' holds '0.5'; a label must be text, an integer"):
        inspect_column("label", [0.0, 0.5, 1.0])
    with pytest.raises(UserError, match=r"a.csv: every text has the label 'pos'; there is nothing to class"):
        inspect_column("label", ["pos"])
    found = inspect_column("stars", [3.5, 4.0])
    assert (found.task, found.notes) == (
        "language-model",
        ["stars has scores such as 3.5, not classes: round them to integers to train a classifier."],
    )
    assert inspect_column("stars", ["good"]).notes == [
        "stars is 'good' in each text: a classifier needs at least two classes."
    ]


def test_a_blank_line_at_the_end_of_one_side_is_no_difference(tmp_path):
    (tmp_path / "a.txt").write_text("a dog barks .\n" * 40 + "\n")
    (tmp_path / "b.txt").write_text("a cat sleeps .\n" * 40)
    for files in (["a.txt", "b.txt"], ["b.txt", "a.txt"]):
        found = inspect_data(files, {"root": tmp_path})
        assert (found.task, found.rows) == ("translation", 40)
