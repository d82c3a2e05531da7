import pytest

from polyhead.autoconfig.inspect_data import DataSummary
from polyhead.autoconfig.propose_recipe import LABELED_SIZES, PAIR_SIZES, TEXT_SIZES, propose_recipe
from polyhead.run.recipe import validate_recipe


@pytest.mark.parametrize(
    ("task", "sizes", "sides"),
    [
        ("translation", PAIR_SIZES, 2),
        ("language-model", TEXT_SIZES, 1),
        ("masked-lm", TEXT_SIZES, 1),
        ("classification", LABELED_SIZES, 1),
    ],
)
def test_more_text_has_larger_model_and_fewer_epochs(task, sizes, sides):
    parameters = []
    for size in sizes:
        n_bytes, data = min(size.max_bytes, 1e11), {"train": ["a"], "valid_fraction": 0.1}
        recipe = validate_recipe(propose_recipe(DataSummary(task, data, 1000, int(n_bytes), [80] * 1000)))
        model, train = recipe.model, recipe.train
        parameters.append(model.n_layers * model.d_model**2)
        epochs = train.steps * train.max_tokens / (n_bytes / 4 / sides)
        assert epochs == pytest.approx(size.epochs, rel=0.06)
        assert train.schedule.options["warmup"] < train.steps / 2 and train.eval_every <= train.steps
        assert recipe.data.max_len >= 80 / 4 * 1.5
    assert parameters == sorted(parameters)
