"""Tests of run/run_directory.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors import safe_open
from tests.run.run_helpers import copy as copy
from tests.run.run_helpers import edited, run, tokenizer
from tests.run.run_helpers import saved as saved
from tests.train.task_runs import TASKS, task_recipe

import polyhead as ph
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.run.run import Run

GENERATION = GenerationConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=3)


def test_equal_runs_are_equal_files(saved: Path, tmp_path: Path) -> None:
    for i in range(4):
        run().save(tmp_path / str(i), "# facts\n")
        for path in saved.iterdir():
            assert (tmp_path / str(i) / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.acceptance("A15")
@pytest.mark.parametrize(("tying", "matrices"), [("all", 1), ("target", 2), ("none", 3)])
def test_tied_weights_are_on_disk_once_and_tied_when_read(tying: str, matrices: int, tmp_path: Path) -> None:
    ours = run(tie_embeddings=tying)
    ours.save(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
        assert file.metadata()["format"] == "pt"
    assert shapes.count([ours.config.vocab_size, 16]) == matrices
    model = ph.load(tmp_path).model
    places = {
        p.data_ptr()
        for p in (
            model.encoder_embedding.token.weight,
            model.decoder_embedding.token.weight,
            model.head.weight,
        )
    }
    assert len(places) == matrices


def test_wrong_shapes_are_named(copy: Path) -> None:
    edited("config.json", d_ff=64)(copy)
    with pytest.raises(
        UserError, match=r"down_proj.weight' is torch.float32 \[16, 32\], expected torch.float32 \[16, 64\]; "
    ):
        ph.load(copy)


def test_what_hugging_face_adds_is_passed_over(copy: Path) -> None:
    edited("config.json", transformers_version="5.0", torch_dtype="float32")(copy)
    edited("generation_config.json", transformers_version="5.0")(copy)
    (copy / "README.md").unlink()
    assert ph.load(copy).generation == GENERATION
    (copy / "generation_config.json").unlink()
    assert ph.load(copy).generation == GenerationConfig()


def save_untrained(place: Path, task: str, **data: str) -> Path:
    """A run of a task, as training writes it, with random weights."""
    recipe = task_recipe(place, task, place / "run")
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update=data)})
    tokens = tokenizer()
    labels = ("cold", "warm") if task == "classification" else ()
    model = ph.build(recipe.model.with_vocabulary(tokens.vocab_size, labels), seed=1)
    Run(model, tokens, recipe.generation, recipe).save(recipe.out)
    return recipe.out


@pytest.mark.parametrize("task", TASKS)
def test_a_lost_recipe_changes_nothing(task: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a verb reads of the recipe, it finds in its copy."""
    out = save_untrained(tmp_path, task)
    before = ph.load(out)
    assert caplog.messages == []
    (out / "recipe.yaml").unlink()
    after = ph.load(out)
    assert after.recipe == before.recipe is not None
    assert after.saved_prompt_template == before.saved_prompt_template
    assert caplog.messages == [f"{out} differs from what training wrote: missing: recipe.yaml"]


@pytest.mark.parametrize("separator", ["line", "file"])
def test_config_tokenizer_and_weights_are_enough_to_continue_a_text(separator: str, tmp_path: Path) -> None:
    out = save_untrained(tmp_path, "language-model", document_separator=separator)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        (tmp_path / "bare").mkdir(exist_ok=True)
        shutil.copy(out / name, tmp_path / "bare")
    complete, bare = ph.load(out), ph.load(tmp_path / "bare")
    (newline,) = complete.tokenizer.encode(["\n"])
    end = [complete.tokenizer.eos_id]
    frame = {"prefix_ids": end, "suffix_ids": end, "always_add_prefix": True}
    if separator == "file":
        frame = {"prefix_ids": newline, "suffix_ids": [], "always_add_prefix": False}
    assert json.loads((out / "config.json").read_text())["prompt_template"] == frame
    texts = ["", "ein hund", "zwei"]
    expected = complete.generate(texts, seed=3, max_new_tokens=5)
    assert bare.generate(texts, seed=3, max_new_tokens=5) == expected
    assert bare.score(texts[1:]) == complete.score(texts[1:])
    # an older run has the frame in its recipe alone
    fields = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({k: v for k, v in fields.items() if k != "prompt_template"}))
    assert ph.load(out).generate(texts, seed=3, max_new_tokens=5) == expected


@pytest.mark.parametrize(
    "frame",
    [[], {}, {"prefix_ids": [1], "suffix_ids": [], "always_add_prefix": 1},
     {"prefix_ids": [10**6], "suffix_ids": [], "always_add_prefix": True},
     {"prefix_ids": [True], "suffix_ids": [], "always_add_prefix": True}],
    ids=str,
)  # fmt: skip
def test_an_invalid_prompt_template_is_named(frame: object, copy: Path) -> None:
    edited("config.json", prompt_template=frame)(copy)
    with pytest.raises(UserError, match=r"config\.json: prompt_template must have prefix_ids and suffix_ids"):
        ph.load(copy)


def test_an_invalid_copy_of_the_recipe_is_named(copy: Path) -> None:
    edited("config.json", recipe=[])(copy)
    with pytest.raises(UserError, match=r"config\.json: recipe must be an object"):
        ph.load(copy)
    edited("config.json", recipe={"task": "translatoin"})(copy)
    with pytest.raises(UserError, match=r"config\.json: recipe: .*translatoin"):
        ph.load(copy)
