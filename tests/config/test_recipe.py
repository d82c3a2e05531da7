"""Recipes read as they are meant, and every mistake in one is answered in one exact line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.config.recipe_helpers import TEXT, complaint, written
from tests.config.recipe_helpers import recipe as recipe

from polyhead import Choice
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE, POSITION
from polyhead.run.recipe import load_recipe


def test_a_small_recipe_is_complete(recipe: Path) -> None:
    got = load_recipe(recipe)
    assert (got.task.name, got.out, got.data.root) == ("translation", Path("runs/small"), Path("."))
    assert (got.model.d_model, got.tokenizer.kind.name, got.train.steps) == (512, "bpe", 100)
    assert got.generation == GenerationConfig()


def test_a_written_recipe_reads_back_the_same(recipe: Path, tmp_path: Path) -> None:
    changes = [
        "model.position={name: rope, theta: 5e5}",
        "data.source_lang=no",
        "train.lr=1e-5",
        "train.ema=0.999",
    ]
    got = load_recipe(recipe, [*changes, "generation.early_stopping=never", "data.source=1e3x"])
    again = load_recipe(written(tmp_path / "again.yaml", got.dump_yaml()))
    assert again == got
    assert again.dump_yaml() == got.dump_yaml()


def test_every_key_is_written_out(recipe: Path) -> None:
    text = load_recipe(recipe).dump_yaml()
    assert "position:\n    name: sinusoidal\n    base: 10000.0\n" in text
    for section in ("data", "tokenizer", "model", "train", "generation"):
        for key in Recipe.model_fields[section].annotation.model_fields:
            assert f"\n  {key}:" in text


def test_every_key_is_described() -> None:
    for section in ("data", "tokenizer", "model", "train", "generation"):
        for key, field in Recipe.model_fields[section].annotation.model_fields.items():
            assert field.description or field.annotation is Choice, f"{section}.{key} has no description"


@pytest.mark.parametrize(
    ("override", "place", "value"),
    [
        ("train.lr=1e-3", "train.lr", 0.001),
        ("train.lr=5E-4", "train.lr", 0.0005),
        ("train.steps=1e4", "train.steps", 10000),
        ("train.seed=010", "train.seed", 10),
        ("train.steps=", "train.steps", None),
        ("data.source_lang=no", "data.source_lang", "no"),
        ("data.target_lang=on", "data.target_lang", "on"),
        ("train.tensorboard=on", "train.tensorboard", True),
        ("train.eval_bleu=no", "train.eval_bleu", False),
        ("generation.early_stopping=never", "generation.early_stopping", "never"),
        ("generation.early_stopping=True", "generation.early_stopping", True),
        ("data.valid=dev.tsv", "data.valid", ["dev.tsv"]),
        ("data.valid=[a.de, a.en]", "data.valid", ["a.de", "a.en"]),
        ("data.source=de", "data.source", "de"),
        ("data.source=2", "data.source", 2),
        ("data.train=[2026-01-02, 12:30]", "data.train", ["2026-01-02", "12:30"]),
        ("model.position=rope", "model.position", POSITION.check(Choice("rope", theta=1e4))),
        ("model.position.name=rope", "model.position", POSITION.check(Choice("rope", theta=1e4))),
        (
            "model.position={name: rope, theta: 5e5}",
            "model.position",
            POSITION.check(Choice("rope", theta=5e5)),
        ),
        ("train.schedule.warmup=10", "train.schedule", Choice("inverse_sqrt", warmup=10, cooldown=0.0)),
        ("generation.cache=static", "generation.cache", CACHE.check(Choice("static"))),
        ("out=runs/other", "out", Path("runs/other")),
    ],
)
def test_a_change_is_read_as_it_is_meant(recipe: Path, override: str, place: str, value: object) -> None:
    got = load_recipe(recipe, ["train.epochs=1", override])
    for key in place.split("."):
        got = getattr(got, key)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    "changes",
    [
        ["model.position=rope", "model.position.theta=5e5"],
        ["model.position.theta=5e5", "model.position=rope"],
        ["model.position.theta=5e5", "model.position.name=rope"],
    ],
)
def test_a_part_and_its_options_come_in_any_order(recipe: Path, changes: list[str]) -> None:
    assert load_recipe(recipe, changes).model.position == POSITION.check(Choice("rope", theta=5e5))


def test_a_new_part_drops_the_options_of_the_old(tmp_path: Path) -> None:
    path = written(tmp_path / "r.yaml", TEXT + "model:\n  position: {name: rope, theta: 5e5}\n")
    assert load_recipe(path, ["model.position.name=learned"]).model.position == Choice("learned", offset=0)
    assert load_recipe(path, ["model.position.theta=7"]).model.position == POSITION.check(
        Choice("rope", theta=7.0)
    )


def test_the_last_of_two_changes_wins(recipe: Path) -> None:
    assert load_recipe(recipe, ["train.lr=0.5", "train.lr=0.25"]).train.lr == 0.25


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.d_modle=3", "model.d_modle: unknown key; did you mean 'd_model'?"),
        ("model.prest=gpt2", "model.prest: unknown key; did you mean 'preset'?"),
        ("modle.d_model=3", "modle.d_model: unknown key; did you mean 'model'?"),
        ("d_model=3", "d_model: unknown key; did you mean 'model.d_model'?"),
        ("tokenizer.zzz=1", "tokenizer.zzz: unknown key; known: kind, vocab_size, sentinels"),
        ("train.lr=fast", "train.lr: 'fast' is not a number"),
        ("train.lr=nan", "train.lr: 'nan' is not a finite number"),
        ("train.lr=.inf", "train.lr: inf is not a finite number"),
        ("train.steps=9999999999", "train.steps: 9999999999 is out of range: should be at most 2147483647"),
        (
            "model.max_len=9999999999",
            "model.max_len: 9999999999 is out of range: should be at most 2147483647",
        ),
        (
            "generation.cache={name: window, window: 9999999999}",
            "generation.cache: window of cache 'window': 9999999999 is out of range: should be at most "
            "2147483647",
        ),
        (
            "generation.length_penalty=1e308",
            "generation.length_penalty: 1e+308 is out of range: should be less than or equal to 50",
        ),
        (
            "train.threads=100000",
            "train.threads: 100000 is out of range: should be less than or equal to 1024",
        ),
        ("train.lr=0", "train.lr: 0 is out of range: should be greater than 0"),
        ("train.label_smoothing=1", "train.label_smoothing: 1 is out of range: should be less than 1"),
        ("train.steps=2.5", "train.steps: 2.5 is not an integer"),
        ("train.steps=soon", "train.steps: 'soon' is not an integer"),
        ("train.average_checkpoints=true", "train.average_checkpoints: true is not an integer"),
        ("train.patience=true", "train.patience: true is not an integer"),
        ("model.logit_softcap=true", "model.logit_softcap: true is not a number"),
        ("train.epochs=false", "train.epochs: false is not a number"),
        ("data.source=true", "data.source: true is neither a column number nor the name of a key"),
        ("train.steps=", "train: give steps or epochs, e.g. train.steps=10000"),
        (
            "train.average_checkpoints=9",
            "train: average_checkpoints (9) is more than the number of checkpoints kept: keep (3)",
        ),
        (
            "train={steps: 3, recompute: blocks, compile: layers}",
            "train: compile=layers and recompute=blocks cannot be combined: set one of them to none",
        ),
        ("train.tensorboard=maybe", "train.tensorboard: 'maybe' is not true or false"),
        (
            "model.embedding_norm=frist",
            "model.embedding_norm: 'frist' is not true or false, and is not one of first; did you mean "
            "'first'?",
        ),
        (
            "model.scale_embedding=0",
            "model.scale_embedding: 0 is not a factor: expected a number above 0, true or false",
        ),
        (
            "model.logits_scale=.inf",
            "model.logits_scale: inf is not a factor: expected a number above 0, true or false",
        ),
        (
            "train.precision=fp8",
            "train.precision: 'fp8' is not one of auto, fp32, bf16, fp16; did you mean 'fp32'?",
        ),
        ("train.lr.x=3", "train.lr.x: train.lr is a value and has no keys"),
        ("train=3", "train: 3 is not a mapping"),
        ("model=rope", "model: 'rope' is not a mapping"),
        ("data.train=", "data.train: null is not a list"),
        ("data.train=[1]", "data.train[0]: 1 is not text (put it in quotes)"),
        ("data.train=[a, 1, true]", "data.train[1]: 1 is not text (put it in quotes)"),
        ("generation.grammar=json", "generation.grammar has no effect on translations; valid settings: "),
        (
            "generation.max_new_tokens=9",
            "generation.max_new_tokens has no effect on translations; valid settings: ",
        ),
        ("data.train=[]", "data.train: [] is empty; give at least 1"),
        ("data.source_lang=true", "data.source_lang: true is not text (put it in quotes)"),
        ("data.source=[1]", "data.source: [1] is neither a column number nor the name of a key"),
        (
            "data.format=csv",
            "data.format: 'csv': the format of a file x.csv follows from its name; remove data.format",
        ),
        (
            "generation.early_stopping=maybe",
            "generation.early_stopping: 'maybe' is not one of true, false, never",
        ),
        ("generation.n_best=9", "generation: n_best (9) is more than beam_size (5)"),
        (
            "generation.beam_size=0",
            "generation.beam_size: 0 is out of range: should be greater than or equal to 1",
        ),
        (
            "model.position=3",
            "model.position: 3 is not a component: expected a name, or {name: ..., option: value}",
        ),
        (
            "model.d_model=100",
            "model: d_model (100) must be divisible by n_heads (8); the nearest is 96; or give head_dim",
        ),
        (
            "train.schedule.warmup=soon",
            "train.schedule: warmup of schedule 'inverse_sqrt': 'soon' is not an integer",
        ),
        (
            "train.optimizer=adamm",
            "train.optimizer: unknown optimizer 'adamm'; did you mean 'adamw'? Known: ",
        ),
        ("model.position=ropee", "model.position: unknown position 'ropee'; did you mean 'rope'? Known: "),
        (
            "model.position.thta=3",
            "model.position: position 'sinusoidal' has no option 'thta'; known: base, endpoint, layout, "
            "offset",
        ),
        ("model.preset=[base]", "model: unknown preset ['base']; did you mean 'base'? Known: "),
        ("train.freeze=encoder", "train.freeze: 'encoder' is not a list"),
        ("data.text=[a, b, c]", "data.text: ['a', 'b', 'c'] is too long; give at most 2"),
        (
            "data.valid_fraction=0.1",
            "data.valid_fraction and data.valid cannot be combined: set data.valid_fraction=0 or "
            "data.valid=null",
        ),
        *(
            (
                f"train.{kind}={{name: {name}, {option}: {value}}}",
                f"train.{kind}: {option} of {kind} '{name}': {value} is out of range: should be {wanted}",
            )
            for kind, name, option, value, wanted in (
                ("optimizer", "adamw", "beta1", 1.5, "less than 1"),
                ("optimizer", "adamw", "beta2", 1, "less than 1"),
                ("optimizer", "adamw", "eps", 0, "greater than 0"),
                ("optimizer", "adafactor", "weight_decay", -1, "greater than or equal to 0"),
                ("optimizer", "muon", "momentum", -0.5, "greater than or equal to 0"),
                ("optimizer", "muon", "adam_lr", -1, "greater than 0"),
                ("schedule", "constant", "warmup", -5, "greater than or equal to 0"),
                ("schedule", "inverse_sqrt", "cooldown", 2, "less than or equal to 1"),
                ("schedule", "cosine", "floor", 5, "less than or equal to 1"),
                ("schedule", "wsd", "decay", -1, "greater than or equal to 0"),
            )
        ),
        (
            "tokenizer.kind={name: bpe, min_frequency: -1}",
            "tokenizer.kind: min_frequency of tokenizer 'bpe': -1 is out of range: should be greater than "
            "or equal to 0",
        ),
        ("tokenizer.kind=bp", "tokenizer.kind: unknown tokenizer 'bp'; did you mean 'bpe'? Known: "),
        ("generation.cache=statc", "generation.cache: unknown cache 'statc'; did you mean 'static'? Known: "),
        ("task=translate", "unknown task 'translate'; did you mean 'translation'? Known: "),
        ("model.d_model", "override 'model.d_model': expected section.key=value, e.g. model.d_model=256"),
        ("=3", "override '=3': expected section.key=value, e.g. model.d_model=256"),
        ("model..x=3", "override 'model..x=3': expected section.key=value, e.g. model.d_model=256"),
        (
            "train.lr=[",
            "override 'train.lr=[': line 1, column 2: expected the node content, but found '<stream end>'",
        ),
        ("train.lr={a: 1, a: 2}", "override 'train.lr={a: 1, a: 2}': line 1: key 'a' is defined twice"),
        (
            "train.lr=!!python/name:os.system",
            "override 'train.lr=!!python/name:os.system': line 1, column 1: ",
        ),
    ],
)
def test_a_mistake_is_answered_in_one_line(recipe: Path, override: str, message: str) -> None:
    got = complaint(recipe, override)
    assert got.startswith(message) if message.endswith((": ", "Known: ")) else got == message
    assert "\n" not in got


def test_every_mistake_gets_its_line(recipe: Path) -> None:
    got = complaint(recipe, "model.d_modle=3", "train.lr=fast")
    assert got.splitlines() == [
        "model.d_modle: unknown key; did you mean 'd_model'?",
        "train.lr: 'fast' is not a number",
    ]


def test_what_has_no_default_is_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path / "r.yaml", "model: {d_model: 64}\ntrain: {steps: 1}\n")
    assert complaint(path) == "data: missing; this key has no default"
    path = written(tmp_path / "r.yaml", "data: {train: a.tsv}\ntrain: {steps: 1}\n")
    assert (
        complaint(path)
        == "data.valid is missing: set it to validation files, or set data.valid_fraction, e.g. 0.01, "
        "to hold out training text"
    )


def test_a_missing_file_names_the_nearest(recipe: Path, tmp_path: Path) -> None:
    assert (
        complaint(tmp_path / "smal.yaml")
        == f"{tmp_path / 'smal.yaml'}: no such file; did you mean '{tmp_path / 'small.yaml'}'?"
    )
    assert complaint(tmp_path / "no" / "r.yaml") == f"{tmp_path / 'no' / 'r.yaml'}: no such file"
    written(tmp_path / "recipe.yaml", TEXT)
    hint = f"did you mean '{tmp_path / 'recipe.yaml'}'?"
    assert complaint(tmp_path) == f"{tmp_path}: a directory, not a recipe; {hint}"


@pytest.mark.parametrize(("task", "smoothing"), [("translation", 0.1), ("language-model", 0.0)])
def test_settings_given_as_objects_are_those_given_as_keys(
    task: str, smoothing: float, tmp_path: Path
) -> None:
    """A recipe that is made in Python goes on from what it has written: all that follows from its task is in
    it.
    """
    data = {"train": ["a", "b"], "valid": ["c", "d"]}
    made = Recipe(task=task, data=data, train=TrainConfig(steps=1))
    assert made.train.label_smoothing == smoothing
    assert made == Recipe(task=task, data=data, train={"steps": 1})
    (tmp_path / "recipe.yaml").write_text(made.dump_yaml())
    assert load_recipe(tmp_path / "recipe.yaml").train == made.train
    assert (
        Recipe(task=task, data=data, train=TrainConfig(steps=1, label_smoothing=0.3)).train.label_smoothing
        == 0.3
    )


@pytest.mark.parametrize(
    ("task", "key", "of"),
    [
        (
            "denoising",
            "generation.max_new_tokens=9",
            "translations; valid settings: bad_words, batch_tokens, beam_size, ",
        ),
        ("language-model", "generation.max_length_ratio=1.5", "output of language models; valid settings: "),
        ("language-model", "generation.beam_size=4", "output of language models; valid settings: "),
        (
            "chat",
            "generation.bad_words=[a]",
            "output of language models; valid settings: batch_tokens, cache, chat, ",
        ),
        (
            "classification",
            "generation.cache=static",
            "embeddings and classification; valid settings: embed_max_len, ",
        ),
        ("masked-lm", "generation.top_k=5", "embeddings and classification; valid settings: embed_max_len, "),
    ],
)
def test_a_setting_of_generation_that_the_task_has_no_use_for_is_refused(
    task: str, key: str, of: str, recipe: Path
) -> None:
    name = key.partition("=")[0]
    with pytest.raises(UserError, match=f"^{re.escape(f'{name} has no effect on {of}')}"):
        load_recipe(recipe, [f"task={task}", key])
    assert load_recipe(recipe, [f"task={task}", key], from_run=True).generation.model_fields_set == {
        name.removeprefix("generation.")
    }


@pytest.mark.parametrize("task", ["translation", "language-model", "classification", "masked-lm"])
def test_a_recipe_with_every_default_written_out_is_read_again(
    task: str, recipe: Path, tmp_path: Path
) -> None:
    given = load_recipe(recipe, [f"task={task}"])
    assert load_recipe(written(tmp_path / "again.yaml", given.dump_yaml())).generation == given.generation
