"""Beginning with trained weights: what is taken, what is new, what stays, and that a run of it goes on bit
for bit.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.conftest import Notes, Toy, equal, small_recipe, toy_model, write_corpus

import polyhead as ph
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.errors import UserError
from polyhead.models import build
from polyhead.nn.state import named_state
from polyhead.run.recipe import load_recipe
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.init_from import inherit_settings, load_init_weights
from polyhead.train.loop import train_step
from polyhead.train.run_training import run_training
from polyhead.train.train_state import TrainState

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture(scope="module")
def first(unsynced: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four layers a side."""
    place = tmp_path_factory.mktemp("start")
    write_corpus(place)
    run_training(small_recipe(place, "first", steps=7, model={"n_layers": 4}), report=Notes())
    return place


def tuned(place: Path, out: str, start: Any = None, **changes: Any) -> Recipe:
    """A recipe that says of its model what is given and nothing else."""
    whole = small_recipe(place, out).model_dump(mode="json")
    del whole["tokenizer"]
    model, train_keys = changes.pop("model", {}), changes
    return Recipe.model_validate(
        {
            **whole,
            "init_from": start or str(place / "first"),
            "model": model,
            "train": whole["train"] | {"steps": 7, **train_keys},
        }
    )


def test_a_run_begins_with_the_weights_tokenizer_and_model_of_another(first: Path) -> None:
    origin, notes = ph.load(first / "first"), Notes()
    run, _ = run_training(tuned(first, "second", lr=1e-12, model={"dropout": 0.0}, ema=None), report=notes)
    assert run.config == origin.config.model_copy(update={"dropout": 0.0})
    assert run.tokenizer.sha256 == origin.tokenizer.sha256
    for name, tensor in named_state(origin.model).items():
        torch.testing.assert_close(named_state(run.model)[name], tensor, rtol=0, atol=1e-9)
    total = len(named_state(origin.model))
    assert f"initialized {total} of {total} weights" in notes.said
    assert load_recipe(first / "second/recipe.yaml").model.n_layers == 4


def test_what_does_not_converse_takes_no_chat_of_its_start(first: Path) -> None:
    origin = ph.load(first / "first")
    origin.generation = GenerationConfig(chat="chatml")
    recipe = inherit_settings(tuned(first, "quiet"), origin)
    assert recipe.generation.chat is None
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


@pytest.mark.parametrize("task", ["language-model", "chat"])
def test_a_recipe_that_is_written_out_converses_too(task: str) -> None:
    """With its null for the format, as compare gives its designs to their trainings."""
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "vocab_size": 9}
    model = build(ph.ModelConfig(kind="decoder", **sizes), seed=1)
    there = Run(model, train_tokenizer(["abcd"], ph.Choice("char"), 9), GenerationConfig(chat="zephyr"))
    given = {
        "data": {"train": "a", "valid": "b"},
        "train": {"steps": 1},
        "task": task,
        "generation": {"chat": None},
    }
    begun = inherit_settings(Recipe.model_validate(given | {"init_from": "x"}), there)
    assert begun.generation.chat == ph.Choice("zephyr")
    anew = inherit_settings(Recipe.model_validate(given), None)
    assert (anew.generation.chat is None) == (task == "language-model")


def test_how_outputs_are_made_comes_with_the_start(first: Path) -> None:
    """Where the recipe says nothing else; what has classes reads as much of a text as it learns from."""
    origin = ph.load(first / "first")
    origin.generation = GenerationConfig(
        beam_size=3, length_penalty=2.0, bad_words=["<pad>"], stop_tokens=["<unk>"]
    )
    bare = tuned(first, "bare")
    said = bare.model_copy(update={"generation": GenerationConfig(length_penalty=0.5)})
    wanted = GenerationConfig(beam_size=3, length_penalty=0.5, bad_words=["<pad>"], stop_tokens=["<unk>"])
    assert inherit_settings(said, origin).generation == wanted
    assert inherit_settings(bare, origin).generation == bare.generation  # which says all of it
    clash = bare.model_copy(update={"generation": GenerationConfig(beam_size=1)})
    origin.generation = GenerationConfig(n_best=3)
    with pytest.raises(
        UserError, match=r"generation, with that of init_from\.run: n_best \(3\) is more than beam_size"
    ):
        inherit_settings(clash, origin)

    vectors = {
        "pooling": "first",
        "normalize": True,
        "embed_prompts": {"query": "q: "},
        "embed_prompt": "query",
    }
    config = ph.ModelConfig(kind="encoder", vocab_size=9, d_model=16, n_heads=2, n_layers=1)
    there = GenerationConfig(**vectors, embed_max_len=7)
    encoder = Run(build(config, seed=1), train_tokenizer(["abcd"], ph.Choice("char"), 9), there)
    for task, most in (("masked-lm", 7), ("classification", 40)):
        given = {
            "data": {"train": "a", "valid": "b", "max_len": 40},
            "train": {"steps": 1},
            "init_from": "x",
            "task": task,
        }
        found = inherit_settings(Recipe.model_validate(given), encoder).generation
        assert found == GenerationConfig(**vectors, embed_max_len=most)


def test_classes_in_another_order_keep_what_tells_them() -> None:
    def classifier(labels: tuple[str, ...], seed: int) -> Run:
        sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "vocab_size": 9, "lm_head": False}
        config = ph.ModelConfig(kind="encoder", labels=labels, **sizes)
        return Run(
            build(config, seed=seed), train_tokenizer(["abcd"], ph.Choice("char"), 9), GenerationConfig()
        )

    there, here = classifier(("b", "c", "a"), 1), classifier(("a", "b", "c"), 2)
    said = load_init_weights(here.model, there)
    assert "new" not in said and "unused" not in said
    for text in ("abca", "dd"):
        [before], [after] = there.classify([text]), here.classify([text])
        assert after.probabilities == pytest.approx(before.probabilities)
        assert after.label == before.label
    other = classifier(("a", "b", "d"), 3)
    assert "new: classifier" in load_init_weights(other.model, there)


def test_every_second_layer_makes_a_student(first: Path) -> None:
    origin = ph.load(first / "first")
    recipe = tuned(first, "half", {"run": str(first / "first"), "layer_stride": 2}, lr=1e-12, ema=None)
    run, _ = run_training(recipe, report=Notes())
    assert (run.config.n_layers, run.config.decoder_layers) == (2, 2)
    for mine, theirs in ((0, 0), (1, 2)):
        for side in ("encoder", "decoder"):
            a, b = (
                dict(m.get_submodule(f"{side}.layers.{n}").named_parameters())
                for m, n in ((run.model, mine), (origin.model, theirs))
            )
            assert a.keys() == b.keys()
            for name, tensor in a.items():
                torch.testing.assert_close(tensor, b[name], rtol=0, atol=1e-9)


def test_a_student_that_names_its_teachers_layers_is_told_how_many_are_taken(first: Path) -> None:
    recipe = tuned(first, "never", {"run": str(first / "first"), "layer_stride": 2}, model={"n_layers": 4})
    with pytest.raises(
        UserError,
        match=r"which has model.n_layers=4 \(the run has 4, of which init_from.layer_stride=2 uses 2\): ",
    ):
        run_training(recipe, report=Notes())


def kinds(*windows: int | None) -> list[dict[str, Any]]:
    """Attention of these widths, each with angles of its own."""
    return [
        {"attention": {"name": "softmax", "window": window}, "position": {"name": "rope", "theta": 10.0 + i}}
        for i, window in enumerate(windows)
    ]


def turned(*windows: int | None, n_layers: int) -> Run:
    """A language model whose layers are of these kinds in turn."""
    sizes: dict[str, Any] = {"d_model": 16, "n_heads": 2, "n_layers": n_layers, "position": "rope"}
    config = ph.ModelConfig(kind="decoder", vocab_size=9, layer_pattern=kinds(*windows), **sizes)
    tokenizer = train_tokenizer(["abcd"], ph.Choice("char"), 9)
    return Run(build(config, seed=1).eval(), tokenizer, GenerationConfig())


def begun(every: int, **model: Any) -> Recipe:
    """A recipe for a student of such a model."""
    return Recipe.model_validate(
        {
            "task": "language-model",
            "data": {"train": "t.txt", "valid": "v.txt"},
            "init_from": {"run": "teacher", "layer_stride": every},
            "model": model,
            "train": {"steps": 1},
        }
    )


@pytest.mark.parametrize(
    ("windows", "every", "wanted"),
    [
        ((2, None), 2, [2]),
        ((2, None), 3, [2, None]),
        ((2, 3, None), 2, [2, None, 3]),
        ((2, 3, 4, None), 2, [2, 4]),
        ((2, None), 1, [2, None]),
        ((), 2, []),
    ],
)
def test_a_layer_of_a_student_is_of_the_kind_it_was(
    windows: tuple[int | None, ...], every: int, wanted: list[int | None]
) -> None:
    """Where layers are of several kinds in turn, each says what the layer says that it was made of."""
    origin = turned(*windows, n_layers=6)
    model = inherit_settings(begun(every), origin).model
    assert [part.attention.options["window"] for part in model.layer_pattern if part.attention] == wanted
    wider = build(model.with_vocabulary(9).model_copy(update={"d_model": 32}), seed=2)
    with pytest.raises(UserError, match=r"model, which has model.d_model=32 \(the run has 16\): "):
        load_init_weights(wider, origin, every)
    student = build(model.with_vocabulary(9), seed=2).eval()
    load_init_weights(student, origin, every)
    x = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        for i, layer in enumerate(student.stack.layers):
            torch.testing.assert_close(layer(x), origin.model.stack.layers[i * every](x))


def test_a_pattern_of_its_own_is_left_to_a_student() -> None:
    origin = turned(2, None, n_layers=4)
    (only,) = inherit_settings(begun(2, layer_pattern=kinds(3)), origin).model.layer_pattern
    assert only.attention is not None
    assert only.attention.options["window"] == 3


def test_frozen_parts_keep_their_bits_and_the_rest_learns(first: Path) -> None:
    origin = ph.load(first / "first")
    frozen = ["encoder_embedding", "encoder.layers.0"]
    run, _ = run_training(tuned(first, "frozen", freeze=frozen, ema=None), report=Notes())
    before, after = named_state(origin.model), named_state(run.model)
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {name for name in before if name.startswith(("encoder_embedding.", "encoder.layers.0."))}


def test_a_run_that_began_so_goes_on_bit_for_bit_even_without_its_start(first: Path, tmp_path: Path) -> None:
    parts: dict[str, Any] = {"freeze": ["encoder.layers.1"], "lr_factors": {"decoder.layers": 0.3}}
    shutil.copytree(first, tmp_path / "it")
    place = tmp_path / "it"
    run_training(tuned(place, "cut", steps=7, schedule={"name": "constant"}, **parts), report=Notes())
    run_training(tuned(place, "all", steps=14, schedule={"name": "constant"}, **parts), report=Notes())
    shutil.rmtree(place / "first")
    on, _ = run_training(
        load_recipe(place / "cut/recipe.yaml", ["train.steps=14"]), resume=True, report=Notes()
    )
    straight = ph.load(place / "all")
    for name, tensor in named_state(straight.model).items():
        assert torch.equal(named_state(on.model)[name], tensor), name


def test_a_start_that_is_gone_is_missed_until_there_is_something_of_the_run_itself(
    first: Path, tmp_path: Path
) -> None:
    """The recipe that a run has written says all of the model, so it could be trained from drawn weights
    unnoticed.
    """
    place = tmp_path / "it"
    shutil.copytree(first, place)
    run_training(tuned(place, "later"), report=Notes())
    shutil.rmtree(place / "first")
    written = str(place / "later/recipe.yaml")
    with pytest.raises(UserError, match=r"^init_from\.run: .*first"):
        run_training(load_recipe(written, [f"out={place / 'again'}"]), report=Notes())
    assert not (place / "again").exists()
    for damaged in (True, False):
        for path in (place / "later/checkpoints").glob("step-*"):
            (path / "manifest.json").unlink() if damaged else shutil.rmtree(path)
        (place / "later/model.safetensors").unlink(missing_ok=True)
        with pytest.raises(UserError, match=r"^init_from\.run: .*first"):
            run_training(load_recipe(written), resume=True, report=Notes())


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_a_factor_is_another_rate_and_nothing_else(optimizer: str) -> None:
    """Factor 0.5 on everything at twice the rate changes nothing; of two that overlap, the longer name
    counts.
    """

    def trained(lr: float, factors: dict[str, float], steps: int) -> TrainState:
        config = TrainConfig(
            steps=10, lr=lr, lr_factors=factors, optimizer=optimizer, schedule={"name": "constant"}
        )
        training, task = TrainState(toy_model(), config, 8, 10), Toy()
        for step in range(1, steps + 1):
            training.progress.step = step
            torch.manual_seed(step)
            train_step(training, task, [task.collate(rows) for rows in task.epoch_batches(step)[:2]], config)
        return training

    assert equal(trained(1e-3, {}, 10), trained(2e-3, {"0": 0.5, "3": 0.5}, 10))
    plain, mixed = trained(1e-3, {}, 1).model, trained(4e-3, {"0": 0.25, "0.bias": 0.5, "3": 0.25}, 1).model
    for name, tensor in mixed.named_parameters():
        same = torch.equal(tensor, plain.get_parameter(name))
        assert same == (name != "0.bias")


def test_a_map_of_the_embeddings_is_not_drawn_anew() -> None:
    """Layers would read what no layer has learned to read."""
    sizes: dict[str, Any] = {"kind": "encoder", "d_model": 8, "n_heads": 2, "n_layers": 2, "vocab_size": 9}
    plain, mapped, narrow = (
        build(ph.ModelConfig(**sizes, d_embedding=width), seed=1) for width in (None, 8, 6)
    )

    class Origin:
        model, config = plain, plain.config

    said = r"model.d_embedding=8 \(the run has None\): encoder.embedding.proj.weight is missing"
    with pytest.raises(UserError, match=said):
        load_init_weights(mapped, Origin())  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"=6 .*encoder.embedding.token.weight \[9, 8\], expected \[9, 6\]"):
        load_init_weights(narrow, Origin())  # type: ignore[arg-type]

    decoders = [
        build(ph.ModelConfig(**sizes | {"kind": "decoder"}, d_embedding=width), seed=1) for width in (None, 8)
    ]

    class Decoder:
        model, config = decoders[0], decoders[0].config

    said = r"model.d_embedding=8 \(the run has None\): embedding.token_proj.weight is missing"
    with pytest.raises(UserError, match=said):
        load_init_weights(decoders[1], Decoder())  # type: ignore[arg-type]

    class Narrow:
        model, config = narrow, narrow.config

    student = build(ph.ModelConfig(**sizes, d_embedding=6, labels=["a", "b"]), seed=2)
    load_init_weights(student, Narrow())  # type: ignore[arg-type]
    for name, tensor in named_state(student.encoder).items():
        assert torch.equal(tensor, named_state(narrow.encoder)[name])


def test_a_classifier_begins_with_a_masked_model_and_has_a_new_head() -> None:
    sizes: dict[str, Any] = {"kind": "encoder", "d_model": 8, "n_heads": 2, "n_layers": 2, "vocab_size": 9}
    teacher = build(ph.ModelConfig(**sizes), seed=1)
    student = build(ph.ModelConfig(**sizes, labels=["a", "b"]), seed=2)

    class Origin:
        model, config = teacher, teacher.config

    said = load_init_weights(student, Origin())  # type: ignore[arg-type]
    for name, tensor in named_state(student.encoder).items():
        assert torch.equal(tensor, named_state(teacher.encoder)[name])
    assert "; new: classifier, pooler;" in said
    assert said.endswith("; unused: transform, transform_norm")
    other = build(ph.ModelConfig(**sizes, labels=["b", "a"]), seed=3)

    class Labelled:
        model, config = student, student.config

    load_init_weights(other, Labelled())  # type: ignore[arg-type]
    assert not torch.equal(other.classifier.weight, student.classifier.weight)  # they stand for other classes
    assert torch.equal(other.pooler.proj.weight, student.pooler.proj.weight)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model": {"d_model": 32, "dropout": 0.3}},
            r"do not match the model, which has model.d_model=32 \(the run has \d+\): [^;]*, expected "
            r"[^;]*;[^;]*;[^;]*; and \d+ more$",
        ),
        (
            {"model": {"feed_forward": "swiglu"}},
            r"the model, which has model.feed_forward=swiglu \(the run has relu\): .*gate_proj.weight is "
            r"missing",
        ),
        ({"start": "nowhere"}, "no run directory 'nowhere'"),
        ({"freeze": ["encodr"]}, "train.freeze: no part of the model is named 'encodr'.*encoder"),
        ({"freeze": ["encoder", "decoder", "encoder_embedding"]}, "no trainable parameters are left"),
        (
            {"lr_factors": {"decodr": 2.0}},
            "train.lr_factors: no part of the model is named 'decodr'.*decoder",
        ),
        ({"lr_factors": {"decoder": 0.0}}, "train.lr_factors: decoder is 0.0, expected above 0"),
        (
            {"freeze": ["encoder"], "lr_factors": {"encoder.layers.1": 2.0}},
            r"train.lr_factors: encoder.layers.1 has no trainable parameters, because of train.freeze or "
            r"train.lora",
        ),
        (
            {"lora": {"target_modules": ["q_prj"]}},
            r"train.lora.target_modules: no linear layer .* 'q_prj'; did you mean 'q_proj'",
        ),
        (
            {"lora": {"modules_to_save": ["hed"]}},
            r"train.lora.modules_to_save: no part of the model is named 'hed'",
        ),
        (
            {"lora": {}, "lr_factors": {"encoder_embedding": 2.0}},
            "encoder_embedding has no trainable parameters",
        ),
    ],
)
def test_what_cannot_be_begun_with_is_said_before_any_text_is_read(
    first: Path, changes: dict[str, Any], said: str
) -> None:
    notes = Notes()
    with pytest.raises(UserError, match=said):
        run_training(tuned(first, "never", **changes), report=notes)
    assert not notes.said
    assert not (first / "never").exists()


@pytest.mark.parametrize("changes", [{"freeze": ["encodr"]}, {"lr_factors": {"decodr": 2.0}}])
def test_a_misspelt_part_of_a_new_model_leaves_nothing_behind(corpus: Path, changes: dict[str, Any]) -> None:
    before, notes = sorted(corpus.rglob("*")), Notes()
    with pytest.raises(UserError, match=r"no part of the model is named '(en|de)codr'; did you mean"):
        run_training(small_recipe(corpus, **changes), report=notes)
    assert (sorted(corpus.rglob("*")), notes.said) == (before, [])


def test_a_tokenizer_beside_a_start_is_refused(first: Path) -> None:
    recipe = tuned(first, "never")
    with pytest.raises(UserError, match=r"tokenizer: init_from\.run sets it"):
        run_training(
            Recipe.model_validate(recipe.model_dump(exclude_unset=True) | {"tokenizer": {"kind": "char"}}),
            report=Notes(),
        )


def test_what_came_from_a_published_family_stays_one_of_it(first: Path) -> None:
    """Trained on, stopped and gone on with without what it began with."""
    origin = ph.load(first / "first")
    origin.family = "m2m_100"
    origin.save(first / "published")
    run_training(tuned(first, "on", str(first / "published")), report=Notes())
    assert ph.load(first / "on").family == "m2m_100"
    shutil.rmtree(first / "published")
    run_training(load_recipe(first / "on/recipe.yaml", ["train.steps=14"]), resume=True, report=Notes())
    assert ph.load(first / "on").family == "m2m_100"
    assert ph.load(first / "first").family is None
