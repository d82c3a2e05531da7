"""Tests of train/tasks/preferences.py and train/reference.py: DPO and KTO from a small language model."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.train.conftest import Notes, user_error
from tests.train.distributed.rank_runs import assert_same_run, train
from tests.train.test_resume import assert_resumes

import polyhead as ph
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.core.registry import TASK
from polyhead.estimate.inputs import batch_shape_of
from polyhead.nn.device import place_batch
from polyhead.nn.lora import merge_lora_tensors
from polyhead.nn.loss import KL_BLOCK
from polyhead.nn.state import named_state
from polyhead.run.recipe import load_recipe
from polyhead.train.reference import (
    load_reference_model,
    read_reference,
    refuse_new_reference,
    set_references,
)
from polyhead.train.run_training import run_training
from polyhead.train.tasks.preferences import compute_ratios

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_report")]
WORDS = ["red", "blue", "green", "old", "new"]
MODEL = {"d_model": 32, "n_layers": 1, "n_heads": 2, "d_ff": 32, "dropout": 0.0, "max_len": 32}


@pytest.fixture(scope="module")
def directory(tmp_path_factory, no_fsync):
    """Sentences, a language model of them, and pairs of answers of which the one with "red" is preferred."""
    folder, rng = tmp_path_factory.mktemp("preferences"), np.random.default_rng(5)
    for split, count in (("train", 60), ("valid", 20), ("test", 20)):
        pairs, texts = [], []
        for i in range(count):
            words = [str(word) for word in rng.choice(WORDS[1:], 2)]
            prompt = f"the {words[0]} "
            answers = {"chosen": f"{words[1]} red house", "rejected": f"{words[1]} house"}
            pairs.append({"prompt": prompt, **answers})
            texts.append(prompt + answers["chosen" if i % 2 else "rejected"])
        (folder / f"{split}.txt").write_text("".join(f"{text}\n" for text in texts))
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    base = {"task": "language-model", "model": MODEL, "tokenizer": {"kind": "char"}, "out": folder / "base"}
    data = {"root": folder, "train": "train.txt", "valid": "valid.txt", "document_separator": "line"}
    training = {"steps": 60, "max_tokens": 256, "lr": 1e-2, "eval_every": 60}
    recipe = Recipe.model_validate(base | {"data": data | {"max_len": 32}, "train": training})
    run_training(recipe, report=Notes())
    return folder


def task_recipe(directory, out, task, **train):
    data = {split: f"{split}.jsonl" for split in ("train", "valid", "test")}
    data |= {"root": directory, "document_separator": "line", "max_len": 32}
    settings = {"steps": 24, "lr": 1e-2, "max_tokens": 512, "precision": "fp32", "eval_every": 12}
    settings |= {
        "save_every": 12,
        "log_every": 1,
        "best_metric": "accuracy",
        "schedule": {"name": "constant"},
    }
    return Recipe.model_validate(
        {"task": {"name": task, "beta": 0.2}, "data": data, "init_from": str(directory / "base"),
         "train": settings | train, "out": directory / out}
    )  # fmt: skip


@pytest.fixture(scope="module", params=["dpo", "kto"])
def trained_run(request, directory):
    recipe = task_recipe(directory, request.param, request.param)
    notes = Notes()
    run, _ = run_training(recipe, report=notes)
    return request.param, run, recipe, notes


def log_prob(run, prompt, answer):
    """log p of an answer and its end, token by token, in NumPy."""
    ids = [run.tokenizer.eos_id, *run.tokenizer.encode([prompt + answer])[0], run.tokenizer.eos_id]
    n_prompt = 1 + len(run.tokenizer.encode([prompt])[0])
    with torch.inference_mode():
        logits = run.model(torch.tensor([ids[:-1]]))[0].double().numpy()
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return sum(log_p[i - 1, ids[i]] for i in range(n_prompt, len(ids)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_measures_are_those_written_out(trained_run, directory, capsys):
    task, run, recipe, notes = trained_run
    base = ph.load(directory / "base", device="cpu")
    rows = [json.loads(line) for line in (directory / "test.jsonl").read_text().splitlines()]
    answers = [(row["prompt"], row[kind]) for row in rows for kind in ("chosen", "rejected")]
    ratios = np.array([log_prob(run, *answer) - log_prob(base, *answer) for answer in answers])
    chosen, rejected = 0.2 * ratios[::2], 0.2 * ratios[1::2]
    assert main(["eval", str(recipe.out), "--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    values = found["measures"]
    assert values["chosen_reward"] == pytest.approx(chosen.mean(), abs=1e-3)
    assert values["rejected_reward"] == pytest.approx(rejected.mean(), abs=1e-3)
    assert values["margin"] == pytest.approx((chosen - rejected).mean(), abs=1e-3) and values["margin"] > 0.1
    if task == "dpo":
        assert values["loss"] == pytest.approx(-np.log(sigmoid(chosen - rejected)).mean(), abs=1e-3)
        assert values["accuracy"] == (chosen > rejected).mean() > 0.8
        assert found["baselines"]["loss"]["value"] == math.log(2)
    else:
        assert 0 < values["loss"] < 0.5 == found["baselines"]["loss"]["value"]
    assert found["baselines"]["accuracy"]["value"] == 0.5 and "baseline 0.500" in printed.err
    card = (recipe.out / "README.md").read_text()
    assert f"| test accuracy | {values['accuracy']:.4f} |" in card and "| valid margin |" in card
    assert {"accuracy", "margin", "kl"} <= notes.rows[-1].keys() and notes.series("texts_per_s")


def test_reference_of_a_run_is_its_file(trained_run, directory):
    task, _, recipe, _ = trained_run
    first = run_training(task_recipe(directory, f"{task}-one", task, steps=1, lr=1e-9), report=Notes())[0]
    opened = TASK.get(task).open(first.recipe, first.tokenizer, Notes())
    set_references(opened, read_reference(first.recipe.out), refuse_new_reference)
    values = opened.evaluate(first.model)
    assert values["margin"] == pytest.approx(0, abs=1e-4) and values["kl"] == pytest.approx(0, abs=1e-4)
    assert values["loss"] == pytest.approx(math.log(2) if task == "dpo" else 0.5, abs=1e-4)
    names = load_file(recipe.out / "reference.safetensors").keys()
    assert len(names) == 3
    # z0 of the training text is not in the file of a run that does not read it: it is measured, not 0
    data = first.recipe.data.model_copy(update={"valid": first.recipe.data.train, "test": None})
    learned, base = first.recipe.model_copy(update={"data": data}), ph.load(directory / "base", device="cpu")
    again, new = (TASK.get(task).open(learned, first.tokenizer, Notes()) for _ in range(2))
    set_references(again, read_reference(first.recipe.out), lambda: base.model)
    set_references(new, {}, lambda: base.model)
    assert again.reference["valid"].numpy() == pytest.approx(new.reference["valid"].numpy(), abs=1e-4)
    assert again.reference["valid"].shape == (2, len(again.valid)) and (new.reference["valid"] < 0).all()
    # texts outside of the file are compared with the model of init_from
    (directory / "other.jsonl").write_text((directory / "test.jsonl").read_text() * 2)
    assert main(["eval", str(recipe.out), str(directory / "other.jsonl")]) == 0


@pytest.mark.parametrize("task", ["dpo", "kto"])
def test_killed_run_resumes_bit_for_bit(task, directory):
    killed = assert_resumes(lambda name, **train: task_recipe(directory, f"{task}-{name}", task, **train))
    (killed.out / "reference.safetensors").unlink()
    with user_error("reference.safetensors is missing in the run or belongs to other texts"):
        run_training(load_recipe(killed.out / "recipe.yaml"), resume=True, report=Notes())


@pytest.mark.parametrize("task", ["dpo", "kto"])
def test_two_processes_train_like_one(task, directory):
    optimizer = {"optimizer": {"name": "adamw", "eps": 1e-3}, "steps": 4, "eval_every": 2, "save_every": 2}
    results = []
    for n in (1, 2):
        recipe = task_recipe(directory, f"{task}-{n}", task, ema=0.9, lr=3e-3, **optimizer)
        results.append(train(recipe, n))
    assert_same_run(*results)


@pytest.mark.parametrize("base_format", ["fp32", "int4"])
def test_lora_learns_preferences(directory, base_format):
    lora = {"r": 4, "alpha": 8, "target_modules": ["attn", "ffn"], "base": base_format}
    recipe = task_recipe(directory, f"lora-{base_format}", "dpo", lora=lora, lr=2e-2)
    run, _ = run_training(recipe, report=Notes())
    base = ph.load(directory / "base", device="cpu")
    if base_format == "int4":  # the reference is the packed model, which the adapters begin with
        row = json.loads((directory / "train.jsonl").read_text().splitlines()[0])
        answers = [(row["prompt"], row[kind]) for kind in ("chosen", "rejected")]
        tensors = load_file(recipe.out / "reference.safetensors").values()
        known = max(tensors, key=torch.numel)[0, :2]  # of the training text
        assert known.tolist() != pytest.approx([log_prob(base, *answer) for answer in answers], abs=1e-4)
        model = load_reference_model(recipe, run)
        base.model.load_state_dict(merge_lora_tensors(named_state(model), 1.0), strict=False)
        assert known.tolist() == pytest.approx([log_prob(base, *answer) for answer in answers], abs=1e-4)
    answers = [("the old ", answer) for answer in ("new red house", "new house")]
    gains = [log_prob(run, *answer) - log_prob(base, *answer) for answer in answers]
    assert gains[0] > gains[1] + 0.5
    assert torch.equal(run.model.embedding.token.weight, base.model.embedding.token.weight)


def test_packed_base_resumes_bit_for_bit(directory):
    options = {"lora": {"r": 2, "base": "int4"}, "ema": 0.9, "average_checkpoints": 2}
    run_training(task_recipe(directory, "cut", "dpo", steps=12, **options), report=Notes())
    expected, _ = run_training(task_recipe(directory, "all", "dpo", **options), report=Notes())
    recipe = load_recipe(directory / "cut/recipe.yaml", ["train.steps=24"])
    resumed_run, _ = run_training(recipe, resume=True, report=Notes())
    expected_weights = named_state(expected.model)
    assert all(torch.equal(w, expected_weights[name]) for name, w in named_state(resumed_run.model).items())
    (directory / "all/model.safetensors").unlink()  # as if unfinished: the checkpoint has packed weights
    for name, w in named_state(ph.load(directory / "all").model).items():
        torch.testing.assert_close(w, expected_weights[name], rtol=0, atol=1e-6)


def test_blocks_of_kto_are_not_split(directory):
    recipe = task_recipe(directory, "blocks", "kto")
    base = ph.load(directory / "base", device="cpu")
    model = base.model.requires_grad_()
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"max_len": 32})})
    task = TASK.get("kto").open(recipe, base.tokenizer, Notes())
    rows = np.arange(3 * KL_BLOCK + 3)
    shards = task.shard(rows, 2)
    assert sorted(np.concatenate(shards)) == rows.tolist()
    assert all((shard[:KL_BLOCK] // KL_BLOCK == i).all() for i, shard in enumerate(shards))
    ratios, kl = compute_ratios(model, place_batch(model, task.collate(rows)))
    assert ratios.requires_grad and not kl.requires_grad and len(ratios) == len(kl) == len(rows)
    store, pad = task.train, base.tokenizer.pad_id
    (prompt, answer), other = store.starts[[3, int(store.partners[3])]], int(store.partners[3])
    expected = [*store.ids[store.offsets[3] : prompt], *store.ids[answer : store.offsets[other + 1]]]
    batch = store.collate_mismatched(np.array([3]), pad)
    assert batch.tokens[0].tolist() == expected[:-1] and batch.labels[0, -1] == expected[-1]


def test_estimate_counts_both_answers(trained_run, capsys):
    _, run, recipe, _ = trained_run
    assert main(["estimate", str(recipe.out / "recipe.yaml"), "--no-probe", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    opened = TASK.get(recipe.task.name).open(run.recipe, run.tokenizer, Notes())
    batch = opened.collate(opened.largest_batch())
    shape = batch_shape_of(run.config, opened, batch)
    answers = batch.answers[0]
    assert shape.rows == len(answers.log_probs) == answers.windows.tokens.size(0)
    assert shape.label_count == int((answers.windows.labels >= 0).sum())


def test_mistakes_are_refused(directory):
    recipe = task_recipe(directory, "none", "dpo")
    with user_error("task 'dpo' starts from a trained language model, which is its reference: set init_from"):
        run_training(recipe.model_copy(update={"init_from": None}), report=Notes())
