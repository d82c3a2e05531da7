import hashlib
import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tests.run.run_helpers import GENERATION, TEXTS, edit, make_run, make_tokenizer
from tests.train.task_runs import TASKS, task_recipe

import polyhead as ph
from polyhead.checkpoint.checkpoint import save_checkpoint
from polyhead.checkpoint.weight_selection import WeightSelection
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.run import parts
from polyhead.run.run import Run
from polyhead.run.run_directory import write_run_manifest


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


WEIGHTS = "model.safetensors"
CONFIGS = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]


def assert_weights(directory, expected):
    actual = dict(ph.load(directory).model.named_parameters())
    torch.testing.assert_close(actual, dict(expected), rtol=0, atol=0)


def make_other_run():
    run = make_run()
    for tensor in run.model.parameters():
        tensor.data += 1
    return run


def test_manifest_has_digests_and_few_files_suffice(run_dir, tmp_path):
    files = {}
    for name in (*CONFIGS, WEIGHTS):
        content = (run_dir / name).read_bytes()
        files[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert json.loads((run_dir / "manifest.json").read_text())["files"] == files
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS):
        shutil.copy(run_dir / name, tmp_path)
    settings = GENERATION.model_dump(include={"beam_size", "max_length_ratio", "max_length_extra"})
    assert ph.load(tmp_path).translate(TEXTS, **settings) == ph.load(run_dir).translate(TEXTS)


@pytest.mark.acceptance("B12")
def test_every_flipped_bit_of_the_weights_is_detected(run_copy):
    path = run_copy / WEIGHTS
    content, rng = path.read_bytes(), random.Random(160)
    for _ in range(160):
        content_copy = bytearray(content)
        content_copy[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content_copy)
        with pytest.raises(UserError, match=f"^{path} is damaged: its SHA-256 is ") as error:
            ph.load(run_copy)
        assert "\n" not in str(error.value)
    path.write_bytes(content)
    ph.load(run_copy)


def test_other_weights_or_manifests_are_refused(run_copy, tmp_path):
    path, manifest = run_copy / WEIGHTS, run_copy / "manifest.json"
    content = path.read_bytes()
    for percent in (0, 1, 50, 99, 101):
        path.write_bytes((content + bytes(999))[: len(content) * percent // 100])
        with pytest.raises(UserError, match=f"^{path} is damaged or truncated: it has "):
            ph.load(run_copy)
    make_other_run().save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / WEIGHTS, path)
    with pytest.raises(UserError, match="is damaged: its SHA-256"):
        ph.load(run_copy)
    path.write_bytes(content)
    ph.load(run_copy).save_config_files(run_copy)  # as a resumed run, which keeps the digest of its weights
    write_run_manifest(run_copy)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="is damaged: its SHA-256"):
        ph.load(run_copy)
    manifest.write_text(manifest.read_text().replace('"step": 0', '"step": 1'))
    with pytest.raises(UserError, match=r"manifest\.json is damaged: .*; remove it to use the run"):
        ph.load(run_copy)
    path.unlink()
    manifest.unlink()
    (run_copy / "checkpoints").write_text("")
    with pytest.raises(UserError, match="checkpoints is not a directory"):
        ph.load(run_copy)


def test_links_to_weights_and_runs_without_digests_load(run_copy, tmp_path, caplog):
    expected = ph.load(run_copy).model.named_parameters()
    (run_copy / WEIGHTS).rename(tmp_path / "big")
    (run_copy / WEIGHTS).symlink_to(tmp_path / "big")
    assert_weights(run_copy, expected)
    (run_copy / "manifest.json").unlink()
    edit(run_copy, "generation_config.json", beam_size=3)
    assert ph.load(run_copy).generation.beam_size == 3 and caplog.messages == []


def test_edited_config_is_used_and_reported(run_copy, caplog):
    assert ph.load(run_copy).generation == GENERATION and caplog.messages == []
    edit(run_copy, "generation_config.json", beam_size=3)
    assert ph.load(run_copy).generation.beam_size == 3
    edit(run_copy, "config.json", dropout=0.2)
    (run_copy / "generation_config.json").unlink()
    assert ph.load(run_copy).config.dropout == 0.2
    message = f"{run_copy} differs from what training wrote: changed: "
    assert caplog.messages == [
        f"{message}generation_config.json",
        f"{message}config.json; missing: generation_config.json",
    ]


UNREADABLE = {
    "fifo": os.mkfifo,
    "loop": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "directory": Path.mkdir,
    "broken link": lambda path: path.symlink_to("nothing"),
}


@pytest.mark.acceptance("F10")
@pytest.mark.parametrize("has_manifest", [True, False])
@pytest.mark.parametrize("kind", UNREADABLE)
def test_unreadable_file_is_damage_and_not_absence(run_copy, kind, has_manifest):
    """Also where a missing file would be allowed; nothing waits for the writer of a fifo."""
    if not has_manifest:
        (run_copy / "manifest.json").unlink()
    names = [*CONFIGS, "recipe.yaml", "target_tokenizer.json", WEIGHTS]
    for name in names + ["manifest.json"] * has_manifest:
        path, backup = run_copy / name, run_copy / "backup"
        if path.exists():
            path.rename(backup)
        UNREADABLE[kind](path)
        with pytest.raises(UserError, match=f"^{path} is (a broken link|not a regular file|a link)"):
            ph.load(run_copy)
        path.rmdir() if path.is_dir() else path.unlink()
        if backup.exists():
            backup.rename(path)
    ph.load(run_copy)


def test_interrupted_save_loads_the_new_weights(run_copy, monkeypatch):
    other = ph.load(run_copy)
    for tensor in other.model.parameters():
        tensor.data += 1

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(parts, "write_run_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            other.save(run_copy)
    assert_weights(run_copy, other.model.named_parameters())


@pytest.fixture
def checkpoints(run_copy):
    states = {}
    base = {name: p.detach().clone() for name, p in make_run().model.named_parameters()}
    extra = {"tokenizer_sha256": make_run().tokenizer.sha256}
    for step in (2, 4, 6):
        groups = {"model": {name: w + step for name, w in base.items()}}
        groups["ema"] = {name: w - step for name, w in base.items()}
        states |= {f"{group}-{step}": tensors for group, tensors in groups.items()}
        state = {"progress": {"step": step, "best_step": min(step, 4)}}
        save_checkpoint(run_copy / "checkpoints", step, groups, state, extra=extra)
    a, b = states["model-2"], states["model-6"]
    return states | {"mean": {name: ((a[name].double() + b[name].double()) / 2).float() for name in base}}


@pytest.mark.parametrize(
    ("selection", "expected", "phrase"),
    [
        (WeightSelection([2]), "model-2", "checkpoint 2"),
        (WeightSelection([6]), "model-6", "checkpoint 6"),
        (WeightSelection([4], "ema"), "ema-4", "EMA at step 4"),
        (WeightSelection([2, 6]), "mean", "mean of the checkpoints 2, 6"),
    ],
    ids=str,
)
def test_lost_weights_are_those_of_the_selection(run_copy, checkpoints, selection, expected, phrase, caplog):
    ph.load(run_copy).save(run_copy, selection=selection)
    (run_copy / WEIGHTS).unlink()
    assert_weights(run_copy, checkpoints[expected])
    message = f"{run_copy} has no {WEIGHTS}: using {phrase}, which was chosen when training ended"
    assert caplog.messages == [message]


def test_lost_weights_without_selection_are_the_best(run_copy, checkpoints, caplog):
    (run_copy / WEIGHTS).unlink()
    (run_copy / "manifest.json").unlink()
    message = f"{run_copy} has no {WEIGHTS}: using EMA at step"
    assert_weights(run_copy, checkpoints["ema-4"])
    assert caplog.messages == [f"{message} 4, that of the best evaluation"]
    shutil.rmtree(run_copy / "checkpoints" / "step-4")
    caplog.clear()
    assert_weights(run_copy, checkpoints["ema-6"])
    damage, newest = caplog.messages
    assert damage.startswith("skipping a damaged checkpoint:") and newest == f"{message} 6, the newest"


def test_damaged_selection_is_reported(run_copy, checkpoints, caplog):
    ph.load(run_copy).save(run_copy, selection=WeightSelection([2, 6]))
    (run_copy / WEIGHTS).unlink()
    (run_copy / "checkpoints" / "step-2" / "state.json").write_text("{}")
    assert_weights(run_copy, checkpoints["ema-4"])
    skipped_message, best = caplog.messages
    reason = "which was chosen when training ended: "
    assert skipped_message.startswith(f"skipping mean of the checkpoints 2, 6, {reason}")
    assert best.endswith("using EMA at step 4, that of the best evaluation")
