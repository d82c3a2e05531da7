import pickle
from itertools import product
from pathlib import Path

import cloudpickle
import pytest
from tests.cli.cli_helpers import cli as cli

import polyhead as ph
from polyhead.compare import run as compare_run
from polyhead.core.errors import UserError
from polyhead.run.recipe import load_recipe

RECIPE = """task: language-model
data: {train: t.txt, valid_fraction: 0.1, max_len: 16}
tokenizer: {kind: char}
model: {d_model: 16, n_layers: 1, n_heads: 2, max_len: 32}
train: {steps: 4, max_tokens: 128, precision: fp32}
"""


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("".join(f"the dog barks {i % 7} times\n" for i in range(200)))
    Path("mine.yaml").write_text(RECIPE)
    return tmp_path


def test_verbs_can_be_pickled():
    for name, library in product(("train", "compare", "init_recipe"), (pickle, cloudpickle)):
        assert library.loads(library.dumps(getattr(ph, name))) is getattr(ph, name)


def test_train_from_recipe_file_and_object(workdir, capsys):
    run = ph.train("mine.yaml", "train.steps=2", "out=runs/a")
    output = capsys.readouterr()
    assert "exports: " in output.err and "finished at step 2" in output.err and not output.out
    assert run.recipe is not None and run.recipe.train.steps == 2
    expected = ph.load("runs/a").generate(["the dog"], temperature=0, max_new_tokens=5)
    assert run.generate(["the dog"], temperature=0, max_new_tokens=5) == expected
    other = ph.train(load_recipe("mine.yaml"), "train.steps=2", "out=runs/b", quiet=True)
    assert not capsys.readouterr().err
    assert all((a == b).all() for a, b in zip(run.model.parameters(), other.model.parameters(), strict=True))


def test_comparison_prints_as_its_table(workdir, cli, monkeypatch):
    trials = []

    def run_trial(directory, stop):
        trials.append(directory.name)
        cli("compare", "--cell", directory)
        return 0

    monkeypatch.setattr(compare_run, "run_subprocess", run_trial)
    options = {"vary": {"norm": ["rmsnorm"]}, "designs": {"wide": ["d_model=32", "d_ff=64"]}}
    options |= {"budget": "2steps", "out": "runs/c"}
    result = ph.compare("mine.yaml", **options)
    assert result.finished and len(trials) == 3
    names = sorted(row["name"] for row in result.rows)
    assert names == ["base", "norm=rmsnorm", "wide"] and all(name in repr(result) for name in names)
    assert all(row["status"] == "done" for row in result.rows)
    assert (result.out / "compare.html").is_file()
    assert repr(ph.compare("mine.yaml", **options)) == repr(result)
    assert len(trials) == 3, "finished trials do not run again"


OVERRIDE = "train: expected an override KEY=VALUE in one string, such as 'train.steps=100', got "


@pytest.mark.whole
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ph.train(None), "train expects a Recipe or a recipe file, got null"),
        (lambda: ph.train("mine.yaml", "steps"), f"{OVERRIDE}'steps'"),
        (lambda: ph.train("mine.yaml", "train.stpes=1"), "train.stpes: unknown key; did you mean 'steps'?"),
        (lambda: ph.train("mine.yaml", resum=True), "resum: unknown key; did you mean 'resume'?"),
        (lambda: ph.compare(load_recipe("mine.yaml")), "compare expects a recipe file, got "),
        (lambda: ph.compare("mine.yaml", vary="norm=rmsnorm"), "vary must map keys to lists of values"),
        (lambda: ph.compare("mine.yaml", vary={"nrom": ["rmsnorm"]}), "nrom: unknown key; did you mean"),
        (lambda: ph.compare("mine.yaml", seeds=0), "seeds is 0; expected"),
        (lambda: ph.compare("mine.yaml", match="flops"), "match is 'flops': only 'params' is supported"),
        (lambda: ph.init_recipe(), "expected training files"),
        (lambda: ph.init_recipe(3), "init_recipe expects names of text files, or overrides such as "),
        (lambda: ph.init_recipe("t.txt", target="hff"), "unknown format 'hff'; did you mean 'hf'?"),
    ],
)
def test_invalid_arguments_are_refused(workdir, call, message):
    with pytest.raises(UserError) as error:
        call()
    assert message in str(error.value) and "\n" not in str(error.value)
