import shutil
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from tests.train.conftest import (
    Notes,
    Toy,
    equal_states,
    equal_tensors,
    small_recipe,
    toy_model,
    user_error,
    write_corpus,
)

import polyhead as ph
from polyhead import build
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.nn.state import named_state
from polyhead.run.recipe import load_recipe
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.init_from import inherit_settings, load_init_weights
from polyhead.train.loop import train_step
from polyhead.train.run_training import run_training
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.train_state import TrainState

pytestmark = pytest.mark.usefixtures("no_report")
SIZES = {"d_model": 16, "n_heads": 2, "vocab_size": 9}
STEPS = 4


@pytest.fixture(scope="module")
def workdir(no_report, tmp_path_factory):
    directory = tmp_path_factory.mktemp("init")
    write_corpus(directory)
    run_training(small_recipe(directory, "first", steps=STEPS, model={"n_layers": 4}), report=Notes())
    return directory


def tuning_recipe(directory, out, init_from=None, **changes) -> Recipe:
    recipe = small_recipe(directory, out).model_dump(mode="json")
    del recipe["tokenizer"]
    model = changes.pop("model", {})
    init_from = init_from or str(directory / "first")
    train = recipe["train"] | {"steps": STEPS, **changes}
    return Recipe.model_validate(recipe | {"init_from": init_from, "model": model, "train": train})


def tune(*args, **options) -> tuple[Run, list[str]]:
    notes = Notes()
    return run_training(tuning_recipe(*args, **options), report=notes)[0], notes.lines


def text_recipe(task="language-model", **sections) -> Recipe:
    data = {"train": "a", "valid": "b"} | sections.pop("data", {})
    return Recipe.model_validate({"task": task, "data": data, "train": {"steps": 1}, **sections})


def make_run(model, generation=None) -> Run:
    return Run(model, train_tokenizer(["abcd"], ph.Choice("char"), 9), generation or GenerationConfig())


def as_origin(model):
    return SimpleNamespace(model=model, config=model.config)


def test_weights_tokenizer_and_model_come_from_the_run(workdir):
    origin = ph.load(workdir / "first")
    run, lines = tune(workdir, "second", lr=1e-12, model={"dropout": 0.0}, ema=None)
    assert run.config == origin.config.model_copy(update={"dropout": 0.0})
    assert run.tokenizer.sha256 == origin.tokenizer.sha256
    weights = named_state(origin.model)
    for name, tensor in weights.items():
        torch.testing.assert_close(named_state(run.model)[name], tensor, rtol=0, atol=1e-9)
    assert f"initialized {len(weights)} of {len(weights)} weights" in lines
    assert load_recipe(workdir / "second/recipe.yaml").model.n_layers == 4


@pytest.mark.parametrize("task", ["language-model", "chat"])
def test_chat_format_null_is_inherited(task):
    """A recipe that is written out has null for the format, as compare passes it to its trainings."""
    model = build(ph.ModelConfig(kind="decoder", n_layers=1, **SIZES), seed=1)
    origin = make_run(model, GenerationConfig(chat="zephyr"))
    sections = {"generation": {"chat": None}}
    recipe = inherit_settings(text_recipe(task, init_from="x", **sections), origin)
    assert recipe.generation.chat == ph.Choice("zephyr")
    fresh = inherit_settings(text_recipe(task, **sections), None)
    assert (fresh.generation.chat is None) == (task == "language-model")


def test_generation_settings_are_inherited_unless_set(workdir):
    origin = ph.load(workdir / "first")
    tokens = {"bad_words": ["<pad>"], "stop_tokens": ["<unk>"]}
    origin.generation = GenerationConfig(beam_size=3, length_penalty=2.0, **tokens)
    recipe = tuning_recipe(workdir, "bare")
    changed_names = recipe.model_copy(update={"generation": GenerationConfig(length_penalty=0.5)})
    expected = GenerationConfig(beam_size=3, length_penalty=0.5, **tokens)
    assert inherit_settings(changed_names, origin).generation == expected
    assert inherit_settings(recipe, origin).generation == recipe.generation  # which sets all of it
    origin.generation = GenerationConfig(chat="chatml")  # not a setting of translation
    without_chat = inherit_settings(recipe, origin)
    assert without_chat.generation.chat is None
    assert Recipe.model_validate(without_chat.model_dump(mode="json")) == without_chat
    conflict = recipe.model_copy(update={"generation": GenerationConfig(beam_size=1)})
    origin.generation = GenerationConfig(n_best=3)
    with user_error(r"generation, with that of init_from\.run: n_best \(3\) is more than beam_size"):
        inherit_settings(conflict, origin)


@pytest.mark.parametrize(("task", "embed_max_len"), [("masked-lm", 7), ("classification", 40)])
def test_embedding_settings_are_inherited(task, embed_max_len):
    """A classifier reads as much of a text as it is trained on."""
    prompts = {"embed_prompts": {"query": "q: "}, "embed_prompt": "query"}
    settings = {"pooling": "first", "normalize": True} | prompts
    model = build(ph.ModelConfig(kind="encoder", n_layers=1, **SIZES), seed=1)
    origin = make_run(model, GenerationConfig(**settings, embed_max_len=7))
    recipe = inherit_settings(text_recipe(task, data={"max_len": 40}, init_from="x"), origin)
    assert recipe.generation == GenerationConfig(**settings, embed_max_len=embed_max_len)


def test_classes_in_another_order_keep_their_weights():
    def make_classifier(labels, seed):
        config = ph.ModelConfig(kind="encoder", n_layers=1, labels=labels, lm_head=False, **SIZES)
        return make_run(build(config, seed=seed))

    origin, run = make_classifier(("b", "c", "a"), 1), make_classifier(("a", "b", "c"), 2)
    summary = load_init_weights(run.model, origin)
    assert "new" not in summary and "unused" not in summary
    for text in ("abca", "dd"):
        [expected], [actual] = origin.classify([text]), run.classify([text])
        assert actual.probabilities == pytest.approx(expected.probabilities)
        assert actual.label == expected.label
    other = make_classifier(("a", "b", "d"), 3)
    assert "new: classifier" in load_init_weights(other.model, origin)


def test_layer_stride_takes_every_second_layer(workdir):
    origin = ph.load(workdir / "first")
    init_from = {"run": str(workdir / "first"), "layer_stride": 2}
    run, _ = tune(workdir, "half", init_from, lr=1e-12, ema=None)
    assert (run.config.n_layers, run.config.decoder_layers) == (2, 2)
    for layer, i in product(("encoder.layers", "decoder.layers"), (0, 1)):
        actual = run.model.get_submodule(f"{layer}.{i}").state_dict()
        expected = origin.model.get_submodule(f"{layer}.{2 * i}").state_dict()
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)
    message = r"which has model.n_layers=4 \(the run has 4, of which init_from.layer_stride=2 uses 2\): "
    with user_error(message):
        tune(workdir, "never", init_from, model={"n_layers": 4})


def layer_pattern(*windows):
    return [
        {"attention": {"name": "softmax", "window": window}, "position": {"name": "rope", "theta": 10.0 + i}}
        for i, window in enumerate(windows)
    ]


def make_pattern_run(*windows, n_layers) -> Run:
    pattern = {"position": "rope", "layer_pattern": layer_pattern(*windows)}
    config = ph.ModelConfig(kind="decoder", n_layers=n_layers, **pattern, **SIZES)
    return make_run(build(config, seed=1).eval())


def student_recipe(stride, **model) -> Recipe:
    return text_recipe(init_from={"run": "teacher", "layer_stride": stride}, model=model)


@pytest.mark.parametrize(
    ("windows", "stride", "expected"),
    [
        ((2, None), 2, [2]),
        ((2, None), 3, [2, None]),
        ((2, 3, None), 2, [2, None, 3]),
        ((2, 3, 4, None), 2, [2, 4]),
        ((2, None), 1, [2, None]),
        ((), 2, []),
    ],
)
def test_layer_stride_keeps_the_kind_of_each_layer(windows, stride, expected):
    def inherit(**model):
        model = inherit_settings(student_recipe(stride, **model), origin).model
        return model, [part.attention.options["window"] for part in model.layer_pattern if part.attention]

    origin = make_pattern_run(*windows, n_layers=6)
    model, inherited_windows = inherit()
    assert inherited_windows == expected
    assert inherit(layer_pattern=layer_pattern(3))[1] == [3]  # that of the recipe overrides
    wider = build(model.with_vocabulary(9).model_copy(update={"d_model": 32}), seed=2)
    with user_error(r"model, which has model.d_model=32 \(the run has 16\): "):
        load_init_weights(wider, origin, stride)
    student = build(model.with_vocabulary(9), seed=2).eval()
    load_init_weights(student, origin, stride)
    x = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        for i, layer in enumerate(student.stack.layers):
            torch.testing.assert_close(layer(x), origin.model.stack.layers[i * stride](x))


def test_frozen_run_resumes_without_its_init_run(workdir, tmp_path):
    directory, initial = tmp_path / "copy", named_state(ph.load(workdir / "first").model)
    shutil.copytree(workdir, directory)
    freeze = ["encoder_embedding", "encoder.layers.1"]
    options = {"freeze": freeze, "lr_factors": {"decoder.layers": 0.3}, "ema": None}
    options["schedule"] = {"name": "constant"}
    tune(directory, "cut", **options)
    expected = named_state(tune(directory, "all", steps=2 * STEPS, **options)[0].model)
    unchanged_names = {name for name, w in expected.items() if torch.equal(initial[name], w)}
    assert unchanged_names == {n for n in initial if n.startswith(tuple(f"{part}." for part in freeze))}
    shutil.rmtree(directory / "first")
    recipe = load_recipe(directory / "cut/recipe.yaml", [f"train.steps={2 * STEPS}"])
    resumed_run, _ = run_training(recipe, resume=True, report=Notes())
    assert equal_tensors(named_state(resumed_run.model), expected)


def test_missing_init_run_is_an_error_without_checkpoint(workdir, tmp_path):
    """The recipe that a run has written has all of the model, so random weights could go unnoticed."""
    directory = tmp_path / "copy"
    shutil.copytree(workdir, directory)
    tune(directory, "later")
    shutil.rmtree(directory / "first")
    recipe = str(directory / "later/recipe.yaml")
    with user_error(r"^init_from\.run: .*first"):
        run_training(load_recipe(recipe, [f"out={directory / 'again'}"]), report=Notes())
    assert not (directory / "again").exists()
    for is_damaged in (True, False):
        for path in (directory / "later/checkpoints").glob("step-*"):
            (path / "manifest.json").unlink() if is_damaged else shutil.rmtree(path)
        (directory / "later/model.safetensors").unlink(missing_ok=True)
        with user_error(r"^init_from\.run: .*first"):
            run_training(load_recipe(recipe), resume=True, report=Notes())


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_lr_factor_changes_only_the_rate(optimizer):
    """Factor 0.5 everywhere at twice the rate changes nothing; of two that match, the longer name counts."""

    def train(lr, factors, steps):
        options = {"optimizer": optimizer, "schedule": {"name": "constant"}}
        config = TrainConfig(steps=10, lr=lr, lr_factors=factors, **options)
        training, task = TrainState(toy_model(), config, 8, 10), Toy()
        strategy = parallelize(training, task, config)
        for step in range(1, steps + 1):
            training.progress.step = step
            torch.manual_seed(step)
            train_step(strategy, [task.collate(rows) for rows in task.epoch_batches(step)[:2]])
        return training

    assert equal_states(train(1e-3, {}, 10), train(2e-3, {"0": 0.5, "3": 0.5}, 10))
    plain = train(1e-3, {}, 1).model
    mixed_factors = train(4e-3, {"0": 0.25, "0.bias": 0.5, "3": 0.25}, 1).model
    for name, tensor in mixed_factors.named_parameters():
        assert torch.equal(tensor, plain.get_parameter(name)) == (name != "0.bias")


def make_encoder(seed=1, **options):
    sizes = {"kind": "encoder", "d_model": 8, "n_heads": 2, "n_layers": 2, "vocab_size": 9}
    return build(ph.ModelConfig(**sizes | options), seed=seed)


def test_projection_of_embeddings_is_not_initialized_randomly():
    """Layers would get inputs that no layer was trained on."""
    plain, mapped_model, narrow = (make_encoder(d_embedding=width) for width in (None, 8, 6))
    message = r"model.d_embedding=8 \(the run has None\): encoder.embedding.proj.weight is missing"
    with user_error(message):
        load_init_weights(mapped_model, as_origin(plain))
    with user_error(r"=6 .*encoder.embedding.token.weight \[9, 8\], expected \[9, 6\]"):
        load_init_weights(narrow, as_origin(plain))
    decoder, mapped_model = (make_encoder(kind="decoder", d_embedding=width) for width in (None, 8))
    with user_error(r"model.d_embedding=8 \(the run has None\): embedding.token_proj.weight is missing"):
        load_init_weights(mapped_model, as_origin(decoder))
    student = make_encoder(d_embedding=6, labels=["a", "b"], seed=2)
    load_init_weights(student, as_origin(narrow))
    assert equal_tensors(named_state(student.encoder), named_state(narrow.encoder))


def test_classifier_from_masked_model_has_a_new_head():
    teacher, student = make_encoder(), make_encoder(labels=["a", "b"], seed=2)
    summary = load_init_weights(student, as_origin(teacher))
    assert equal_tensors(named_state(student.encoder), named_state(teacher.encoder))
    assert "; new: classifier, pooler;" in summary
    assert summary.endswith("; unused: transform, transform_norm")
    other = make_encoder(labels=["b", "a"], seed=3)
    load_init_weights(other, as_origin(student))
    assert not torch.equal(other.classifier.weight, student.classifier.weight)  # rows of other classes
    assert torch.equal(other.pooler.proj.weight, student.pooler.proj.weight)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"d_model": 32}}, r"has model.d_model=32 \(the run has \d+\): [^;]*, expected [^;]*;"),
        ({"model": {"feed_forward": "swiglu"}}, r"\(the run has relu\): .*gate_proj.weight is missing"),
        ({"init_from": "nowhere"}, "no run directory 'nowhere'"),
        ({"freeze": ["encodr"]}, "train.freeze: no part of the model is named 'encodr'.*encoder"),
        ({"freeze": ["encoder", "decoder", "encoder_embedding"]}, "no trainable parameters are left"),
        ({"lr_factors": {"decodr": 2.0}}, "train.lr_factors: no part .* is named 'decodr'.*decoder"),
        ({"lr_factors": {"decoder": 0.0}}, "train.lr_factors: decoder is 0.0, expected above 0"),
        (
            {"freeze": ["encoder"], "lr_factors": {"encoder.layers.1": 2.0}},
            "lr_factors: encoder.layers.1 has no trainable parameters, because of train.freeze or train.lora",
        ),
        ({"lora": {"target_modules": ["q_prj"]}}, "no linear layer .* 'q_prj'; did you mean 'q_proj'"),
        ({"lora": {"modules_to_save": ["hed"]}}, "train.lora.modules_to_save: no part .* is named 'hed'"),
        ({"lora": {}, "lr_factors": {"encoder_embedding": 2.0}}, "encoder_embedding has no trainable param"),
    ],
)
def test_unsuitable_changes_are_refused_before_texts_are_read(changes, message, workdir):
    recipes, notes = [tuning_recipe(workdir, "never", **changes)], Notes()
    if changes.keys() <= {"freeze", "lr_factors"} and "no part" in message:  # also of a new model
        recipes.append(small_recipe(workdir, "never", **changes))
    for recipe in recipes:
        with user_error(message):
            run_training(recipe, report=notes)
        assert not notes.lines
        assert not (workdir / "never").exists()


def test_hf_family_survives_training_and_resume(workdir):
    recipe = tuning_recipe(workdir, "never").model_dump(exclude_unset=True)
    with user_error(r"tokenizer: init_from\.run sets it"):
        run_training(Recipe.model_validate(recipe | {"tokenizer": {"kind": "char"}}), report=Notes())
    origin = ph.load(workdir / "first")
    origin.family = "m2m_100"
    origin.save(workdir / "published")
    tune(workdir, "on", str(workdir / "published"))
    assert ph.load(workdir / "on").family == "m2m_100"
    shutil.rmtree(workdir / "published")
    recipe = load_recipe(workdir / "on/recipe.yaml", [f"train.steps={2 * STEPS}"])
    run_training(recipe, resume=True, report=Notes())
    assert ph.load(workdir / "on").family == "m2m_100"
    assert ph.load(workdir / "first").family is None
