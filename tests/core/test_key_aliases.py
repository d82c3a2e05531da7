from typing import get_args

import pytest

import polyhead as ph
from polyhead.compare.sweep import read_axis
from polyhead.config.generation_config import GenerationConfig, Pooling
from polyhead.config.model import PART_REGISTRIES, ModelSpec
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.key_aliases import KEY_ALIASES, KEY_NOTES, NAME_ALIASES
from polyhead.core.messages import section_type
from polyhead.core.registry import ALL_REGISTRIES, CACHE, OPTIMIZER, SCHEDULE, TOKENIZER
from polyhead.run.recipe import load_recipe

SHARED_REGISTRIES = {"optimizer": OPTIMIZER, "schedule": SCHEDULE, "kind": TOKENIZER, "cache": CACHE}
UNKNOWN = "unknown key; did you mean"
REGISTRIES = PART_REGISTRIES | SHARED_REGISTRIES


def key_exists(key):
    path, _, value = key.partition("=")
    *sections, last = path.split(".")
    fields = Recipe.model_fields
    for depth, name in enumerate(sections):
        annotation = fields[name].annotation
        if Choice in (annotation, *get_args(annotation)):
            registry = REGISTRIES[name]
            is_option = any(last in registry.options(part) for part in registry.names())
            return depth == len(sections) - 1 and is_option
        fields = section_type(annotation).model_fields
    values = REGISTRIES[last].names() if last in PART_REGISTRIES else get_args(fields[last].annotation)
    return not value or value in values


def test_aliases_are_unique_and_lead_to_existing_keys():
    assert [key for key in KEY_ALIASES if not key_exists(key)] == []
    aliases = [(name, key) for key, names in KEY_ALIASES.items() for name in names.split()]
    assert len(set(aliases)) == len(aliases) and set(KEY_NOTES) <= set(KEY_ALIASES)


@pytest.mark.parametrize("kind", NAME_ALIASES)
def test_component_aliases_are_unique_and_lead_to_names(kind):
    names = {registry.kind: registry.names() for registry in ALL_REGISTRIES}
    names |= {"kind": get_args(ModelSpec.model_fields["kind"].annotation), "pooling": get_args(Pooling)}
    aliases = [alias for row in NAME_ALIASES[kind].values() for alias in row.split()]
    assert set(NAME_ALIASES[kind]) <= set(names[kind])
    assert len(set(aliases)) == len(aliases) and not set(aliases) & set(names[kind])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("learning_rate: 1", "learning_rate: unknown key; did you mean 'train.lr'?"),
        ("model.d_model: 8", "model.d_model: unknown key; write model: {d_model: ...}"),
        ("model: {norm.eps: 1}", "model.norm.eps: unknown key; write norm: {name: ..., eps: ...}"),
        ("trian: {}", "trian: unknown key; did you mean 'train'?"),
        ("distill: {teacher: x, run: y}", "distill.run: unknown key; did you mean 'teacher'?"),
        ("run: x", "run: unknown key; did you mean 'init_from.run'?"),
        ("distill: {teacher: x, temprature: 2}", "distill.temprature: unknown key; did you mean 'temper"),
        (lambda: ph.ModelConfig(vocab_size=9, hidden_size=3), f"hidden_size: {UNKNOWN} 'd_model'"),
        (lambda: ph.ModelConfig(vocab_size=9, layer_norm_eps=3), f"layer_norm_eps: {UNKNOWN} 'norm.eps'"),
        (lambda: ph.ModelConfig(vocab_size=9, learning_rate=3), f"learning_rate: {UNKNOWN} 'train.lr'"),
        (lambda: TrainConfig(steps=1, max_grad_norm=3), f"max_grad_norm: {UNKNOWN} 'clip_norm'"),
        (lambda: GenerationConfig(num_beams=3), f"num_beams: {UNKNOWN} 'beam_size'"),
        (lambda: read_axis("hidden_size=3,4"), f"--vary hidden_size: {UNKNOWN} 'model.d_model'"),
        (
            lambda: read_axis("train.warmup_steps=3,4"),
            f"--vary train.warmup_steps: {UNKNOWN} 'train.sche",
        ),
    ],
)
def test_unknown_key_names_the_key(tmp_path, make, message):
    """In a recipe file and in Python."""
    path = tmp_path / "small.yaml"
    path.write_text(f"data: {{train: a, valid: b}}\ntrain: {{steps: 1}}\n{make}\n")
    with pytest.raises(UserError) as error:
        load_recipe(path) if isinstance(make, str) else make()
    assert str(error.value).startswith(message)
