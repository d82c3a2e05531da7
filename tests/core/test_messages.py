import pytest

import polyhead as ph
from polyhead.config.data_config import DataConfig
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelSpec
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.errors import UserError
from polyhead.core.key_aliases import KEY_ALIASES
from polyhead.core.messages import section_type

TREE = {"data": {"train": "a", "valid": "b"}, "train": {"steps": 1}}
INVALID = {"train": {"steps": 0}, "model": {"d_mdoel": 2}}
D_MODEL = "d_mdoel: unknown key; did you mean 'd_model'?"
ATTENTION = "atention: unknown key; did you mean 'attention'?"
STRIDE = "lyer_stride: unknown key; did you mean 'layer_stride'?"
ZERO, NO_INTEGER = "0 is out of range: expected more than 0", "vocab_size: 'many' is not an integer"


@pytest.mark.parametrize(
    ("make", "lines"),
    [
        (lambda: ph.ModelConfig(vocab_size=9, d_mdoel=3), [D_MODEL]),
        (lambda: ph.ModelConfig(vocab_size="many", n_heads=0), [f"n_heads: {ZERO}", NO_INTEGER]),
        (lambda: ModelSpec(norm="rmsnrm"), ["norm: unknown norm 'rmsnrm'; did you mean 'rmsnorm'?"]),
        (lambda: ModelSpec(layer_pattern=[{}, {"atention": "softmax"}]), [f"layer_pattern[1].{ATTENTION}"]),
        (lambda: TrainConfig(steps=3, stps=3), ["stps: unknown key; did you mean 'steps'?"]),
        (lambda: TrainConfig(), ["give steps or epochs, e.g. train.steps=10000"]),
        (lambda: GenerationConfig(beam_sise=3), ["beam_sise: unknown key; did you mean 'beam_size'?"]),
        (lambda: DataConfig(), ["train: missing; this key has no default"]),
        (lambda: Recipe(**TREE, init_from={"run": "x", "lyer_stride": 2}), [f"init_from.{STRIDE}"]),
        (
            lambda: Recipe(**TREE, tokenizer={"extend": -4}),
            ["tokenizer.extend: -4 is out of range: expected more than 0, and is not a path"],
        ),
        (lambda: Recipe(**TREE | INVALID), [f"model.{D_MODEL}", f"train.steps: {ZERO}"]),
    ],
)
def test_each_mistake_is_a_line(make, lines):
    with pytest.raises(UserError) as error:
        make()
    assert [line.split(" Known:")[0] for line in str(error.value).splitlines()] == lines


def test_aliases_are_not_keys_of_their_section():
    for key, names in KEY_ALIASES.items():
        section = key.rpartition(".")[0]
        is_section = section in Recipe.model_fields
        owner = section_type(Recipe.model_fields[section].annotation) if is_section else Recipe
        assert not set(names.split()) & set(owner.model_fields), key
