"""Services of tiny models for tests of their page, one for each kind, started when first used."""

import json
import re
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp

from tests.serve.conftest import build_run, serve_run

from polyhead import Choice, ModelConfig, build
from polyhead.config.model import ANSWER_LABELS, QUESTION_ANSWERING
from polyhead.config.recipe import Recipe
from polyhead.run.run import Run
from polyhead.run.run_examples import write_examples
from polyhead.serve.model_card import everyday_samples
from polyhead.tokenizers.languages import with_languages
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import Tokenizer as RustTokenizer


def with_recipe(run, task, **data):
    """The run with a recipe as if trained by it; the files of the recipe may be missing."""
    data = {"train": ["nowhere.tsv"], "valid": ["nowhere.tsv"], "max_len": 40, **data}
    run.recipe = Recipe.model_validate({"task": task, "data": data, "train": {"steps": 1}})
    run.directory = Path(mkdtemp())
    sentences, n = everyday_samples(run.tokenizer, "en"), 1 + (task == "translation" or "text" in data)
    write_examples(run.directory, [(*a, *b)[:n] for a, b in zip(sentences, sentences[::-1], strict=True)])
    return run


def make_multilingual_run():
    """A translator between English and German; the default direction is English to German."""
    run = build_run("encoder-decoder")
    rust_tokenizer = RustTokenizer.from_str(run.tokenizer._inner.to_str())
    rust_tokenizer.add_special_tokens(["__de__", "__en__"])
    tokenizer = Tokenizer(rust_tokenizer, run.tokenizer.roles)
    config = run.config.model_dump() | {"vocab_size": tokenizer.vocab_size}
    tokenizer = tokenizer.with_seq2seq_template(with_languages(tokenizer, "en", "de"))
    return Run(build(ModelConfig.model_validate(config), seed=1), tokenizer, run.generation)


def make_chat_run():
    run = build_run("decoder", max_len=200)
    return Run(run.model, run.tokenizer, run.generation.model_copy(update={"chat": Choice("plain")}))


TAGGER = {"labels": ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"), "problem_type": "token_classification"}
ANSWERER = {"labels": ANSWER_LABELS, "problem_type": QUESTION_ANSWERING}
EN_ZH = {"source_lang": "en", "target_lang": "zh"}
MODELS = {
    "translator": lambda: with_recipe(build_run("encoder-decoder", n_layers=2), "translation", **EN_ZH),
    "languages": make_multilingual_run,
    "language model": lambda: build_run("decoder"),
    "chat": make_chat_run,
    "classifier": lambda: with_recipe(build_run("classifier"), "classification"),
    "pairs": lambda: with_recipe(build_run("classifier"), "classification", text=["a", "b"]),
    "spans": lambda: with_recipe(build_run("encoder", **TAGGER), "token-classification"),
    "answers": lambda: with_recipe(
        build_run("encoder", **ANSWERER), "question-answering", text=["question", "context"], label="answers"
    ),
    "reranker": lambda: build_run("classifier", labels=("score",), max_len=96),
    "masked": lambda: build_run("encoder"),
    "vectors": lambda: build_run("encoder", lm_head=False),
}


@contextmanager
def run_services():
    """A function from a key of ``MODELS`` to its service; all are stopped at the end."""
    services = {}
    with ExitStack() as stack:

        def get_service(name):
            if name not in services:
                services[name] = stack.enter_context(serve_run(MODELS[name]()))
            return services[name]

        yield get_service


def read_request(page):
    """The path and body of the command under "The same request from a program"."""
    command = page.locator(".program pre").text_content()
    match = re.fullmatch(r"curl http://[^/]+(/\S+) -H '[^']+' -d '(.*)'", command, re.DOTALL)
    assert match is not None, command
    return match[1], json.loads(match[2].replace("'\\''", "'"))


def get_panel(page):
    """The open tool."""
    return page.locator("#tools > section:visible").first


def press(page, name):
    """Press a button of the open tool, and wait until its work is done."""
    panel = get_panel(page)
    panel.get_by_role("button", name=name, exact=True).first.click()
    panel.locator(".button.main:enabled").wait_for()


def process_file(page, path):
    """Open a file in the tool; the text of the file that it offers as a download."""
    get_panel(page).locator("input[type=file]").set_input_files(path)
    with page.expect_download() as download:
        get_panel(page).locator("a[download]").click()
    return Path(download.value.path()).read_text(encoding="utf-8")
