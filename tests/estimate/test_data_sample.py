"""Plans from a sample of the text, against those of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow.parquet import write_table
from tests.estimate.data_sample_helpers import both, check, recipe, rows
from tests.estimate.data_sample_helpers import home as home

from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.estimate import data_sample

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "max_len": 256}
TRAIN = {"epochs": 1, "max_tokens": 1024, "precision": "fp32"}


@pytest.mark.parametrize("train", [["few.txt", "many.txt"], ["many.txt", "few.txt"]])
def test_the_order_of_files_is_all_the_same(home, monkeypatch, train):
    """A file of fewer lines than stay together says nothing of one beside it."""
    for name, n in (("few", 200), ("many", 8000), ("valid", 40)):
        Path(f"{name}.txt").write_text("".join(f"{row}\n" for row in rows(n)))
    part, whole = both(recipe("language-model", train, ["valid.txt"]), monkeypatch)
    check(part, whole)
    assert part.text["lines"] == 8200
    assert part.text["looked_at"] == pytest.approx(40_000 / part.text["bytes"], rel=0.1)


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
def test_a_sample_has_all_bytes_and_characters(home, monkeypatch, kind):
    """Of pieces the whole text may have as many as are asked for."""
    for name, n in (("t", 3000), ("v", 40)):
        Path(f"{name}.txt").write_text("".join(f"{row}\n" for row in rows(n)))
    tokenizer = {"kind": kind, "vocab_size": 600}
    part, whole = both(recipe("language-model", ["t.txt"], ["v.txt"], tokenizer=tokenizer), monkeypatch)
    more = part.parameters - whole.parameters
    assert more > 0 if kind == "bpe" else more == 0


@pytest.mark.parametrize("train", [["long.tsv", "short.tsv"], ["short.tsv", "long.tsv"]])
def test_every_file_gives_its_share(home, monkeypatch, train):
    """Bytes say little where a few texts are so long that most of each is cut."""
    for name, given in (("long", rows(200, 200, 300)), ("short", rows(6000, 2, 4)), ("valid", rows(40))):
        lines = "".join(f"{row}\t{'red' if 'red' in row else 'other'}\n" for row in given)
        Path(f"{name}.tsv").write_text("text\tlabel\n" + lines)
    check(*both(recipe("classification", train, ["valid.tsv"]), monkeypatch))


def test_a_sample_of_parquet_is_lines_of_json(home, monkeypatch):
    for name, given in (("t", rows(5000)), ("v", rows(40))):
        labels = ["red" if "red" in row else "other" for row in given]
        write_table(pyarrow.table({"text": given, "label": labels}), f"{name}.parquet")
    check(*both(recipe("classification", ["t.parquet"], ["v.parquet"]), monkeypatch))


def test_parallel_files_are_sampled_line_by_line(home, monkeypatch):
    """Though one side has far more bytes than the other."""
    given = rows(3000)
    for name, side in (("t.en", given), ("t.de", [f"{row} {row[::-1]} {row}" for row in given])):
        Path(name).write_text("".join(f"{row}\n" for row in side))
        Path(f"v{name[1:]}").write_text("".join(f"{row}\n" for row in side[:20]))
    asked = recipe("translation", ["t.en", "t.de"], ["v.en", "v.de"], data={"max_len": 256})
    folder = home / "sample"
    sides = [
        Path(name).read_text().splitlines()
        for name in data_sample._sample_files(asked.data.split_paths("train"), folder).names
    ]
    assert 0 < len(sides[0]) < 1000
    assert sides[1] == [f"{row} {row[::-1]} {row}" for row in sides[0]]
    check(*both(asked, monkeypatch))


def test_columns_that_the_test_text_alone_has_are_planned_as_they_are_trained(home):
    for name in ("train", "valid"):
        for side in ("en", "de"):
            Path(f"{name}.{side}").write_text("".join(f"{line}\n" for line in rows(20)))
    Path("test.tsv").write_text("".join(f"x\t{line}\t{line}\n" for line in rows(5)))
    columns = {"source": 1, "target": 2}
    data = {"train": ["train.en", "train.de"], "valid": ["valid.en", "valid.de"], "test": ["test.tsv"]}
    tree: dict[str, Any] = {
        "data": data | columns,
        "tokenizer": {"kind": "char"},
        "model": MODEL,
        "train": TRAIN,
    }
    recipe = Recipe.model_validate(tree)
    TASK.get(recipe.task.name).check(recipe)  # as training does
    assert data_sample.open_data_sample(recipe, None, home / "a").lines == 20
    with pytest.raises(UserError, match=r"remove data\.source"):
        data_sample.open_data_sample(
            Recipe.model_validate(tree | {"data": data | columns | {"test": None}}), None, home / "b"
        )
    Path("test.tsv").rename("elsewhere")  # what is measured at the end costs nothing before
    later = Recipe.model_validate(tree | {"data": data})
    assert data_sample.open_data_sample(later, None, home / "c").lines == 20
