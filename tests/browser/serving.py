"""Services of tiny models for tests of their page, one for each kind, started when a test first opens it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.serve.conftest import Live, living, make

from polyhead import Choice, ModelConfig, build
from polyhead.config.recipe import Recipe
from polyhead.run.run import Run
from polyhead.tokenizers.languages import with_languages
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import Tokenizer as Inner


def with_recipe(run: Run, task: str, **data: Any) -> Run:
    """The run as if it had been trained by a recipe, whose files may not be there."""
    files = {"train": ["nowhere.tsv"], "valid": ["nowhere.tsv"], "max_len": 40}
    run.recipe = Recipe.model_validate({"task": task, "data": {**files, **data}, "train": {"steps": 1}})
    return run


def of_languages() -> Run:
    """A translator between English and German that settles on English to German."""
    run = make("encoder-decoder")
    inner = Inner.from_str(run.tokenizer._inner.to_str())
    inner.add_special_tokens(["__de__", "__en__"])
    config = ModelConfig.model_validate(
        run.config.model_dump() | {"vocab_size": run.tokenizer.vocab_size + 2}
    )
    tokenizer = Tokenizer(inner, run.tokenizer._roles)
    template = with_languages(tokenizer, "en", "de")
    return Run(build(config, seed=1), tokenizer.with_seq2seq_template(template), run.generation)


def chatting() -> Run:
    run = make("decoder", max_len=200)
    return Run(run.model, run.tokenizer, run.generation.model_copy(update={"chat": Choice("plain")}))


MODELS: dict[str, Callable[[], Run]] = {
    "translator": lambda: with_recipe(
        make("encoder-decoder", n_layers=2), "translation", source_lang="en", target_lang="zh"
    ),
    "languages": of_languages,
    "language model": lambda: make("decoder"),
    "chat": chatting,
    "classifier": lambda: with_recipe(make("classifier"), "classification"),
    "pairs": lambda: with_recipe(make("classifier"), "classification", text=["a", "b"]),
    "reranker": lambda: make("classifier", labels=("score",), max_len=96),
    "masked": lambda: make("encoder"),
    "vectors": lambda: make("encoder", lm_head=False),
}


@contextmanager
def live_services() -> Iterator[Callable[[str], Live]]:
    """A function from a key of ``MODELS`` to its service; all are stopped at the end."""
    started: dict[str, Live] = {}
    with ExitStack() as stack:

        def service(name: str) -> Live:
            if name not in started:
                started[name] = stack.enter_context(living(MODELS[name]()))
            return started[name]

        yield service


def request_shown(page: Any) -> tuple[str, Any]:
    """The path and body of the command under "The same from a program"."""
    command = page.locator(".program pre").text_content()
    found = re.fullmatch(r"curl http://[^/]+(/\S+) -H '[^']+' -d '(.*)'", command, re.DOTALL)
    assert found is not None, command
    return found[1], json.loads(found[2].replace("'\\''", "'"))


def press(page: Any, name: str) -> None:
    """Press a button of the open tool, and wait until its work is done."""
    panel = page.locator("#tools > section:visible").first
    panel.get_by_role("button", name=name, exact=True).first.click()
    panel.locator(".button.main:enabled").wait_for()


def open_file(page: Any, path: Path) -> str:
    """Give a file to the open tool; the text of the file that it offers then."""
    panel = page.locator("#tools > section:visible").first
    panel.locator("input[type=file]").set_input_files(path)
    with page.expect_download() as download:
        panel.locator("a[download]").click()
    return str(Path(download.value.path()).read_text(encoding="utf-8"))
