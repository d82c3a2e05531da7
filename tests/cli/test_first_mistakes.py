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
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.run.recipe import load_recipe
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


CONFIG = "estimate expects a Recipe, a recipe file or a ModelConfig, got "
OPENED = "load expects a run directory or owner/name on a hub, or a list of them, got "


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ph.build({"vocab_size": 3, "hidden_size": 4}), "hidden_size: unknown key; did you mean "
            "'d_model'?"),
        (lambda: ph.build({"d_model": 8}), "vocab_size: missing; this key has no default"),
        (lambda: ph.build(WRONG), "build expects a ModelConfig, or a mapping of its keys, got NoneType"),
        (lambda: ph.build("gpt2"), "build expects a ModelConfig; 'gpt2' is the name of a preset: use "
                "ModelConfig(preset='gpt2', vocab_size=...)"),
        (lambda: ph.build("mine"), "build expects a ModelConfig; got 'mine'"),
        (lambda: ph.build(ModelSpec()), "build expects a ModelConfig; convert the model section of a recipe "
                                        "with "
                "with_vocabulary(vocab_size)"),
        (lambda: ph.build(KEYS, seed="x"), "seed is 'x'; expected an integer"),
        (lambda: ph.build(KEYS, seed=2**64), f"seed is {2**64}; expected a 64-bit integer"),
        (lambda: ph.load(WRONG), f"{OPENED}null"),
        (lambda: ph.load(3), f"{OPENED}3"),
        (lambda: ph.load([None]), f"{OPENED}[None]"),
        (lambda: ph.load({"a": 1}), f"{OPENED}{{'a': 1}}"),
        (lambda: ph.load([]), "no runs"),
        (lambda: ph.estimate(WRONG), f"{CONFIG}NoneType"),
        (lambda: ph.estimate(KEYS), f"{CONFIG}dict; use ModelConfig(**mapping)"),
        (lambda: ph.estimate(ph.build(KEYS)), f"{CONFIG}Seq2Seq; pass its config"),
        (lambda: ph.estimate(run("decoder")), f"{CONFIG}Run; pass its recipe or its config"),
        (lambda: ph.estimate("gpt2"), "'gpt2' is the name of a model; to estimate it pass "
                                      "ModelConfig(preset='gpt2', "
                "vocab_size=...)"),
        (lambda: ph.estimate(ph.ModelConfig(**KEYS), batch_size="x"), "batch_size is 'x'; expected an "
            "integer, 1 or more"),
        (lambda: ph.estimate(ph.ModelConfig(**KEYS), batch_size=0), "batch_size is 0; expected an integer, "
            "1 or more"),
        (lambda: ph.estimate(ph.ModelConfig(**KEYS), seq_len=1.5), "seq_len is 1.5; expected an integer, 1 "
            "or more"),
        (lambda: ph.estimate(ph.ModelConfig(**KEYS), context_len=True), "context_len is true; expected an "
            "integer"),
        (lambda: ph.estimate(ph.ModelConfig(**KEYS), train_tokens=-3), "train_tokens is -3; expected a "
            "number above 0, e.g. 300e9"),
        (lambda: ph.estimate(ph.ModelConfig(**KEYS), decode_batch=3), "decode_batch is 3; expected a list "
            "of integers, 1 or more, e.g. [1, 32]"),
        (lambda: ph.ModelConfig(), "vocab_size: missing; this key has no default"),
        (lambda: ph.ModelConfig("gpt2"), "ModelConfig takes keyword arguments only, got 'gpt2'; for a "
                                         "mapping write "
                "ModelConfig(**mapping)"),
        (lambda: Recipe({}), "Recipe takes keyword arguments only, got {}; for a mapping write "
                             "Recipe(**mapping)"),
        (lambda: setattr(ph.ModelConfig(**KEYS), "d_model", 8), "d_model: a ModelConfig is frozen; create a "
            "new one"),
        (lambda: ph.Choice({"name": "rope"}), "Choice expects the name of a component, got {'name': "
                                              "'rope'}; pass options by name, e.g. "
                "Choice('rope', theta=5e5)"),
        (lambda: load_recipe({"a": 1}), "expected a recipe file, got {'a': 1}; for a mapping use "
                                        "Recipe(**mapping)"),
        (lambda: load_recipe("recipes/trec.yaml", "train.lr=3"), "expected a list of overrides, got one "
            "string; write ['train.lr=3']"),
        (lambda: run("decoder").generate(["a"], n="x"), "n is 'x'; expected an integer"),
        (lambda: run("decoder").generate(["a"], n=1.5, beam_size=2), "n is 1.5; expected an integer"),
        (lambda: run("decoder").generate(["a"], seed="x"), "seed is 'x'; expected an integer"),
        (lambda: run("encoder").fill_mask(["a <mask>"], top_k="x"), "top_k is 'x'; expected an integer"),
        (
            lambda: run("decoder").measure_perplexity("a.txt"),
            "expected a text opened by polyhead.data.readers.plain_text.open_text, got 'a.txt'; "
                    "for strings use run.perplexity([...])",
        ),
    ],
)  # fmt: skip
def test_what_is_wanted_is_said(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(said)}$"):
        make()


def test_a_run_is_saved_where_a_text_says(tmp_path: Path) -> None:
    run("encoder-decoder").save(str(tmp_path / "mine"), "# facts\n")
    assert ph.load(str(tmp_path / "mine")).translate(["a dog"], beam_size=1)
