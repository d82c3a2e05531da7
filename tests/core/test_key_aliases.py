"""Names of other toolkits: each leads to a key that is there, from wherever it is typed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

import polyhead as ph
from polyhead.compare.sweep import read_axis
from polyhead.config.generation_config import GenerationConfig, Pooling
from polyhead.config.model import PART_REGISTRIES, ModelSpec
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.key_aliases import KEY_ALIASES, KEY_NOTES
from polyhead.core.key_aliases import NAME_ALIASES as NAMED
from polyhead.core.messages import section_type
from polyhead.core.registry import ALL_REGISTRIES, CACHE, OPTIMIZER, SCHEDULE, TOKENIZER
from polyhead.run.recipe import load_recipe

REGISTRIES = {
    **PART_REGISTRIES,
    "optimizer": OPTIMIZER,
    "schedule": SCHEDULE,
    "kind": TOKENIZER,
    "cache": CACHE,
}
NAMES = [(name, key) for key, names in KEY_ALIASES.items() for name in names.split()]


@pytest.mark.parametrize("key", KEY_ALIASES)
def test_what_is_meant_is_a_key_of_a_recipe(key: str) -> None:
    place, _, value = key.partition("=")
    root: Any = Recipe
    *above, last = place.split(".")
    for depth, part in enumerate(above):
        annotation = root.model_fields[part].annotation
        if Choice in (annotation, *get_args(annotation)):
            registry = REGISTRIES[part]
            assert depth == len(above) - 1
            assert any(last in registry.options(name) for name in registry.names()), key
            return
        root = section_type(annotation)
    assert last in root.model_fields
    names = (
        REGISTRIES[last].names() if last in PART_REGISTRIES else get_args(root.model_fields[last].annotation)
    )
    assert not value or value in names


def test_no_name_is_told_twice_and_notes_are_of_keys() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert set(KEY_NOTES) <= set(KEY_ALIASES)


@pytest.mark.parametrize("kind", NAMED)
def test_names_of_parts_from_elsewhere_are_of_parts_that_are_there(kind: str) -> None:
    known = {registry.kind: registry.names() for registry in ALL_REGISTRIES} | {
        "kind": get_args(ModelSpec.model_fields["kind"].annotation),
        "pooling": get_args(Pooling),
    }
    there = [name for names in NAMED[kind].values() for name in names.split()]
    assert set(NAMED[kind]) <= set(known[kind])
    assert len(set(there)) == len(there) and not set(there) & set(known[kind])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("model.position=RoPE", "'rope'"),
        ("model.norm=RMSNorm", "'rmsnorm'"),
        ("model.feed_forward=SwiGLU", "'swiglu'"),
        ("tokenizer.kind=BPE", "'bpe'"),
        ("model.position=nope", "'none'"),
        ("model.position=rotary", "'rope'"),
        ("model.attention=multihead", "'softmax'"),
        ("model.feed_forward=experts", "'moe'"),
        ("tokenizer.kind=sentencepiece", "'unigram'"),
        ("task=lm", "'language-model'"),
        ("model.kind=gpt", "'decoder'"),
        ("generation.pooling=cls", "'first'"),
        ("tokenizer.lowercase=true", "'kind.lowercase'"),
        ("model.window=64", "'attention.window'"),
        ("model.qk_norm=true", "'attention.qk_norm'"),
        ("model.theta=1e4", "'position.theta'"),
        ("model.n_experts=4", "'feed_forward=moe'"),
        ("model.bias=false", "'attention.bias'"),
        ("train.eps=1e-6", "'optimizer.eps'"),
        ("train.cooldown=0.2", "'schedule.cooldown'"),
        ("generation.bits=4", "'cache.bits'"),
        ("model.position=rope.theta=5", "'rope'"),
    ],
)
def test_what_is_typed_elsewhere_is_answered_with_our_name(typed: str, meant: str, recipe: Path) -> None:
    with pytest.raises(UserError) as error:
        load_recipe(recipe, [typed])
    said = str(error.value)
    assert f"did you mean {meant}" in said.replace("'model.", "'").replace("'train.", "'").replace(
        "'tokenizer.", "'"
    ).replace("'generation.", "'"), said
    assert "of your own package" not in said


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text("data: {train: a, valid: b}\ntrain: {steps: 1}\n")
    return path


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ("model.hidden_size=3", "model.hidden_size: unknown key; did you mean 'd_model'?"),
        ("hidden_size=3", "hidden_size: unknown key; did you mean 'model.d_model'?"),
        ("train.hidden_size=3", "train.hidden_size: unknown key; did you mean 'model.d_model'?"),
        ("train.num_train_epochs=3", "train.num_train_epochs: unknown key; did you mean 'epochs'?"),
        ("warmup_steps=3", "warmup_steps: unknown key; did you mean 'train.schedule.warmup' (in steps)?"),
        ("train.warmup_steps=3", "train.warmup_steps: unknown key; did you mean 'train.schedule.warmup' (in "
                                 "steps)?"),
        ("train.weight_decay=0", "train.weight_decay: unknown key; did you mean "
                                 "'train.optimizer.weight_decay'?"),
        ("train.batch_size=9", "train.batch_size: unknown key; did you mean 'max_tokens' (in tokens, not in "
                               "rows)?"),
        ("generation.batch_size=9", "generation.batch_size: unknown key; did you mean 'batch_tokens' (in "
                                    "tokens, not in rows)?"),
        ("train.fp16=true", "train.fp16: unknown key; did you mean 'precision=fp16'?"),
        ("train.early_stopping=3", "train.early_stopping: unknown key; did you mean 'patience'?"),
        ("train.lora.rank=3", "train.lora.rank: unknown key; did you mean 'r'?"),
        ("train.adapt.rank=3", "train.adapt: unknown key; did you mean 'lora'?"),
        ("generation.ends=[a]", "generation.ends: unknown key; did you mean 'stop_tokens' (tokens by their "
                                "names)?"),
        ("start.run=x", "start.run: unknown key; did you mean 'init_from.run'?"),
        ("generation.max_tokens=3", "generation.max_tokens: unknown key; did you mean 'max_new_tokens'?"),
        ("data.src_lang=de", "data.src_lang: unknown key; did you mean 'source_lang'?"),
        ("model.vocab=3", "model.vocab: unknown key; did you mean 'tokenizer.vocab_size'?"),
        ("model.lr=3", "model.lr: unknown key; did you mean 'train.lr'?"),
        ("model.temperature=3", "model.temperature: unknown key; did you mean 'generation.temperature'?"),
        ("output_dir=x", "output_dir: unknown key; did you mean 'out'?"),
    ],
)  # fmt: skip
def test_a_recipe_is_told_the_key(recipe: Path, change: str, hint: str) -> None:
    with pytest.raises(UserError) as refused:
        load_recipe(recipe, [change])
    assert str(refused.value) == hint


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("learning_rate: 1", "learning_rate: unknown key; did you mean 'train.lr'?"),
        ("lr: 1", "lr: unknown key; did you mean 'train.lr'?"),
        ("model.d_model: 8", "model.d_model: unknown key; write model: {d_model: ...}"),
        ("model: {norm.eps: 1}", "model.norm.eps: unknown key; write norm: {name: ..., eps: ...}"),
    ],
)
def test_a_recipe_file_is_told_it_too(recipe: Path, line: str, hint: str) -> None:
    recipe.write_text(f"{recipe.read_text()}{line}\n")
    with pytest.raises(UserError) as refused:
        load_recipe(recipe)
    assert str(refused.value) == hint


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: ph.ModelConfig(vocab_size=9, hidden_size=3), "hidden_size: unknown key; did you mean "
            "'d_model'?"),
        (lambda: ph.ModelConfig(vocab_size=9, layer_norm_eps=3), "layer_norm_eps: unknown key; did you mean "
            "'norm.eps'?"),
        (lambda: ph.ModelConfig(vocab_size=9, learning_rate=3), "learning_rate: unknown key; did you mean "
            "'train.lr'?"),
        (lambda: TrainConfig(steps=1, max_grad_norm=3), "max_grad_norm: unknown key; did you mean "
            "'clip_norm'?"),
        (lambda: GenerationConfig(num_beams=3), "num_beams: unknown key; did you mean 'beam_size'?"),
        (lambda: read_axis("hidden_size=3,4"), "--vary hidden_size: unknown key; did you mean "
                                               "'model.d_model'?"),
        (
            lambda: read_axis("train.warmup_steps=3,4"),
            "--vary train.warmup_steps: unknown key; did you mean 'train.schedule.warmup' (in steps)?",
        ),
    ],
)  # fmt: skip
def test_settings_in_python_and_axes_are_told_it(make: Callable[[], object], hint: str) -> None:
    with pytest.raises(UserError) as refused:
        make()
    assert str(refused.value) == hint
