"""What a newcomer types first in Python and is not right: one line says what is wanted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import polyhead as ph
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelSpec
from polyhead.config.recipe import Recipe, load_recipe
from polyhead.core.errors import UserError
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

KEYS: dict[str, Any] = {
    "vocab_size": 300,
    "d_model": 16,
    "n_heads": 2,
    "n_layers": 1,
    "d_ff": 32,
    "max_len": 32,
}
WRONG: Any = None


def run(kind: str) -> Run:
    tokenizer = train_tokenizer(["a dog barks ."] * 5, ph.Choice("bpe"), 300)
    return Run(ph.build(KEYS | {"kind": kind}, seed=1), tokenizer, GenerationConfig())


def test_a_mapping_builds_what_its_config_does() -> None:
    ours, theirs = ph.build(KEYS, seed=3), ph.build(ph.ModelConfig(**KEYS), seed=3)
    assert ours.config == theirs.config
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)


CONFIG = "estimate wants a Recipe, the file of one, or a ModelConfig, got "
OPENED = "load wants the directory of a run or owner/name on a hub, or a list of them, got "


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ph.build({"vocab_size": 3, "hidden_size": 4}), "hidden_size: unknown key; did you mean 'd_model'?"),
        (lambda: ph.build({"d_model": 8}), "vocab_size: missing; it has no default"),
        (lambda: ph.build(WRONG), "build wants a ModelConfig, or its keys as a mapping, got NoneType"),
        (lambda: ph.build("gpt2"), "build wants a ModelConfig; 'gpt2' becomes one as ModelConfig(preset='gpt2', vocab_size=...)"),
        (lambda: ph.build("mine"), "build wants a ModelConfig; 'mine' is none"),
        (lambda: ph.build(ModelSpec()), "build wants a ModelConfig; the model of a recipe becomes one by with_vocabulary(vocab_size)"),
        (lambda: ph.build(KEYS, seed="x"), "seed is 'x'; wanted a whole number"),
        (lambda: ph.build(KEYS, seed=2**64), f"seed is {2**64}; wanted one that has 64 bits"),
        (lambda: ph.load(WRONG), f"{OPENED}null"),
        (lambda: ph.load(3), f"{OPENED}3"),
        (lambda: ph.load([None]), f"{OPENED}[None]"),
        (lambda: ph.load({"a": 1}), f"{OPENED}{{'a': 1}}"),
        (lambda: ph.load([]), "no run is given"),
        (lambda: ph.estimate(WRONG), f"{CONFIG}NoneType"),
        (lambda: ph.estimate(KEYS), f"{CONFIG}dict; ModelConfig(**mapping) makes one"),
        (lambda: ph.estimate(ph.build(KEYS)), f"{CONFIG}Seq2Seq; give its config"),
        (lambda: ph.estimate(run("decoder")), f"{CONFIG}Run; give its recipe or its config"),
        (lambda: ph.estimate("gpt2"), "'gpt2' is the name of a model; for its plan give ModelConfig(preset='gpt2', vocab_size=...)"),
        (lambda: ph.estimate(ph.ModelConfig(**KEYS), rows="x"), "rows is 'x'; wanted a whole number, 1 or more"),
        (lambda: ph.estimate(ph.ModelConfig(**KEYS), rows=0), "rows is 0; wanted a whole number, 1 or more"),
        (lambda: ph.estimate(ph.ModelConfig(**KEYS), length=1.5), "length is 1.5; wanted a whole number, 1 or more"),
        (lambda: ph.estimate(ph.ModelConfig(**KEYS), context=True), "context is true; wanted a whole number"),
        (lambda: ph.estimate(ph.ModelConfig(**KEYS), tokens=-3), "tokens is -3; wanted a number above 0, as 300e9"),
        (lambda: ph.estimate(ph.ModelConfig(**KEYS), decode_rows=3), "decode_rows is 3; wanted a list of whole numbers, 1 or more, as [1, 32]"),
        (lambda: ph.ModelConfig(), "vocab_size: missing; it has no default"),
        (lambda: ph.ModelConfig("gpt2"), "ModelConfig takes its keys by name, got 'gpt2'; a mapping of them is given as ModelConfig(**mapping)"),
        (lambda: Recipe({}), "Recipe takes its keys by name, got {}; a mapping of them is given as Recipe(**mapping)"),
        (lambda: setattr(ph.ModelConfig(**KEYS), "d_model", 8), "d_model: a ModelConfig is frozen; make another"),
        (lambda: ph.Choice({"name": "rope"}), "Choice wants the name of a part, got {'name': 'rope'}; its options are given by name, as Choice('rope', theta=5e5)"),
        (lambda: load_recipe({"a": 1}), "wanted the file of a recipe, got {'a': 1}; Recipe(**mapping) is one of keys"),
        (lambda: load_recipe("recipes/trec.yaml", "train.lr=3"), "changes are a list of texts, got one; write ['train.lr=3']"),
        (lambda: run("decoder").generate(["a"], n="x"), "n is 'x'; wanted a whole number"),
        (lambda: run("decoder").generate(["a"], n=1.5, beam_size=2), "n is 1.5; wanted a whole number"),
        (lambda: run("decoder").generate(["a"], seed="x"), "seed is 'x'; wanted a whole number"),
        (lambda: run("encoder").fill_mask(["a <mask>"], top_k="x"), "top is 'x'; wanted a whole number"),
        (
            lambda: run("decoder").measure_perplexity("a.txt"),
            "wanted a text that polyhead.data.readers.plain_text.open_text opens, got 'a.txt'; run.perplexity([...]) is of texts as they are",
        ),
    ],
)  # fmt: skip
def test_what_is_wanted_is_said(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(said)}$"):
        make()


def test_a_run_is_saved_where_a_text_says(tmp_path: Path) -> None:
    run("encoder-decoder").save(str(tmp_path / "mine"), "# facts\n")
    assert ph.load(str(tmp_path / "mine")).translate(["a dog"], beam_size=1)
