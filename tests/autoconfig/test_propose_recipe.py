from pathlib import Path

import pytest
from tests.autoconfig.propose_recipe_helpers import (
    CONVERSATIONS,
    REVIEWS,
    SENTENCES,
    write_lines,
    write_table,
)

from polyhead.autoconfig.inspect_data import DataSummary, inspect_data
from polyhead.autoconfig.propose_recipe import LABELED_SIZES, PAIR_SIZES, TEXT_SIZES, propose_recipe
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.models import build
from polyhead.run.recipe import load_recipe, validate_recipe
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer


@pytest.mark.parametrize(
    ("task", "sizes", "sides"),
    [
        ("translation", PAIR_SIZES, 2),
        ("language-model", TEXT_SIZES, 1),
        ("masked-lm", TEXT_SIZES, 1),
        ("classification", LABELED_SIZES, 1),
    ],
)
def test_more_text_has_larger_model_and_fewer_epochs(task, sizes, sides):
    parameters = []
    for size in sizes:
        n_bytes, data = min(size.max_bytes, 1e11), {"train": ["a"], "valid_fraction": 0.1}
        recipe = validate_recipe(propose_recipe(DataSummary(task, data, 1000, int(n_bytes), [80] * 1000)))
        model, train = recipe.model, recipe.train
        parameters.append(model.n_layers * model.d_model**2)
        epochs = train.steps * train.max_tokens / (n_bytes / 4 / sides)
        assert epochs == pytest.approx(size.epochs, rel=0.06)
        assert train.schedule.options["warmup"] < train.steps / 2 and train.eval_every <= train.steps
        assert recipe.data.max_len >= 80 / 4 * 1.5
    assert parameters == sorted(parameters)


SLOW_WORDS = [pytest.param(f"stories.txt{end}", marks=pytest.mark.slow) for end in ("", " task=masked-lm")]


@pytest.mark.parametrize("words", ["train.en train.de", "a.csv data.text=review", *SLOW_WORDS])
def test_proposed_recipe_trains(words, workdir, cli):
    write_lines("train.en", "train.de", lines=SENTENCES * 3)
    write_lines("stories.txt", lines=SENTENCES * 5)
    write_table("a.csv", REVIEWS)
    command = ["init", *words.split(), "train.seed=7"]
    expected = cli(*command).out
    assert "mine.yaml; train it: polyhead train mine.yaml" in cli(*command, "--output", "mine.yaml").err
    assert Path("mine.yaml").read_text() == expected
    assert load_recipe("mine.yaml").train.seed == 7
    cli("train", "mine.yaml", "train.steps=2", "train.max_tokens=256", "train.threads=1")
    assert Path("runs/mine/model.safetensors").is_file()


def summary_of(task, size=10**7):
    return DataSummary(task, {"train": ["a"], "valid_fraction": 0.1}, 1000, size, [80] * 1000)


def test_proposals_follow_from_the_settings():
    summary = summary_of("translation", 10**6)
    default = propose_recipe(summary)["train"]

    def propose_train(**keys):
        return propose_recipe(summary, {f"train.{key}": value for key, value in keys.items()})["train"]

    assert propose_train(max_tokens=4 * 2048)["steps"] == pytest.approx(default["steps"] / 4, rel=0.05)
    short = propose_train(steps=3)
    assert (short["steps"], short["eval_every"], short["schedule"]["warmup"]) == (3, 3, 2)
    epochs = propose_train(epochs=3)
    assert "steps" not in epochs and epochs["schedule"]["warmup"] < default["schedule"]["warmup"]
    assert propose_train(steps="many") == default  # which the recipe refuses
    wide = propose_recipe(summary, {"model.d_model": 512})
    assert (wide["train"]["lr"], wide["model"]["d_ff"]) == (0.0007, 2048)
    assert propose_recipe(summary, {"model.preset": "base"})["model"] == {}
    assert not {"tokenizer", "model"} & propose_recipe(summary, {"init_from.run": "runs/a"}).keys()


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({}, (0.006, 0.004)),
        ({"train.optimizer": "muon"}, (0.006, 0.004)),
        ({"train.optimizer": "adamw"}, (0.002, 0.001)),
        ({"train.optimizer": {"name": "adamw", "beta1": 0.8}}, (0.002, 0.001)),
        ({"train.optimizer.name": "adamw"}, (0.002, 0.001)),
    ],
)
def test_learning_rate_is_that_of_the_optimizer(settings, rates):
    """That of Muon is too high for AdamW."""
    summaries = (summary_of("language-model"), summary_of("masked-lm"))
    assert tuple(propose_recipe(summary, settings)["train"]["lr"] for summary in summaries) == rates


def test_recipe_that_is_initialised_from_a_run_trains(workdir, cli):
    write_lines("a.txt", lines=SENTENCES * 5)
    for name, override in (("first", "model.preset=tiny"), ("second", "init_from=runs/first")):
        cli("init", "a.txt", override, "train.steps=2", "--output", f"{name}.yaml")
        cli("train", f"{name}.yaml", "train.threads=1", "train.max_tokens=256")
    assert "a pretrained model learns answers best" not in Path("second.yaml").read_text()
    refusal = ("data.train=b.txt", "data.train is set from the files, a.txt: remove the key")
    for key, message in (refusal, ("data.valid=b.txt", "data.valid: no file 'b.txt'")):
        assert message in cli.error("init", "a.txt", key)


@pytest.mark.parametrize(("tokens", "chat"), [(["<|im_start|>", "<|im_end|>"], "chatml"), ([], "plain")])
def test_chat_has_format_and_max_len_of_run(tokens, chat, workdir, cli):
    tokenizer = train_tokenizer(SENTENCES, Choice("bpe"), 300)
    tokenizer._inner.add_special_tokens(tokens)
    sizes = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 96}
    Run(build(ModelConfig(kind="decoder", **sizes)), tokenizer, GenerationConfig()).save("writer")
    file = write_table("talks.jsonl", CONVERSATIONS)
    cli("init", file, "init_from=writer", "--output", "mine.yaml")
    recipe = load_recipe("mine.yaml")
    assert (recipe.generation.chat.name, recipe.data.max_len) == (chat, 96)
    cli("train", "mine.yaml", "train.steps=2", "train.epochs=null")
    tree = propose_recipe(inspect_data([file], {}), {"init_from": "HuggingFaceTB/SmolLM2-135M"})
    assert (tree["generation"]["chat"], tree["data"]["max_len"]) == ("chatml", 512)


@pytest.mark.parametrize("task", ["dpo", "kto"])
def test_preferences_are_recognised(task, workdir, cli):
    tokenizer = train_tokenizer(SENTENCES, Choice("bpe"), 300)
    sizes = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 96}
    Run(build(ModelConfig(kind="decoder", **sizes)), tokenizer, GenerationConfig()).save("writer")
    answers = {"dpo": {"chosen": "a dog", "rejected": "a cat"}, "kto": {"completion": "a dog", "label": True}}
    rows = [{"prompt": f"{sentence} ", **answers[task]} for sentence in SENTENCES[:40]]
    file = write_table("answers.jsonl", rows)
    cli("init", file, "init_from=writer", "--output", "mine.yaml")
    recipe = load_recipe("mine.yaml")
    assert (recipe.task.name, recipe.train.best_metric, recipe.data.max_len) == (task, "accuracy", 96)
    cli("train", "mine.yaml", "train.steps=2", "train.epochs=null")
