"""Mistakes of newcomers in Python: one line names what is expected."""

import re

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

KEYS = {"vocab_size": 300, "d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 32}
CONFIG = ph.ModelConfig(**KEYS)


def make_run(kind):
    tokenizer = train_tokenizer(["a dog barks ."] * 5, ph.Choice("bpe"), 300)
    return Run(ph.build(KEYS | {"kind": kind}, seed=1), tokenizer, GenerationConfig())


def test_mappings_and_text_paths_are_accepted(tmp_path):
    a, b = ph.build(KEYS, seed=3), ph.build(CONFIG, seed=3)
    assert a.config == b.config
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    make_run("encoder-decoder").save(str(tmp_path / "mine"), "# facts\n")
    assert ph.load(str(tmp_path / "mine")).translate(["a dog"], beam_size=1)


BUILD = "build expects a ModelConfig"
ESTIMATE = "estimate expects a Recipe, a recipe file or a ModelConfig, got "
LOAD = "load expects a run directory or owner/name on a hub, or a list of them, got "
INTEGER = "expected an integer"
OPEN_TEXT = "expected a text opened by polyhead.data.readers.plain_text.open_text"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ph.train(""), "recipe is empty; expected a path"),
        (lambda: ph.train("task: chat\n"), "'task: chat\\n': expected the path of a recipe, not its text"),
        (lambda: ph.train("recipes/trec.yaml", resume=1), "resume is 1; expected true or false"),
        (
            lambda: ph.train("recipes/trec.yaml", steps=1),
            "steps: unknown key; known: recipe, resume, quiet; keys",
        ),
        (lambda: ph.train("recipe/trec.yaml"), "recipe/trec.yaml: no such file; did you mean 'recipes/trec"),
        (
            lambda: ph.load("recipes/trec.yaml"),
            "recipes/trec.yaml is a recipe; expected a run directory: train it first: "
            "ph.train('recipes/trec.yaml')",
        ),
        (lambda: ph.load("LICENSE"), "LICENSE is a file; expected a run directory"),
        (lambda: ph.load("none.yaml"), "none.yaml: no such file"),
        (
            lambda: ph.load("tests"),
            "tests is not a run directory: it has no config.json; runs are created by ph.t",
        ),
        (lambda: ph.init_recipe(["a"]), "init_recipe expects names of text files, or overrides such as"),
        (
            lambda: ph.estimate("bert-bse"),
            "'bert-bse' is neither a recipe nor the name of a model; did you mean",
        ),
        (lambda: ph.estimate(CONFIG, layout=5), "layout is 5; expected a ParallelLayout"),
        (
            lambda: ph.estimate(CONFIG, batch_size=10**12),
            "batch_size x seq_len is 32,000,000,000,000; expected",
        ),
        (lambda: ph.estimate(CONFIG, train_tokens=True), "train_tokens is true; expected a number above 0"),
        (
            lambda: ph.compare("recipes/trec.yaml", seeds=10**9),
            "seeds is 1000000000; expected an integer from",
        ),
        (
            lambda: ph.compare("recipes/trec.yaml", designs={"": ["a=1"]}),
            "designs ': a=1': expected {'name': [",
        ),
        (
            lambda: load_recipe("recipes/trec.yaml", [5]),
            "override 5: expected a text, e.g. 'model.d_model=256'",
        ),
        (lambda: make_run("decoder").evaluate("a", "b"), "this requires an encoder-decoder, but the run is"),
        (lambda: make_run("decoder").generate(["a"], n=0), "n is 0; expected an integer, 1 or more"),
        (lambda: make_run("decoder").stream(["a"], refusals=5), "refusals is 5; expected a dict"),
        (
            lambda: make_run("decoder").chat(["a"]),
            "the chat format of this run is unknown or unsupported; set it with chat=: ",
        ),
        (
            lambda: make_run("encoder").embed_tokens("a"),
            "run.embed_tokens expects a list of texts, got one text",
        ),
        (lambda: make_run("encoder").attention_maps(["a"]), "source is ['a']; expected a text"),
        (lambda: make_run("encoder").save(""), "directory is empty; expected a path"),
        (lambda: make_run("encoder").save("runs/x", selection=3), "selection is 3; expected WeightSelection"),
        (lambda: make_run("encoder").replace_model(None), "model is null; expected Model"),
        (
            lambda: make_run("encoder-decoder").translate(["a"], truncate="x"),
            "truncate is 'x'; expected true",
        ),
        (lambda: ph.build(KEYS | {"hidden_size": 4}), "hidden_size: unknown key; did you mean 'd_model'?"),
        (lambda: ph.build({"d_model": 8}), "vocab_size: missing; this key has no default"),
        (lambda: ph.build(None), f"{BUILD}, or a mapping of its keys, got NoneType"),
        (lambda: ph.build("gpt2"), f"{BUILD}; 'gpt2' is the name of a preset: use"),
        (lambda: ph.build("mine"), f"{BUILD}; got 'mine'"),
        (lambda: ph.build(ModelSpec()), f"{BUILD}; convert the model section of a recipe with"),
        (lambda: ph.build(KEYS, seed="x"), f"seed is 'x'; {INTEGER}"),
        (lambda: ph.build(KEYS, seed=2**64), f"seed is {2**64}; expected a 64-bit integer"),
        (lambda: ph.load(None), f"{LOAD}null"),
        (lambda: ph.load([None]), f"{LOAD}[None]"),
        (lambda: ph.load([]), "no runs"),
        (lambda: ph.estimate(KEYS), f"{ESTIMATE}dict; use ModelConfig(**mapping)"),
        (lambda: ph.estimate(ph.build(KEYS)), f"{ESTIMATE}Seq2Seq; pass its config"),
        (lambda: ph.estimate(make_run("decoder")), f"{ESTIMATE}Run; pass its recipe or its config"),
        (lambda: ph.estimate("gpt2"), "'gpt2' is the name of a model; to estimate it pass"),
        (lambda: ph.estimate(CONFIG, batch_size="x"), f"batch_size is 'x'; {INTEGER}, 1 or more"),
        (lambda: ph.estimate(CONFIG, seq_len=0), f"seq_len is 0; {INTEGER}, 1 or more"),
        (lambda: ph.estimate(CONFIG, context_len=True), f"context_len is true; {INTEGER}"),
        (lambda: ph.estimate(CONFIG, train_tokens=-3), "train_tokens is -3; expected a number above 0,"),
        (lambda: ph.estimate(CONFIG, decode_batch=3), "decode_batch is 3; expected a list of integers, 1"),
        (lambda: ph.ModelConfig(), "vocab_size: missing; this key has no default"),
        (lambda: ph.ModelConfig("gpt2"), "ModelConfig takes keyword arguments only, got 'gpt2'; for a"),
        (lambda: Recipe({}), "Recipe takes keyword arguments only, got {}; for a mapping write"),
        (lambda: setattr(CONFIG, "d_model", 8), "d_model: a ModelConfig is frozen; create a new one"),
        (lambda: ph.Choice({"name": "rope"}), "Choice expects the name of a component, got {'name':"),
        (lambda: load_recipe({"a": 1}), "expected a recipe file, got {'a': 1}; for a mapping use"),
        (lambda: load_recipe("recipes/trec.yaml", "a"), "expected a list of overrides, got one string;"),
        (
            lambda: ph.compare("recipes/trec.yaml", budget=600),
            "budget is 600; expected a time, steps, tokens",
        ),
        (lambda: ph.compare("recipes/trec.yaml", budget="soon"), "budget 'soon': expected a time"),
        (
            lambda: ph.train("LICENSE", "README.md"),
            "LICENSE is not a recipe (a YAML file); to train on text, create a recipe first: "
            "ph.init_recipe('LICENSE', 'README.md', output='mine.yaml')",
        ),
        (
            lambda: ph.estimate("LICENSE"),
            "LICENSE is not a recipe (a YAML file); to train on text, create a recipe first: "
            "ph.init_recipe('LICENSE', output='mine.yaml')",
        ),
        (
            lambda: make_run("decoder").translate(["a"]),
            "this requires an encoder-decoder, but the run is a language model: use generate, "
            "measure_perplexity, score, embed or attention_maps",
        ),
        (lambda: make_run("decoder").generate(["a"], n="x"), f"n is 'x'; {INTEGER}"),
        (lambda: make_run("decoder").generate(["a"], seed="x"), f"seed is 'x'; {INTEGER}"),
        (lambda: make_run("encoder").fill_mask(["a <mask>"], top_k="x"), f"top_k is 'x'; {INTEGER}"),
        (lambda: make_run("decoder").measure_perplexity("a.txt"), f"{OPEN_TEXT}, got 'a.txt'; for strings"),
    ],
)
def test_message_names_what_is_expected(call, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}") as error:
        call()
    assert "\n" not in str(error.value)
