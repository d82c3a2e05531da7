import json
import shutil

import numpy as np
import pytest
import torch
from tests.train.conftest import Notes, user_error, with_train

import polyhead as ph
from polyhead import Choice, build
from polyhead.chat.apply_template import encode_chat
from polyhead.chat.base import Message
from polyhead.cli import main
from polyhead.config import yaml_io
from polyhead.config.recipe import Recipe
from polyhead.core.registry import TASK
from polyhead.nn.feed_forward.moe import BALANCE_GRAD_SCALE
from polyhead.train.run_training import run_training

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_report")]
CHATS = [
    [("user", "hello"), ("assistant", "good day"), ("user", "who are you?"), ("assistant", "a small model")],
    [("system", "speak German"), ("user", "hello"), ("assistant", "guten Tag")],
    [("user", "1 + 1?"), ("assistant", "2"), ("user", "really?"), ("assistant", "yes, 2")],
]


def messages(chat) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in chat]


@pytest.fixture(scope="module")
def corpus_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("chats")
    rows = [json.dumps({"messages": messages(chat)}) for chat in CHATS]
    (directory / "chats.jsonl").write_text("\n".join([*rows, "no conversation"]) + "\n")
    return directory


def recipe(directory, out, **changes) -> Recipe:
    model = {"d_model": 48, "n_layers": 2, "n_heads": 4, "d_ff": 96, "dropout": 0.0, "max_len": 128}
    train = {"steps": 90, "max_tokens": 256, "lr": 1e-2, "precision": "fp32", "log_every": 90}
    train |= {"eval_every": 90, "save_every": 90, "schedule": {"name": "cosine", "warmup": 10}}
    data = {"root": directory, "max_len": 120} | dict.fromkeys(("train", "valid", "test"), "chats.jsonl")
    return Recipe.model_validate(
        {
            "task": "chat",
            "data": data,
            "tokenizer": {"vocab_size": 300},
            "model": model | {"position": "rope"} | changes.pop("model", {}),
            "train": train | changes.pop("train", {}),
            "generation": {"temperature": 0} | changes.pop("generation", {}),
            "out": directory / out,
            **changes,
        }
    )


@pytest.fixture(scope="module")
def trained_run(no_report, corpus_dir):
    notes = Notes()
    run, _ = run_training(recipe(corpus_dir, "run"), report=notes)
    return run, notes


def test_conversations_are_memorized(trained_run, corpus_dir):
    run, notes = trained_run
    for model in (run, ph.load(corpus_dir / "run")):
        assert model.generation.chat == Choice("plain")
        for chat in CHATS:
            for i, (role, content) in enumerate(chat):
                assert role != "assistant" or model.chat(messages(chat[:i])) == content
    (line,) = [line for line in notes.lines if line.startswith("train: chats.jsonl")]
    assert "3 of 4 conversations, 5 answers; skipped 1 broken (first: line 4)" in line
    assert "warning: valid: 3 of 3 texts are also in the training text (first: text 1)" in notes.lines


def sum_nll(runs) -> tuple[float, int]:
    run, total, count = runs[0], 0.0, 0
    template = run.chat_session().format
    for chat in CHATS:
        for i in [i for i, (role, _) in enumerate(chat) if role == "assistant"]:
            turns = [Message(*turn) for turn in chat]
            prompt = encode_chat(template, run.tokenizer, turns[:i], add_generation_prompt=True).ids
            ids = encode_chat(template, run.tokenizer, turns[: i + 1]).ids
            assert ids[: len(prompt)] == prompt
            with torch.inference_mode():
                p = [r.model(torch.tensor([ids]))[0].double().softmax(-1) for r in runs]
                log_p = (sum(p) / len(p)).log()
            for k in range(len(prompt), len(ids)):
                total, count = total - float(log_p[k - 1, ids[k]]), count + 1
    return total, count


def test_loss_is_that_of_answers_only(trained_run):
    run, notes = trained_run
    total, count = sum_nll([run])
    task = TASK.get("chat").open(run.recipe, run.tokenizer, Notes())
    batches = [task.collate(rows) for rows in task.epoch_batches(0)]
    assert sum(map(task.count_labels, batches)) == count
    assert sum(task.loss(run.model, batch).count for batch in batches) == count
    assert notes.series("loss", "valid")[-1] == pytest.approx(total / count, rel=1e-3, abs=1e-5)
    assert notes.series("ppl", "valid")[-1] == pytest.approx(np.exp(total / count), rel=1e-3)


def evaluate(capsys, *args) -> dict[str, float]:
    assert main(["eval", *map(str, args)]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines}


def test_eval_command_and_ensemble(trained_run, corpus_dir, capsys):
    metrics = evaluate(capsys, corpus_dir / "run")
    assert metrics["loss"] == pytest.approx(trained_run[1].series("loss", "valid")[-1], abs=1e-3)
    assert metrics["perplexity"] < 1.2
    shutil.copytree(corpus_dir / "run", corpus_dir / "fraction")
    tree = yaml_io.parse_yaml((corpus_dir / "run" / "recipe.yaml").read_text())
    tree["data"] |= {"valid": None, "valid_fraction": 0.4}
    (corpus_dir / "fraction" / "recipe.yaml").write_text(json.dumps(tree))
    for name in ("run", "fraction"):  # a fraction of the training text, not of a file that is passed
        assert evaluate(capsys, corpus_dir / name, corpus_dir / "chats.jsonl") == metrics
    assert main(["eval", str(corpus_dir / "run"), "--beam-size", "2"]) == 2
    capsys.readouterr()
    second = ph.load(corpus_dir / "run")
    with torch.no_grad():
        for p in second.model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    second.save(corpus_dir / "second")
    metrics = evaluate(capsys, corpus_dir / "run", "--ensemble", corpus_dir / "second")
    total, count = sum_nll([trained_run[0], second])
    assert metrics["loss"] == pytest.approx(total / count, abs=1e-3) and metrics["loss"] > 0.02


def test_chat_format_is_inherited_by_later_runs(trained_run, corpus_dir):
    own_recipe = recipe(corpus_dir, "further", generation={"chat": "zephyr"})
    run, _ = run_training(with_train(own_recipe, steps=1), report=Notes())
    assert run.generation.chat == Choice("zephyr")
    data = {"root": str(corpus_dir), "train": "chats.jsonl", "valid_fraction": 0.4, "max_len": 64}
    sections = {"task": "chat", "init_from": str(corpus_dir / "further"), "out": str(corpus_dir / "third")}
    sections |= {"data": data, "train": {"steps": 1}}
    run, _ = run_training(Recipe.model_validate(sections), report=Notes())
    assert run.generation.chat == ph.load(corpus_dir / "third").generation.chat == Choice("zephyr")
    assert run_training(Recipe.model_validate(sections), report=Notes(), resume=True)[1].step == 1
    unfit = sections | {"generation": {"chat": "chatml"}, "out": str(corpus_dir / "fourth")}
    with user_error("this chat format needs the token"):
        run_training(Recipe.model_validate(unfit), report=Notes())


def test_unsuitable_recipe_is_refused(corpus_dir):
    check = TASK.get("chat").check
    with pytest.raises(ValueError, match="'chat' does not measure 'bleu'; it measures loss"):
        recipe(corpus_dir, "x", train={"eval_bleu": True})
    with user_error("rows do not fit"):
        check(recipe(corpus_dir, "x", model={"max_len": 64}))
    data = {"root": corpus_dir, "train": "chat.jsonl", "valid_fraction": 0.1, "max_len": 99}
    with user_error(r"did you mean 'chats.jsonl'"):
        check(recipe(corpus_dir, "x", data=data))
    with user_error("max_tokens is 8, but row"):
        run_training(recipe(corpus_dir, "small", train={"max_tokens": 8}))


def test_balance_of_experts_does_not_count_padding(trained_run, corpus_dir):
    """It is that of conversations one at a time, without padding."""
    model = {"n_layers": 1, "feed_forward": {"name": "moe", "n_experts": 4, "top_k": 2}}
    config = recipe(corpus_dir, "x", model=model, train={"max_tokens": 4096})
    tokenizer, inputs = trained_run[0].tokenizer, []
    task = TASK.get("chat").open(config, tokenizer, Notes())
    [rows] = task.epoch_batches(0)
    batch = task.collate(rows)
    assert len(rows) == 3 and int((batch.pos < 0).sum()) > 9
    single, model = (build(config.model.with_vocabulary(tokenizer.vocab_size), seed=1).train() for _ in "ab")
    ffn = single.stack.layers[0].ffn
    ffn.register_forward_pre_hook(lambda _, args: inputs.append(args[0][0].detach()))
    for row in rows:
        single.features(task.collate(np.array([row])).tokens)
    x = torch.cat(inputs).double()
    assert len(x) == int((batch.pos >= 0).sum())
    task.loss(model, batch).total.backward()
    experts = (x @ ffn.router.weight.detach().double().T).topk(2, -1).indices.flatten().tolist()
    loads = torch.tensor([experts.count(i) / len(x) - 2 / 4 for i in range(4)])
    actual = model.stack.layers[0].ffn.balance.grad
    torch.testing.assert_close(actual, BALANCE_GRAD_SCALE * loads, rtol=1e-4, atol=1e-8)
