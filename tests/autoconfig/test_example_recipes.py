"""The example recipes of the package: listed, printed, written with their text, and trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from polyhead.autoconfig import example_recipes
from polyhead.cli import main
from polyhead.data.synthetic.synthetic_cldr import write_corpus
from polyhead.run.recipe import validate_recipe

ROOT = Path(__file__).parents[2]
OWN_TEXT = ROOT / "recipes" / "dates-en-zh"


def test_without_a_name_every_recipe_is_listed_with_what_it_learns(capsys):
    assert main(["init", "--example"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        path.stem for path in sorted((ROOT / "recipes").glob("*.yaml"))
    ]
    assert "sst2                  Sentiment of film reviews, two classes, from scratch" in lines


def test_an_example_is_printed_as_it_is_in_the_folder(capsys):
    assert main(["init", "--example", "sst2"]) == 0
    assert capsys.readouterr().out == (ROOT / "recipes/sst2.yaml").read_text()
    assert main(["init", "--example", "dates-en-zh"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["data"]["root"] == str(OWN_TEXT)


def test_a_written_example_has_its_text_beside_it_and_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--example", "dates-en-zh", "--output", "my folder/dates.yaml"]) == 0
    assert (
        capsys.readouterr().err == "my folder/dates.yaml; train it: polyhead train 'my folder/dates.yaml'\n"
    )
    tree = yaml.safe_load(Path("my folder/dates.yaml").read_text())
    assert tree["data"]["root"] == "my folder/dates-en-zh"
    validate_recipe(tree)
    for file in OWN_TEXT.iterdir():
        assert Path("my folder/dates-en-zh", file.name).read_bytes() == file.read_bytes()
    tiny = ["train.steps=2", "train.eval_bleu=false", "model.d_model=16", "tokenizer.vocab_size=350"]
    assert main(["train", "my folder/dates.yaml", *tiny]) == 0
    assert Path("runs/dates/model.safetensors").is_file()


def test_an_example_without_text_of_its_own_says_what_it_needs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--example", "sst2", "--output", "s.yaml"]) == 0
    assert capsys.readouterr().err == "s.yaml; train it: polyhead train s.yaml data.root=path/to/sst2\n"
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sst"], "unknown example 'sst'; did you mean 'sst2'?"),
        (["sst2", "trec"], "--example takes one name, got sst2, trec; to override keys use polyhead train"),
        (["dates-en-zh", "--output", "there.yaml"], "--output there.yaml already exists"),
        (["dates-en-zh", "--output", "new.yaml"], "dates-en-zh already exists, and the text of the example"),
    ],
)
def test_mistakes_are_answered_and_nothing_is_written(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("there.yaml").touch()
    Path("dates-en-zh").mkdir()
    assert main(["init", "--example", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["dates-en-zh", "there.yaml"]


def test_the_text_of_dates_is_what_cldr_says(tmp_path):
    write_corpus(tmp_path, "en", "zh", n=4400, n_valid=200, n_test=200)
    for file in OWN_TEXT.iterdir():
        assert file.read_bytes() == (tmp_path / file.name).read_bytes()


def test_an_installed_package_has_the_recipes_within(tmp_path, monkeypatch):
    monkeypatch.setattr(example_recipes, "_PACKAGE", tmp_path / "src" / "polyhead")
    assert example_recipes.example_directory() == tmp_path / "recipes"
    (tmp_path / "src/polyhead/recipes").mkdir(parents=True)
    assert example_recipes.example_directory() == tmp_path / "src/polyhead/recipes"
