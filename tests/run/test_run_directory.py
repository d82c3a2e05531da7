import json
import shutil

import pytest
from safetensors import safe_open
from tests.run.run_helpers import GENERATION, edit, make_run, make_tokenizer
from tests.train.task_runs import TASKS, task_recipe

import polyhead as ph
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.run.run import Run


def test_saved_files_are_deterministic_and_foreign_keys_ignored(run_dir, tmp_path, run_copy):
    for i in range(4):
        make_run().save(tmp_path / str(i), "# facts\n")
        for path in run_dir.iterdir():
            assert (tmp_path / str(i) / path.name).read_bytes() == path.read_bytes(), path.name
    edit(run_copy, "config.json", transformers_version="5.0", torch_dtype="float32")
    edit(run_copy, "generation_config.json", transformers_version="5.0")
    (run_copy / "README.md").unlink()
    assert ph.load(run_copy).generation == GENERATION
    (run_copy / "generation_config.json").unlink()
    assert ph.load(run_copy).generation == GenerationConfig()


@pytest.mark.acceptance("A15")
@pytest.mark.parametrize(("tying", "n_matrices"), [("all", 1), ("target", 2), ("none", 3)])
def test_tied_weights_are_saved_once_and_loaded_tied(tying, n_matrices, tmp_path):
    run = make_run(tie_embeddings=tying)
    run.save(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
        assert file.metadata()["format"] == "pt"
    assert shapes.count([run.config.vocab_size, 16]) == n_matrices
    model = ph.load(tmp_path).model
    embeddings = (model.encoder_embedding.token, model.decoder_embedding.token, model.head)
    assert len({module.weight.data_ptr() for module in embeddings}) == n_matrices


def save_untrained(directory, task, **data):
    recipe = task_recipe(directory, task, directory / "run")
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update=data)})
    tokenizer = make_tokenizer()
    labels = ("cold", "warm") if task == "classification" else ()
    model = ph.build(recipe.model.with_vocabulary(tokenizer.vocab_size, labels), seed=1)
    Run(model, tokenizer, recipe.generation, recipe).save(recipe.out)
    return recipe.out


@pytest.mark.parametrize("task", TASKS)
def test_lost_recipe_is_read_from_its_copy(task, tmp_path, caplog):
    directory = save_untrained(tmp_path, task)
    run = ph.load(directory)
    assert caplog.messages == []
    (directory / "recipe.yaml").unlink()
    copy = ph.load(directory)
    assert copy.recipe == run.recipe is not None
    assert copy.saved_prompt_template == run.saved_prompt_template
    assert caplog.messages == [f"{directory} differs from what training wrote: missing: recipe.yaml"]


@pytest.mark.parametrize("separator", ["line", "file"])
def test_config_tokenizer_and_weights_suffice_to_generate(separator, tmp_path):
    directory = save_untrained(tmp_path, "language-model", document_separator=separator)
    bare_dir = tmp_path / "bare"
    bare_dir.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        shutil.copy(directory / name, bare_dir)
    run, bare = ph.load(directory), ph.load(bare_dir)
    (newline,), eos = run.tokenizer.encode(["\n"]), [run.tokenizer.eos_id]
    template = {"prefix_ids": eos, "suffix_ids": eos, "always_add_prefix": True}
    if separator == "file":
        template = {"prefix_ids": newline, "suffix_ids": [], "always_add_prefix": False}
    fields = json.loads((directory / "config.json").read_text())
    assert fields.pop("prompt_template") == template
    texts = ["", "ein hund", "zwei"]
    expected = run.generate(texts, seed=3, max_new_tokens=5)
    assert bare.generate(texts, seed=3, max_new_tokens=5) == expected
    assert bare.score(texts[1:]) == run.score(texts[1:])
    (directory / "config.json").write_text(json.dumps(fields))  # older runs have it in the recipe only
    assert ph.load(directory).generate(texts, seed=3, max_new_tokens=5) == expected


TEMPLATE = {"prefix_ids": [1], "suffix_ids": [], "always_add_prefix": True}
TEMPLATES = [[], {}, TEMPLATE | {"always_add_prefix": 1}]
TEMPLATES += [TEMPLATE | {"prefix_ids": [10**6]}, TEMPLATE | {"prefix_ids": [True]}]
SHAPES = r"down_proj.weight' is torch.float32 \[16, 32\], expected torch.float32 \[16, 64\]; "


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_ff": 64}, SHAPES),
        ({"recipe": []}, r"config\.json: recipe must be an object"),
        ({"recipe": {"task": "translatoin"}}, r"config\.json: recipe: .*translatoin"),
        *(({"prompt_template": x}, "prompt_template must have prefix_ids and suffix_ids") for x in TEMPLATES),
    ],
    ids=str,
)
def test_invalid_fields_of_the_config_are_refused(fields, message, run_copy):
    edit(run_copy, "config.json", **fields)
    with pytest.raises(UserError, match=message):
        ph.load(run_copy)
