"""From files to a recipe: what is found in them, what is proposed, and that it trains."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.autoconfig.propose_recipe_helpers import TALKS, table
from tests.autoconfig.propose_recipe_helpers import plain as plain

from polyhead.autoconfig.inspect_data import DataSummary, inspect_data
from polyhead.autoconfig.propose_recipe import propose_recipe
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.models import build
from polyhead.run.recipe import load_recipe
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

WORDS = "the cat a dog sees bites and loves no bird that sings here".split()  # noqa: SIM905
DRAWN = random.Random(1)
SENTENCES = [" ".join(DRAWN.choices(WORDS, k=6)) for _ in range(60)]
LABELS = ["good" if i % 3 else "bad" for i in range(60)]


REVIEWS = [{"id": i, "review": s, "stars": k} for i, (s, k) in enumerate(zip(SENTENCES, LABELS, strict=True))]


@pytest.mark.parametrize(
    "typed",
    [
        ["train.en", "train.de"],
        ["stories.txt"],
        ["stories.txt", "task=masked-lm"],
        ["a.csv", "data.text=review"],
    ],
)
def test_what_is_proposed_can_be_trained(typed, plain, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain(train_en=SENTENCES * 3, train_de=SENTENCES * 3, stories_txt=SENTENCES * 30)
    table(tmp_path, "a.csv", REVIEWS)
    assert main(["init", *typed, "train.seed=7"]) == 0
    said = capsys.readouterr().out
    assert main(["init", *typed, "train.seed=7", "--output", "mine.yaml"]) == 0
    assert Path("mine.yaml").read_text() == said
    assert "mine.yaml; train it: polyhead train mine.yaml" in capsys.readouterr().err
    assert load_recipe("mine.yaml").train.seed == 7
    assert main(["train", "mine.yaml", "train.steps=2", "train.max_tokens=1024", "train.threads=1"]) == 0
    assert (tmp_path / "runs" / "mine" / "model.safetensors").is_file()


def test_what_is_proposed_gives_way_to_what_is_given():
    pairs = DataSummary("translation", {"train": ["a"], "valid_fraction": 0.1}, 1000, 10**6, [80] * 1000)
    whole = propose_recipe(pairs)

    def train(**keys: Any) -> Any:
        return propose_recipe(pairs, {f"train.{key}": value for key, value in keys.items()})["train"]

    assert train(max_tokens=4 * 2048)["steps"] == pytest.approx(whole["train"]["steps"] / 4, rel=0.05)
    few = train(steps=3)
    assert (few["steps"], few["eval_every"], few["schedule"]["warmup"]) == (3, 3, 2)
    passes = train(epochs=3)
    assert "steps" not in passes and passes["schedule"]["warmup"] < whole["train"]["schedule"]["warmup"]
    assert train(steps="many") == whole["train"]  # which the recipe refuses
    wide = propose_recipe(pairs, {"model.d_model": 512})
    assert (wide["train"]["lr"], wide["model"]["d_ff"]) == (0.0007, 2048)
    assert propose_recipe(pairs, {"model.preset": "base"})["model"] == {}
    started = propose_recipe(pairs, {"init_from.run": "runs/a"})
    assert not {"tokenizer", "model"} & started.keys()


def test_the_rate_is_that_of_the_optimizer_that_is_given():
    """What suits Muon is too much for AdamW."""
    plain = DataSummary("language-model", {"train": ["a"], "valid_fraction": 0.1}, 1000, 10**7, [80] * 1000)
    hidden = DataSummary("masked-lm", {"train": ["a"], "valid_fraction": 0.1}, 1000, 10**7, [80] * 1000)

    def rate(found: DataSummary, **keys: Any) -> Any:
        return propose_recipe(found, {key.replace("_", "."): value for key, value in keys.items()})["train"][
            "lr"
        ]

    assert (
        (rate(plain), rate(hidden)) == (0.006, 0.004) == (rate(plain, train_optimizer="muon"), rate(hidden))
    )
    for given in ({"train_optimizer": "adamw"}, {"train_optimizer": {"name": "adamw", "beta1": 0.8}}):
        assert (rate(plain, **given), rate(hidden, **given)) == (0.002, 0.001)
    assert rate(plain, train_optimizer_name="adamw") == 0.002


def test_a_recipe_that_begins_with_a_run_can_be_trained(plain, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain(a_txt=SENTENCES * 30)
    for name, keys in (("first", ["model.preset=tiny"]), ("then", ["init_from=runs/first"])):
        assert main(["init", "a.txt", *keys, "train.steps=2", "--output", f"{name}.yaml"]) == 0
        assert main(["train", f"{name}.yaml", "train.threads=1"]) == 0
    assert "a pretrained model learns answers best" not in Path("then.yaml").read_text()
    for key, message in (
        ("data.train=b.txt", "data.train is set from the files, a.txt: remove the key"),
        ("data.valid=b.txt", "data.valid: no file 'b.txt'"),
    ):
        capsys.readouterr()
        assert main(["init", "a.txt", key]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(("special", "chat"), [(["<|im_start|>", "<|im_end|>"], "chatml"), ([], "plain")])
def test_a_conversation_is_of_the_format_and_the_length_of_its_start(special, chat, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer = train_tokenizer(SENTENCES, Choice("bpe"), 300)
    tokenizer._inner.add_special_tokens(special)
    sizes = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 96}
    Run(build(ModelConfig(kind="decoder", **sizes)), tokenizer, GenerationConfig()).save("writer")
    talks = table(tmp_path, "talks.jsonl", TALKS)
    assert main(["init", talks, "init_from=writer", "--output", "mine.yaml"]) == 0
    recipe = load_recipe("mine.yaml")
    assert recipe.generation.chat is not None
    assert (recipe.generation.chat.name, recipe.data.max_len) == (chat, 96)
    assert main(["train", "mine.yaml", "train.steps=2", "train.epochs=null"]) == 0
    found = propose_recipe(
        inspect_data([talks], {"root": tmp_path}), {"init_from": "HuggingFaceTB/SmolLM2-135M"}
    )
    assert (found["generation"]["chat"], found["data"]["max_len"]) == ("chatml", 512)
