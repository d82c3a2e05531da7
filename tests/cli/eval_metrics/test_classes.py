import json
import re

import pytest
from tests.cli.classify_helpers import TEXTS
from tests.cli.classify_helpers import classifier as classifier

import polyhead
from polyhead.config.recipe import Recipe
from polyhead.evaluate.classify import class_measures

LABELS = ["n", "y", "z", "n", "y", "n"]


@pytest.fixture
def table(tmp_path):
    """A table of labelled texts, one of them too long and one with an unknown label."""
    rows = [*zip(TEXTS, LABELS, strict=True), ("lang " * 40, "z"), ("x", "unknown")]
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    return path


def test_labelled_file_is_measured(classifier, table, tmp_path, cli):
    out, err = cli("eval", classifier, table, "--output", tmp_path / "labels")
    assert "a.tsv: 7 of 8 texts; skipped 1 with an unknown label (first: line 9, 'unknown')" in err
    assert "truncated to 12 tokens: 1 of 7 texts" in err
    run = polyhead.load(classifier)
    labels = [one.label for one in run.classify([*TEXTS, "lang " * 40])]
    indices = [[run.config.labels.index(label) for label in row] for row in (labels, [*LABELS, "z"])]
    expected = class_measures(*indices, run.config.labels)
    lines, matrix, hardest = (part.splitlines() for part in out.split("\n\n"))
    values = {line.split()[0]: float(line.split()[1]) for line in lines}
    assert {name: values[name] for name in expected} == pytest.approx(expected, abs=1e-3)
    assert 0 <= values["ece"] <= 1
    counts = [[indices_of(*indices).count((i, j)) for j in range(3)] for i in range(3)]
    assert matrix[1].split() == list(run.config.labels)
    assert [line.split() for line in matrix[2:]] == [
        [name, *map(str, row)] for name, row in zip(run.config.labels, counts, strict=True)
    ]
    probabilities = [float(line.split("  ")[1]) for line in hardest[1:]]
    assert probabilities == sorted(probabilities) and len(probabilities) == 5
    assert hardest[1].split("  ")[3].startswith("lang lang") or hardest[1].split("  ")[3] in TEXTS
    assert (tmp_path / "labels").read_text().split() == labels


def indices_of(predictions, references):
    return list(zip(references, predictions, strict=True))


def test_columns_and_formats_are_selected(classifier, tmp_path, cli):
    rows = list(zip(TEXTS, LABELS, strict=True))
    text_first = "".join(f"{text}\t{label}\n" for text, label in rows)
    label_first = "".join(f"{label}\t{text}\n" for text, label in rows)
    for name, content in {
        "usual.tsv": f"text\tlabel\n{text_first}",
        "train": f"text\tlabel\n{text_first}",
        "other.tsv": f"class\tsentence\n{label_first}",
        "bare.tsv": label_first,
        "b.jsonl": "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows),
    }.items():
        (tmp_path / name).write_text(content)

    def measure(name, *options, run=classifier):
        lines = cli("eval", run, tmp_path / name, *options).out.splitlines()
        return [re.sub(r"^line \d", "", line) for line in lines if not line.startswith("speed")]

    expected = measure("usual.tsv")
    assert measure("other.tsv", "--text", "sentence", "--label", "class") == expected
    assert measure("bare.tsv", "--text", 1, "--label", 0) == expected
    options = ["--text", "sentense", "--label", "class"]
    assert "did you mean 'sentence'" in cli.error("eval", classifier, tmp_path / "other.tsv", *options)
    run = polyhead.load(classifier)
    data = {"train": [str(tmp_path / "train")], "valid": [str(tmp_path / "train")], "format": "tsv"}
    run.recipe = Recipe.model_validate({"task": "classification", "data": data, "train": {"steps": 1}})
    run.save(tmp_path / "run")
    for name in ("train", "usual.tsv", "b.jsonl"):  # files of the recipe have its format
        assert measure(name, run=tmp_path / "run") == expected
