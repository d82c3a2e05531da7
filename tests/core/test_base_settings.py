from polyhead.config.recipe import Recipe


def test_nested_settings_are_read_back():
    data, train = {"train": "a", "valid": "b"}, {"steps": 1}
    recipe = Recipe(data=data, train=train, model={"d_model": 32, "n_heads": 2})
    assert (recipe.model.d_model, recipe.train.steps) == (32, 1)
    assert Recipe.model_validate(recipe.model_dump()) == recipe
