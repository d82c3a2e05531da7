from pathlib import Path

import pytest
import yaml

from polyhead.autoconfig import draft_recipe
from polyhead.data.synthetic.synthetic_cldr import write_corpus
from polyhead.run.recipe import validate_recipe


@pytest.mark.parametrize("files", [["a.en", "a.zh"], ["a.zh"]])
def test_vocabulary_of_characters_has_all_of_the_text(files, workdir, cli):
    ideographs = [chr(0x4E00 + i) for i in range(2500)]
    Path("a.zh").write_text("".join("".join(ideographs[i : i + 25]) + "\n" for i in range(0, 2500, 25)))
    Path("a.en").write_text("abcde\n" * 100)
    command = ["init", *files, "tokenizer.kind=char", f"data.valid=[{','.join(files)}]"]
    characters = set("".join(Path(name).read_text().replace("\n", "") for name in files))
    size = yaml.safe_load(cli(*command).out)["tokenizer"]["vocab_size"]
    assert 0 < size - len(characters) <= 6, "special tokens, and the end of a line"
    out = cli(*command, "tokenizer.vocab_size=700").out
    assert yaml.safe_load(out)["tokenizer"]["vocab_size"] == 700


ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "recipes" / "dates-en-zh"


def test_recipes_are_listed_and_printed(cli):
    lines = cli("init", "--example").out.splitlines()
    names = [path.stem for path in sorted((ROOT / "recipes").glob("*.yaml"))]
    assert [line.split()[0] for line in lines] == names
    assert "sst2                   Sentiment of film reviews, two classes, from scratch" in lines
    assert cli("init", "--example", "sst2").out == (ROOT / "recipes/sst2.yaml").read_text()
    out = cli("init", "--example", "dates-en-zh").out
    assert yaml.safe_load(out)["data"]["root"] == str(CORPUS)


def test_example_is_written_with_its_corpus_and_trains(workdir, cli, tmp_path_factory):
    err = cli("init", "--example", "dates-en-zh", "--output", "my folder/dates.yaml").err
    assert err == "my folder/dates.yaml; train it: polyhead train 'my folder/dates.yaml'\n"
    tree = yaml.safe_load(Path("my folder/dates.yaml").read_text())
    assert tree["data"]["root"] == "my folder/dates-en-zh"
    validate_recipe(tree)
    cldr = tmp_path_factory.mktemp("cldr")
    write_corpus(cldr, "en", "zh", n=4400, n_valid=200, n_test=200)
    for path in CORPUS.iterdir():
        copy = Path("my folder/dates-en-zh", path.name).read_bytes()
        assert copy == path.read_bytes() == (cldr / path.name).read_bytes()
    overrides = ["train.steps=2", "train.eval_bleu=false", "model.d_model=16", "data.test=null"]
    overrides += ["tokenizer.vocab_size=350", "generation.max_length_ratio=0.2"]
    cli("train", "my folder/dates.yaml", *overrides)
    assert Path("runs/dates/model.safetensors").is_file()


def test_example_without_corpus_names_the_missing_root(workdir, cli):
    err = cli("init", "--example", "sst2", "--output", "s.yaml").err
    assert err == "s.yaml; train it: polyhead train s.yaml data.root=path/to/sst2\n"
    assert [path.name for path in workdir.iterdir()] == ["s.yaml"]


@pytest.mark.parametrize(
    ("output", "message"),
    [("old.yaml", "--output old.yaml already exists"), ("new.yaml", "dates-en-zh already exists, and")],
)
def test_existing_files_are_not_overwritten(output, message, workdir, cli):
    Path("old.yaml").touch()
    Path("dates-en-zh").mkdir()
    assert message in cli.error("init", "--example", "dates-en-zh", "--output", output)
    assert sorted(path.name for path in workdir.rglob("*")) == ["dates-en-zh", "old.yaml"]


def test_recipes_of_an_installed_package_are_inside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(draft_recipe, "_PACKAGE", tmp_path / "src" / "polyhead")
    assert draft_recipe.example_directory() == tmp_path / "recipes"
    (tmp_path / "src/polyhead/recipes").mkdir(parents=True)
    assert draft_recipe.example_directory() == tmp_path / "src/polyhead/recipes"
