from pathlib import Path

import pytest
from tests.compare.compare_helpers import make_toy_plan

from polyhead.compare.shared_setup import ensure_tokenizer
from polyhead.compare.sweep import Axis
from polyhead.run.recipe import load_recipe


@pytest.mark.usefixtures("workdir")
def test_each_part_of_text_has_its_own_tokenizer():
    changes = ([], ["data.valid=null", "data.valid_fraction=0.2"], ["data.document_separator=line"], [])
    recipes = [load_recipe("lm.yaml", change) for change in changes]
    assert len({ensure_tokenizer(recipe, Path("runs/compare-lm")) for recipe in recipes}) == 3


def test_designs_with_other_files_need_common_validation_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "valid.txt"):
        Path(name).write_text("to be or not\n" * 9)
    data = "data: {train: a.txt, valid_fraction: 0.1}"
    Path("toy.yaml").write_text(f"task: language-model\n{data}\ntrain: {{steps: 2}}\n")
    axis = Axis("data.train", ("a.txt", "[a.txt, b.txt]"))
    base, both = make_toy_plan(axis).designs
    assert base.recipe is not None and both.recipe is None
    assert both.error.startswith("data.valid_fraction would hold out a different text than the base recipe")
    changes = ("data.valid_fraction=0", "data.valid=valid.txt")
    assert make_toy_plan(axis, changes=changes).designs[1].recipe.data.train == ["a.txt", "b.txt"]
