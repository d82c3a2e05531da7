"""How well a language model predicts text."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from polyhead.cli.measures.lines import Split, no_files, show
from polyhead.data.text import open_text
from polyhead.run import Run
from polyhead.train.tasks.plain_text import text_of


def measure(run: Run, files: Sequence[str], split: Split) -> None:
    """The table of a language model."""
    if run.recipe and not files:
        if split == "test" and not run.recipe.data.test:
            raise no_files(split, "FILE", run)
        text = text_of(run.recipe, split)
    elif not files:
        raise no_files(split, "FILE", run)
    else:
        text = open_text([Path(file) for file in files], run.recipe.data.documents if run.recipe else "file")
    start = time.perf_counter()
    measured = run.measure(text)
    seconds = time.perf_counter() - start
    if measured.broken:
        print(f"polyhead: {text.where}: skipped {measured.broken:,} lines that are no text", file=sys.stderr)
    show("loss", measured.loss, f"nats of a token, {measured.tokens:,} tokens")
    show("perplexity", measured.per_token, "of a token, which depends on the tokenizer")
    show("word-ppl", measured.per_word, f"of a word, {measured.words:,} with the ends of lines")
    show("bits", measured.bits_per_character, f"of a character, {measured.characters:,} characters")
    show("speed", measured.tokens / seconds, f"tokens a second, in {seconds:,.1f} s with the tokenizer")
