"""``ph.train``, ``ph.compare`` and ``ph.init_recipe``: functions whose names are those of modules too."""

from __future__ import annotations

import inspect
import pickle
import pydoc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import polyhead as ph
from polyhead.core.errors import UserError
from polyhead.run.recipe import load_recipe

TEXT = (
    "task: language-model\ndata: {train: t.txt, valid_fraction: 0.1, max_len: 16}\ntokenizer: {kind: char}\n"
    "model: {d_model: 16, n_layers: 1, n_heads: 2, max_len: 32}\ntrain: {steps: 4, max_tokens: 128, "
    "precision: fp32}\n"
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a text and a recipe, to stand in."""
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("".join(f"the dog barks {i % 7} times\n" for i in range(200)))
    Path("mine.yaml").write_text(TEXT)
    return tmp_path


@pytest.mark.parametrize(
    "code",
    [
        "import polyhead as ph",
        "import polyhead.train.signals\nimport polyhead as ph",
        "import polyhead as ph\nph.train\nimport polyhead.train.signals",
        "import polyhead as ph\nimport polyhead.train.signals, polyhead.compare.sweep, "
        "polyhead.config.recipe",
        "from polyhead import train, compare, init_recipe\nimport polyhead.config.recipe as module\nassert "
        "module.Recipe\nimport polyhead as ph",
        "from polyhead.train import signals\nfrom polyhead.compare.sweep import Axis\nfrom "
        "polyhead.config.recipe import Recipe\nimport polyhead as ph",
        "import importlib\nimportlib.import_module('polyhead.compare.plan')\nimport polyhead as ph",
    ],
)
def test_the_names_are_functions_in_every_order_of_imports_and_the_modules_stay(code: str) -> None:
    check = (
        "\nimport inspect, sys\nassert callable(ph.train) and callable(ph.compare) and "
        "callable(ph.init_recipe) and callable(ph.estimate)\nassert "
        "list(inspect.signature(ph.train).parameters) == ['recipe', 'changes', 'resume', 'quiet']\nimport "
        "polyhead.train.signals as signals, polyhead.compare.sweep, polyhead.config.recipe\nassert "
        "sys.modules['polyhead.train.signals'] is signals is ph.train.signals is "
        "polyhead.train.signals\nassert polyhead.compare.sweep.Axis and polyhead.config.recipe.read_recipe "
        "and polyhead.config.recipe.Recipe\nassert 'torch' not in sys.modules, 'names alone cost nothing'"
    )
    subprocess.run([sys.executable, "-c", code + check], check=True)


@pytest.mark.parametrize("library", [pickle, cloudpickle])
def test_they_can_be_sent_to_another_process_and_reloaded(library: Any) -> None:
    for name in ("train", "compare", "init_recipe"):
        assert library.loads(library.dumps(getattr(ph, name))) is getattr(ph, name)
    code = (
        "import importlib, polyhead as ph\nph.train\nimportlib.reload(ph)\nassert callable(ph.train) and "
        "callable(ph.init_recipe)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_all_public_names_are_there() -> None:
    assert {"train", "compare", "init_recipe"} <= set(dir(ph))
    assert all(inspect.signature(getattr(ph, name)) for name in ("train", "compare", "init_recipe"))
    assert 'changes such as "train.steps=100"; return the finished run' in pydoc.render_doc(ph.train)


def test_a_training_from_python_is_that_of_the_shell(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ph.train("mine.yaml", "train.steps=2", "out=runs/a")
    said = capsys.readouterr()
    assert "exports: " in said.err and "finished at step 2" in said.err and not said.out
    assert run.recipe is not None and run.recipe.train.steps == 2
    same = ph.load("runs/a").generate(["the dog"], temperature=0, max_new_tokens=5)
    assert run.generate(["the dog"], temperature=0, max_new_tokens=5) == same
    read = ph.train(load_recipe("mine.yaml"), "train.steps=2", "out=runs/b", quiet=True)
    assert not capsys.readouterr().err
    assert all((a == b).all() for a, b in zip(run.model.parameters(), read.model.parameters(), strict=True))


def test_a_comparison_from_python_prints_as_its_table(home: Path) -> None:
    found = ph.compare(
        "mine.yaml",
        vary={"norm": ["rmsnorm"]},
        designs={"wide": ["d_model=32", "d_ff=64"]},
        budget="2steps",
        out="runs/c",
    )
    assert found.finished
    assert sorted(row["name"] for row in found.rows) == ["base", "norm=rmsnorm", "wide"]
    assert all(row["status"] == "done" for row in found.rows)
    for row in found.rows:
        assert row["name"] in repr(found)
    assert (found.out / "compare.html").is_file()
    again = ph.compare(
        "mine.yaml",
        vary={"norm": ["rmsnorm"]},
        designs={"wide": ["d_model=32", "d_ff=64"]},
        budget="2steps",
        out="runs/c",
    )
    assert repr(again) == repr(found), "what is finished is not run again"


WRONG: Any = None


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ph.train(WRONG), "train expects a Recipe or a recipe file, got null"),
        (lambda: ph.train({"data": 1}), "train expects a Recipe or a recipe file, got {"),
        (lambda: ph.train("none.yaml"), "none.yaml: no such file"),
        (lambda: ph.train("mine.yaml", "steps"), "train: expected an override KEY=VALUE in one string, such "
                                                 "as 'train.steps=100', got "
                "'steps'"),
        (lambda: ph.train("mine.yaml", 100), "train: expected an override KEY=VALUE in one string, such as "
                                             "'train.steps=100', got 100"),
        (lambda: ph.train("mine.yaml", "train.stpes=1"), "train.stpes: unknown key; did you mean 'steps'?"),
        (lambda: ph.train("mine.yaml", resum=True), "resum: unknown key; did you mean 'resume'?"),
        (lambda: ph.compare(load_recipe("mine.yaml")), "compare expects a recipe file, got "),
        (lambda: ph.compare("mine.yaml", vary="norm=rmsnorm"), "vary must map keys to lists of values"),
        (lambda: ph.compare("mine.yaml", vary={"norm": "rmsnorm"}), "norm: expected a list of values, got "
            "'rmsnorm'"),
        (lambda: ph.compare("mine.yaml", vary={"nrom": ["rmsnorm"]}), "nrom: unknown key; did you mean"),
        (lambda: ph.compare("mine.yaml", seeds=0), "seeds is 0; expected"),
        (lambda: ph.compare("mine.yaml", match="flops"), "match is 'flops': only 'params' is supported"),
        (lambda: ph.init_recipe(), "expected training files"),
        (lambda: ph.init_recipe(3), "init_recipe expects names of text files, or overrides such as "
                                    "'train.steps=100', got 3"),
        (lambda: ph.init_recipe("t.txt", target="hff"), "unknown format 'hff'; did you mean 'hf'?"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_one_line(home: Path, call: Callable[[], Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        call()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
