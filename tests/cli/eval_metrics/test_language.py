import json

import pyarrow
import pytest
from pyarrow import parquet
from tests.cli.cli_helpers import save_run

from polyhead import load
from polyhead.config.recipe import Recipe
from polyhead.data.readers.plain_text import open_text

TEXTS = ["ein hund bellt .", "a dog barks 0123456789", "two dogs , one cat"]


@pytest.fixture(scope="module", params=["recipe", "no recipe"])
def directory(request, tmp_path_factory):
    """A run and the texts as lines and as tables."""
    path = tmp_path_factory.mktemp("tables")
    (path / "plain").write_text("".join(f"{text}\n" for text in TEXTS))
    rows = [{"text": text, "other": text[::-1], "number": 5} for text in TEXTS]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path / "a.parquet")
    (path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    cells = [list(rows[0]), *(row.values() for row in rows)]
    (path / "a.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in cells))
    data = {"train": ["plain"], "valid": ["plain"], "max_len": 64}
    tree = {"task": "language-model", "data": data, "train": {"steps": 1}}
    recipe = Recipe.model_validate(tree) if request.param == "recipe" else None
    save_run(path / "run", TEXTS, kind="decoder", recipe=recipe)
    return path


@pytest.mark.parametrize("table", ["a.parquet", "a.jsonl", "a.tsv"])
def test_texts_of_a_table_are_measured(table, directory, cli):
    def measure(*options):
        lines = cli("eval", directory / "run", directory / table, *options).out.splitlines()[:4]
        return [float(line.split()[1]) for line in lines]

    result = load(directory / "run").measure_perplexity(open_text([directory / "plain"], "line"))
    expected = [result.loss, result.per_token, result.per_word, result.bits_per_character]
    assert measure() == pytest.approx(expected, abs=2e-3)
    assert measure("--text", "other") != pytest.approx(expected, abs=2e-3)
    assert "--text requires files" in cli.error("eval", directory / "run", "--text", "other")
    message = cli.error("eval", directory / "run", directory / "a.jsonl", "--text", "txt")
    assert "unknown key of a.jsonl 'txt'; did you mean 'text'?" in message


def test_folder_is_measured_as_its_files(directory, tmp_path, cli):
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, text in zip(files, TEXTS, strict=False):
        path.write_text(f"{text}\n")
    folder, named = (cli("eval", directory / "run", *arguments).out for arguments in ([tmp_path], files))
    assert folder.splitlines()[:4] == named.splitlines()[:4]
