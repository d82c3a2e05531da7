"""Tests of config/recipe.py.

``python -m tests.config.test_recipe --update`` writes the present answers to `overrides.txt`.
"""

import re
import sys
import tempfile
from pathlib import Path

import pytest
from tests.config.recipe_helpers import TEXT, error_of, write

from polyhead import Choice
from polyhead.config.data_config import DataConfig
from polyhead.config.recipe import Recipe, TrainConfig, is_recipe
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE, POSITION
from polyhead.estimate.inputs import find_missing_files
from polyhead.run.recipe import load_recipe

TABLE = Path(__file__).with_name("overrides.txt")


def read_table():
    entries = TABLE.read_text(encoding="utf-8").strip().split("\n\n")
    return [tuple(entry.split("\n", 1)) for entry in entries]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [("a.yaml", TEXT, True), ("a.txt", TEXT, False), ("a.yaml", "data: 1", False), ("a.yaml", "a: [", False)],
)
def test_recipe_is_known_by_its_keys(name, content, expected, tmp_path):
    assert not is_recipe(tmp_path / name)  # no such file
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert is_recipe(tmp_path / name) == expected


@pytest.mark.whole
@pytest.mark.parametrize(("override", "message"), read_table())
def test_invalid_override_is_refused_in_one_line(recipe_file, override, message):
    assert error_of(recipe_file, override) == message and "\n" not in message


def update_table():
    with tempfile.TemporaryDirectory() as directory:
        path = write(Path(directory) / "small.yaml", TEXT)
        rows = [(override, error_of(path, override)) for override, _ in read_table()]
    TABLE.write_text("\n".join(f"{override}\n{message}\n" for override, message in rows), encoding="utf-8")


@pytest.mark.parametrize("task", ["translation", "language-model", "classification", "masked-lm"])
def test_dump_has_every_key_and_reads_back(task, recipe_file, tmp_path):
    recipe = load_recipe(recipe_file, [f"task={task}"])
    text = recipe.dump_yaml()
    assert "position:\n    name: sinusoidal\n    base: 10000.0\n" in text
    for section in ("data", "tokenizer", "model", "train", "generation"):
        for key, field in Recipe.model_fields[section].annotation.model_fields.items():
            assert f"\n  {key}:" in text
            assert field.description or field.annotation is Choice, f"{section}.{key} has no description"
    assert load_recipe(write(tmp_path / "copy.yaml", text)).generation == recipe.generation
    overrides = ["model.position={name: rope, theta: 5e5}", "data.source_lang=no", "train.lr=1e-5"]
    overrides += ["train.ema=0.999", "data.source=1e3x"]
    recipe = load_recipe(recipe_file, [f"task={task}", *overrides])
    copy = load_recipe(write(tmp_path / "copy.yaml", recipe.dump_yaml()))
    assert copy == recipe and copy.dump_yaml() == recipe.dump_yaml()


@pytest.mark.whole
@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("train.lr=1e-3", 0.001),
        ("train.lr=5E-4", 0.0005),
        ("train.steps=1e4", 10000),
        ("train.seed=010", 10),
        ("train.steps=", None),
        ("data.source_lang=no", "no"),
        ("data.target_lang=on", "on"),
        ("train.tensorboard=on", True),
        ("train.eval_bleu=no", False),
        ("generation.early_stopping=never", "never"),
        ("generation.early_stopping=True", True),
        ("data.valid=dev.tsv", ["dev.tsv"]),
        ("data.valid=[a.de, a.en]", ["a.de", "a.en"]),
        ("data.source=de", "de"),
        ("data.source=2", 2),
        ("data.train=[2026-01-02, 12:30]", ["2026-01-02", "12:30"]),
        ("model.position=rope", POSITION.check(Choice("rope", theta=1e4))),
        ("model.position.name=rope", POSITION.check(Choice("rope", theta=1e4))),
        ("model.position={name: rope, theta: 5e5}", POSITION.check(Choice("rope", theta=5e5))),
        ("train.schedule.warmup=10", Choice("inverse_sqrt", warmup=10, cooldown=0.0)),
        ("generation.cache=static", CACHE.check(Choice("static"))),
        ("out=runs/other", Path("runs/other")),
    ],
)
def test_override_has_the_type_of_its_key(recipe_file, override, value):
    actual = load_recipe(recipe_file, ["train.epochs=1", override])
    for key in override.partition("=")[0].split(".")[:2]:
        actual = getattr(actual, key)
    assert actual == value and type(actual) is type(value)


def test_components_options_and_later_overrides_win(recipe_file, tmp_path):
    rope, theta = "model.position=rope", "model.position.theta=5e5"
    for overrides in ([rope, theta], [theta, rope], [theta, "model.position.name=rope"]):
        position = load_recipe(recipe_file, overrides).model.position
        assert position == POSITION.check(Choice("rope", theta=5e5))
    path = write(tmp_path / "r.yaml", TEXT + "model:\n  position: {name: rope, theta: 5e5}\n")
    assert load_recipe(path, ["model.position.name=learned"]).model.position == Choice("learned", offset=0)
    position = load_recipe(path, ["model.position.theta=7"]).model.position
    assert position == POSITION.check(Choice("rope", theta=7.0))
    assert load_recipe(path, ["train.lr=0.5", "train.lr=0.25"]).train.lr == 0.25


def test_each_mistake_and_missing_key_is_named(recipe_file, tmp_path):
    assert error_of(recipe_file, "model.d_modle=3", "train.lr=fast").splitlines() == [
        "model.d_modle: unknown key; did you mean 'd_model'?",
        "train.lr: 'fast' is not a number",
    ]
    path = write(tmp_path / "r.yaml", "model: {d_model: 64}\ntrain: {steps: 1}\n")
    assert error_of(path) == "data: missing; this key has no default"
    write(path, "data: {train: a.tsv}\ntrain: {steps: 1}\n")
    assert error_of(path).startswith("data.valid is missing: set it to validation files, or set data.valid_f")
    missing = f"{tmp_path}/smal.yaml"
    assert error_of(Path(missing)) == f"{missing}: no such file; did you mean '{recipe_file}'?"
    assert error_of(tmp_path / "no/r.yaml") == f"{tmp_path}/no/r.yaml: no such file"
    path = write(tmp_path / "recipe.yaml", TEXT)
    assert error_of(tmp_path) == f"{tmp_path}: a directory, not a recipe; did you mean '{path}'?"


@pytest.mark.parametrize(("task", "smoothing"), [("translation", 0.1), ("language-model", 0.0)])
def test_section_may_be_an_object_or_a_mapping(task, smoothing, tmp_path):
    data = {"train": ["a", "b"], "valid": ["c", "d"]}
    recipe = Recipe(task=task, data=data, train=TrainConfig(steps=1))
    assert recipe.train.label_smoothing == smoothing
    assert recipe == Recipe(task=task, data=data, train={"steps": 1})
    assert load_recipe(write(tmp_path / "recipe.yaml", recipe.dump_yaml())).train == recipe.train
    other = Recipe(task=task, data=data, train=TrainConfig(steps=1, label_smoothing=0.3))
    assert other.train.label_smoothing == 0.3


@pytest.mark.parametrize("task", ["embedding", "kto", "question-answering", "regression"])
def test_label_smoothing_without_effect_is_refused(task, recipe_file):
    with pytest.raises(UserError, match=f"^train.label_smoothing has no effect on task '{task}': remove it"):
        load_recipe(recipe_file, [f"task={task}", "train.label_smoothing=0.1"])


EMBEDDING = "embeddings and classification; valid settings: embed_max_len, "


@pytest.mark.parametrize(
    ("task", "key", "message"),
    [
        ("denoising", "max_new_tokens=9", "translations; valid settings: bad_words, batch_tokens,"),
        ("language-model", "max_length_ratio=1.5", "output of language models; valid settings: "),
        ("chat", "bad_words=[a]", "output of language models; valid settings: batch_tokens, cache, chat, "),
        ("classification", "cache=static", EMBEDDING),
    ],
)
def test_generation_setting_of_another_task_is_refused(task, key, message, recipe_file):
    name, overrides = key.partition("=")[0], [f"task={task}", f"generation.{key}"]
    with pytest.raises(UserError, match=f"^{re.escape(f'generation.{name} has no effect on {message}')}"):
        load_recipe(recipe_file, overrides)
    generation = load_recipe(recipe_file, overrides, from_run=True).generation
    assert generation.model_fields_set == {name}


if __name__ == "__main__" and sys.argv[1:] == ["--update"]:
    update_table()


CONVERTED_REVISION = "refs/convert/parquet"
DATASET = "hf://datasets/owner/small"
INVALID_NAMES = ["hf://datasets/small/a.tsv", "hf://owner/small/a.tsv"]
INVALID_NAMES += [DATASET + path for path in ("/../../../x", "//data/test.tsv", "/data/", "/.")]


def make_data(root, *train):
    return DataConfig(root=root, train=list(train), valid_fraction=0.1)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    import huggingface_hub.constants as constants

    repository = tmp_path / "hub/datasets--owner--small"
    for revision, digest in (("main", 40 * "a"), (CONVERTED_REVISION, 40 * "b")):
        for name in ("data/train-0.tsv", "data/train-1.tsv", "data/test.tsv", "README.md"):
            path = repository / "snapshots" / digest / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{revision} {name}\n")
        (repository / "refs" / revision).parent.mkdir(parents=True, exist_ok=True)
        (repository / "refs" / revision).write_text(digest)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["b/*.txt"], ["b/1.txt", "b/2.txt"]),
        (["b", "a1.txt"], ["b/1.txt", "b/2.txt", "a1.txt"]),  # of a folder, its text files
        (["**/*.txt"], ["a1.txt", "a[1].txt", "b/1.txt", "b/2.txt", "b/c/3.txt"]),
        (["a[1].txt"], ["a[1].txt"]),  # the name of a file is no pattern
        (["b/2.txt", "b/1.txt"], ["b/2.txt", "b/1.txt"]),
    ],
)
def test_pattern_is_its_sorted_files(names, expected, tmp_path):
    for name in ("b/2.txt", "b/1.txt", "b/c/3.txt", "a[1].txt", "a1.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b/0.txt").mkdir()
    paths = make_data(tmp_path, *names).split_paths("train")
    assert [str(path.relative_to(tmp_path)) for path in paths] == expected
    for missing, hint in (
        ("b/1.tx", "did you mean 'b/1.txt'?"),
        ("3.txt", "set its directory"),
        ("2.txt", "did you mean 'b/2.txt'?"),
    ):
        with pytest.raises(UserError, match=rf"^data\.train: no file '{missing}' in .*; {re.escape(hint)}"):
            make_data(tmp_path, missing).split_paths("train")
    root = tmp_path / "a[b]*"  # a root is no pattern
    root.mkdir()
    (root / "1.txt").touch()
    assert make_data(root, "*.txt").split_paths("train") == [root / "1.txt"]


ALL = ["main data/test.tsv", "main data/train-0.tsv", "main data/train-1.tsv"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/data/train-*.tsv", ALL[1:]),
        ("/data/test.tsv", ALL[:1]),
        ("/**/*.tsv", ALL),
        ("/data/**.tsv", ALL),
        ("/data/**", ALL),
        ("/**/*t*.tsv", ALL),
        (f"@{CONVERTED_REVISION}/data/test.tsv", [f"{CONVERTED_REVISION} data/test.tsv"]),
        (f"@{40 * 'b'}/data/test.tsv", [f"{CONVERTED_REVISION} data/test.tsv"]),
    ],
)
def test_dataset_files_are_of_their_revision(name, expected, cache):
    paths = make_data(cache, DATASET + name).split_paths("train")
    assert [path.read_text().strip() for path in paths] == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{DATASET}/data/trian-0.tsv", "dataset 'owner/small' has no file 'data/trian-0.tsv'; did you"),
        ("hf://datasets/owner/large/a.tsv", "dataset 'owner/large' cannot be downloaded from the hub:"),
        *((name, "expected hf://datasets/OWNER/NAME/PATH") for name in INVALID_NAMES),
    ],
)
def test_missing_or_invalid_dataset_file_is_refused(name, message, cache):
    with pytest.raises(UserError, match=f"^data\\.train: .*{re.escape(message)}"):
        make_data(cache, name).split_paths("train")


def test_only_local_files_are_missing_for_an_estimate(cache):
    names = ["hf://datasets/owner/large/a.txt", "here-*.txt", "gone-*.txt"]
    (cache / "here-1.txt").touch()
    data = make_data(cache, *names).model_dump()
    recipe = Recipe.model_validate({"task": "language-model", "data": data, "train": {"steps": 1}})
    assert find_missing_files(recipe) == [str(cache / "gone-*.txt")]
