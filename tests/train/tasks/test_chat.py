"""A model learns three conversations by heart and gives their answers back; nothing but
answers is learned.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.conftest import Notes

import polyhead as ph
from polyhead.chat.apply_template import encode_chat
from polyhead.chat.base import Message
from polyhead.cli import main
from polyhead.config import yaml_io
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.models import build
from polyhead.nn.feed_forward.moe import BALANCE_GRAD_SCALE
from polyhead.nn.norm import BatchNorm
from polyhead.run.run import Run
from polyhead.train.run_training import run_training

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("unsynced")]

TALKS = [
    [("user", "hello"), ("assistant", "good day"), ("user", "who are you?"), ("assistant", "a small model")],
    [("system", "speak German"), ("user", "hello"), ("assistant", "guten Tag")],
    [("user", "1 + 1?"), ("assistant", "2"), ("user", "really?"), ("assistant", "yes, 2")],
]


def messages(talk: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in talk]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("talks")
    rows = [json.dumps({"messages": messages(talk)}) for talk in TALKS]
    (where / "talks.jsonl").write_text("\n".join([*rows, "no conversation"]) + "\n")
    return where


def recipe(place: Path, out: str, **changes: Any) -> Recipe:
    model = {
        "d_model": 48,
        "n_layers": 2,
        "n_heads": 4,
        "d_ff": 96,
        "dropout": 0.0,
        "max_len": 128,
        "position": "rope",
    }
    train = {"steps": 90, "max_tokens": 256, "lr": 1e-2, "precision": "fp32", "log_every": 10,
        "eval_every": 90,
             "save_every": 90, "schedule": {"name": "cosine", "warmup": 10}}  # fmt: skip
    return Recipe.model_validate(
        {
            "task": "chat",
            "data": {
                "root": place,
                "train": "talks.jsonl",
                "valid": "talks.jsonl",
                "test": "talks.jsonl",
                "max_len": 120,
            },
            "tokenizer": {"vocab_size": 300},
            "model": model | changes.pop("model", {}),
            "train": train | changes.pop("train", {}),
            "generation": {"temperature": 0} | changes.pop("generation", {}),
            "out": place / out,
            **changes,
        }
    )


def asked_and_answered(talk: list[tuple[str, str]]):
    """Every answer of a conversation with what came before it."""
    return [(messages(talk[:i]), content) for i, (role, content) in enumerate(talk) if role == "assistant"]


@pytest.fixture(scope="module")
def learned(place: Path) -> tuple[Run, Notes]:
    notes = Notes()
    with pytest.MonkeyPatch.context() as patch:
        import os

        patch.setattr(os, "fsync", lambda fd: None)
        run, _ = run_training(recipe(place, "run"), report=notes)
    return run, notes


def test_three_conversations_learned_by_heart_are_answered(learned, place):
    run, notes = learned
    for one in (run, ph.load(place / "run")):
        assert one.generation.chat == Choice("plain")
        for talk in TALKS:
            for before, answer in asked_and_answered(talk):
                assert one.chat(before) == answer
    (told,) = [line for line in notes.said if line.startswith("train: talks.jsonl")]
    assert "3 of 4 conversations, 5 answers; skipped 1 broken (first: line 4)" in told


def test_the_loss_is_that_of_the_answers_alone(learned):
    """By hand: the mean of -log p over what stands behind each question, up to the end of the turn."""
    run, notes = learned
    total, count = by_hand([run])
    task = TASK.get("chat").open(run.recipe, run.tokenizer, Notes())
    batches = [task.collate(rows) for rows in task.epoch_batches(0)]
    assert (
        sum(map(task.count_labels, batches))
        == sum(task.loss(run.model, one).count for one in batches)
        == count
    )
    (loss,), (ppl,) = notes.series("loss", "valid")[-1:], notes.series("ppl", "valid")[-1:]
    assert loss == pytest.approx(total / count, rel=1e-3, abs=1e-5)
    assert ppl == pytest.approx(torch.tensor(total / count).exp().item(), rel=1e-3)


def by_hand(runs: list[Run]) -> tuple[float, int]:
    """-log of the mean probability of what the assistant says, a conversation at a time, and how many tokens
    that are.
    """
    run, total, count = runs[0], 0.0, 0
    format = run.chat_session().format
    for talk in TALKS:
        for i, (role, _) in enumerate(talk):
            if role != "assistant":
                continue
            all_said = [Message(*one) for one in talk]
            prompt = encode_chat(format, run.tokenizer, all_said[:i], add_generation_prompt=True).ids
            whole = encode_chat(format, run.tokenizer, all_said[: i + 1]).ids
            assert whole[: len(prompt)] == prompt
            with torch.inference_mode():
                p = [one.model(torch.tensor([whole]))[0].double().softmax(-1) for one in runs]
                log_p = (sum(p) / len(p)).log()  # type: ignore[union-attr]
            for at in range(len(prompt), len(whole)):
                total, count = total - float(log_p[at - 1, whole[at]]), count + 1
    return total, count


def test_it_is_measured_from_the_shell(learned, place, capsys):
    assert main(["eval", str(place / "run")]) == 0
    rows = {line.split()[0]: float(line.split()[1]) for line in capsys.readouterr().out.splitlines()}
    assert (
        rows["loss"] == pytest.approx(learned[1].series("loss", "valid")[-1], abs=1e-3)
        and rows["perplexity"] < 1.2
    )
    assert main(["eval", str(place / "run"), str(place / "talks.jsonl")]) == 0
    assert main(["eval", str(place / "run"), "--beam-size", "2"]) == 2
    capsys.readouterr()
    second = ph.load(place / "run")
    with torch.no_grad():
        for p in second.model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    second.save(place / "second")
    assert main(["eval", str(place / "run"), "--ensemble", str(place / "second")]) == 0
    rows = {line.split()[0]: float(line.split()[1]) for line in capsys.readouterr().out.splitlines()}
    total, count = by_hand([learned[0], second])
    assert rows["loss"] == pytest.approx(total / count, abs=1e-3) and rows["loss"] > 0.02


def test_a_file_is_measured_also_where_the_recipe_holds_out_a_share(learned, place, capsys):
    other = place / "other.jsonl"
    other.write_text(json.dumps({"messages": messages([("user", "hello"), ("assistant", "bonjour")])}))
    shutil.copytree(place / "run", place / "sharing")
    tree = yaml_io.parse_yaml((place / "run" / "recipe.yaml").read_text())
    tree["data"] |= {"valid": None, "valid_fraction": 0.4}
    (place / "sharing" / "recipe.yaml").write_text(json.dumps(tree))
    tables = []
    for run in ("run", "sharing"):
        assert main(["eval", str(place / run), str(other)]) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1] and float(tables[0].split()[1]) > 1


def test_it_learns_on_from_a_run_in_its_format(learned, place):
    """What begins with a run that converses keeps its way to; a format of one's own is kept too, and what
    fits none is told.
    """
    notes = Notes()
    own = recipe(place, "further", generation={"chat": "zephyr"})
    own = own.model_copy(update={"train": own.train.model_copy(update={"steps": 1})})
    run, _ = run_training(own, report=notes)
    assert run.generation.chat == Choice("zephyr")
    tree = {"task": "chat", "init_from": str(place / "further"), "out": str(place / "third"),
            "data": {"root": str(place), "train": "talks.jsonl", "valid_fraction": 0.4, "max_len": 64},
                "train": {"steps": 1}}  # fmt: skip
    run, _ = run_training(Recipe.model_validate(tree), report=notes)
    assert run.generation.chat == Choice("zephyr")
    assert ph.load(place / "third").generation.chat == Choice("zephyr")
    assert run_training(Recipe.model_validate(tree), report=notes, resume=True)[1].step == 1
    unfit = tree | {"generation": {"chat": "chatml"}, "out": str(place / "fourth")}
    with pytest.raises(UserError, match="this chat format needs the token"):
        run_training(Recipe.model_validate(unfit), report=notes)


def test_recipes_that_cannot_be_are_refused(place):
    task = TASK.get("chat")
    with pytest.raises(ValueError, match="'chat' does not measure 'bleu'; it measures loss"):
        recipe(place, "x", train={"eval_bleu": True})
    with pytest.raises(UserError, match="rows do not fit"):
        task.check(recipe(place, "x", model={"max_len": 64}))
    with pytest.raises(UserError, match=r"did you mean 'talks.jsonl'"):
        task.check(
            recipe(
                place, "x", data={"root": place, "train": "talk.jsonl", "valid_fraction": 0.1, "max_len": 99}
            )
        )
    with pytest.raises(UserError, match="max_tokens is 8, but row"):
        run_training(recipe(place, "small", train={"max_tokens": 8}))


@pytest.mark.parametrize("part", ["moe", "batchnorm"])
def test_parts_that_count_tokens_count_no_padding(place, learned, part):
    """Beside conversations that are read one at a time, without any padding."""
    changes: dict[str, Any] = {
        "moe": {"feed_forward": {"name": "moe", "n_experts": 4, "top_k": 2}},
        "batchnorm": {"norm": "batchnorm"},
    }[part]
    asked = recipe(place, "x", model={"n_layers": 1} | changes, train={"max_tokens": 4096})
    tokenizer = learned[0].tokenizer
    task = TASK.get("chat").open(asked, tokenizer, Notes())
    [rows] = task.epoch_batches(0)
    batch = task.collate(rows)
    assert len(rows) == 3 and int((batch.pos < 0).sum()) > 9
    model = build(asked.model.with_vocabulary(tokenizer.vocab_size), seed=1).train()
    layer = model.stack.layers[0]
    counts = layer.ffn if part == "moe" else next(m for m in model.modules() if isinstance(m, BatchNorm))
    seen = []
    hook = counts.register_forward_pre_hook(lambda module, given: seen.append(given[0][0].detach()))
    for row in rows:
        model.features(task.collate(np.array([row])).tokens)
    hook.remove()
    alone = torch.cat(seen).double()
    assert len(alone) == int((batch.pos >= 0).sum())
    fresh = build(asked.model.with_vocabulary(tokenizer.vocab_size), seed=1).train()
    task.loss(fresh, batch).total.backward()
    if part == "moe":
        scores = (alone @ counts.router.weight.detach().double().T).softmax(-1)
        picked = scores.topk(2, -1).indices.flatten().tolist()
        loads = [picked.count(i) / len(alone) - 2 / 4 for i in range(4)]
        wanted = BALANCE_GRAD_SCALE * torch.tensor(loads)
        torch.testing.assert_close(fresh.stack.layers[0].ffn.balance.grad, wanted, rtol=1e-4, atol=1e-8)
    else:
        norm = next(m for m in fresh.modules() if isinstance(m, BatchNorm))
        torch.testing.assert_close(norm.running_mean.double(), 0.1 * alone.mean(0), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(norm.running_var.double(), 0.9 + 0.1 * alone.var(0), rtol=1e-4, atol=1e-6)
