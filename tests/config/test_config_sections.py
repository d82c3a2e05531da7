from tests.config.recipe_helpers import TEXT, error_of, write

from polyhead.run.recipe import load_recipe


def test_optional_sections_are_set_key_by_key(recipe_file, tmp_path):
    overrides = ["init_from=runs/a", "init_from.layer_stride=2", "distill.teacher=runs/b"]
    recipe = load_recipe(recipe_file, [*overrides, "train.lr_factors.head=5"])
    assert (recipe.init_from.run, recipe.init_from.layer_stride) == ("runs/a", 2)
    assert (recipe.distill.teacher, recipe.train.lr_factors) == (["runs/b"], {"head": 5.0})
    message = error_of(recipe_file, "every=2")
    assert message.startswith("every") and "init_from.layer_stride" in message
    path = write(tmp_path / "small.yml", TEXT + "model:\ngeneration: null\n")
    assert load_recipe(path) == load_recipe(recipe_file), "empty sections are their defaults"
