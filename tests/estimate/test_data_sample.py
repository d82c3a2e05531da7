from pathlib import Path

import pyarrow
import pytest
from pyarrow.parquet import write_table
from tests.estimate.data_sample_helpers import (
    assert_close,
    estimate_both,
    make_lines,
    make_recipe,
    write_lines,
)
from tests.estimate.data_sample_helpers import workdir as workdir

from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.estimate import inputs
from polyhead.estimate.inputs import open_data_sample


def labels_of(lines):
    return ["red" if "red" in line else "other" for line in lines]


@pytest.mark.parametrize("train", [["few.txt", "many.txt"], ["many.txt", "few.txt"]])
def test_order_of_files_does_not_matter(workdir, monkeypatch, train):
    """One file has fewer lines than a block of the sample."""
    for name, n in (("few", 200), ("many", 8000), ("valid", 40)):
        write_lines(f"{name}.txt", make_lines(n))
    sample, full = estimate_both(make_recipe("language-model", train, ["valid.txt"]), monkeypatch)
    assert_close(sample, full)
    assert sample.text["lines"] == 8200
    assert sample.text["looked_at"] == pytest.approx(40_000 / sample.text["bytes"], rel=0.1)


@pytest.mark.parametrize("kind", [pytest.param("byte", marks=pytest.mark.slow), "char", "bpe"])
def test_vocabulary_of_a_sample(workdir, monkeypatch, kind):
    """It has all bytes and characters; of BPE merges it may have as many as requested."""
    for name, n in (("t", 3000), ("v", 40)):
        write_lines(f"{name}.txt", make_lines(n))
    tokenizer = {"kind": kind, "vocab_size": 600}
    recipe = make_recipe("language-model", ["t.txt"], ["v.txt"], tokenizer=tokenizer)
    sample, full = estimate_both(recipe, monkeypatch)
    difference = sample.parameters - full.parameters
    assert difference > 0 if kind == "bpe" else difference == 0


@pytest.mark.parametrize("train", [["long.tsv", "short.tsv"], ["short.tsv.gz", "long.tsv.gz"]])
def test_every_file_is_sampled(workdir, monkeypatch, train):
    """Bytes are no measure if a few texts are so long that most of them is truncated."""
    texts = {"long": make_lines(200, 200, 300), "short": make_lines(6000, 2, 4), "valid": make_lines(40)}
    for name, lines in texts.items():
        rows = [f"{line}\t{label}" for line, label in zip(lines, labels_of(lines), strict=True)]
        for end in ("tsv", "tsv.gz"):
            write_lines(f"{name}.{end}", ["text\tlabel", *rows])
    recipe = make_recipe("classification", train, ["valid.tsv"])
    assert_close(*estimate_both(recipe, monkeypatch))


def test_parquet_is_sampled(workdir, monkeypatch):
    for name, lines in (("t", make_lines(5000)), ("v", make_lines(40))):
        write_table(pyarrow.table({"text": lines, "label": labels_of(lines)}), f"{name}.parquet")
    recipe = make_recipe("classification", ["t.parquet"], ["v.parquet"])
    assert_close(*estimate_both(recipe, monkeypatch))


def test_parallel_files_are_sampled_by_lines(workdir, monkeypatch):
    """Though one side has far more bytes than the other."""
    sources = make_lines(3000)
    for name, side in (("en", sources), ("de", [f"{line} {line[::-1]} {line}" for line in sources])):
        write_lines(f"t.{name}", side)
        write_lines(f"v.{name}", side[:20])
    recipe = make_recipe("translation", ["t.en", "t.de"], ["v.en", "v.de"], data={"max_len": 256})
    names = inputs._sample_files(recipe.data.split_paths("train"), workdir / "sample").names
    source, target = (Path(name).read_text().splitlines() for name in names)
    assert 0 < len(source) < 1000
    assert target == [f"{line} {line[::-1]} {line}" for line in source]
    assert_close(*estimate_both(recipe, monkeypatch))


def test_columns_of_the_test_text_only(workdir):
    for name in ("train", "valid"):
        for side in ("en", "de"):
            write_lines(f"{name}.{side}", [f"{side} {line}" for line in make_lines(20)])
    write_lines("test.tsv", [f"x\t{line}\t{line}" for line in make_lines(5)])
    files = ["train.en", "train.de"], ["valid.en", "valid.de"]
    columns = {"source": 1, "target": 2}
    recipe = make_recipe("translation", *files, data=columns | {"test": ["test.tsv"]})
    TASK.get(recipe.task.name).check(recipe)
    assert open_data_sample(recipe, None, workdir / "a").lines == 20
    with pytest.raises(UserError, match=r"remove data\.source"):
        open_data_sample(make_recipe("translation", *files, data=columns), None, workdir / "b")
    Path("test.tsv").unlink()  # it is not needed before the end of training
    recipe = make_recipe("translation", *files, data={"test": ["test.tsv"]})
    assert open_data_sample(recipe, None, workdir / "c").lines == 20
