"""How well a language model predicts text."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from polyhead.cli.measures.lines import Split, column, no_files, show
from polyhead.core.i18n import tr
from polyhead.errors import UserError
from polyhead.run import Run
from polyhead.train.tasks.plain_text import text_in, text_of


def measure(run: Run, files: Sequence[str], split: Split, *, text: Sequence[str] = ()) -> None:
    """The table of a language model; ``text`` are columns of tables, if not those that the recipe names."""
    if text and not files:
        raise UserError("--text is a column of files that are given: polyhead eval RUN FILE --text COLUMN")
    if run.recipe and not files:
        if split == "test" and not run.recipe.data.test:
            raise no_files(split, "FILE", run)
        given = text_of(run.recipe, split)
    elif not files:
        raise no_files(split, "FILE", run)
    else:
        given = text_in([Path(file) for file in files], run.recipe, [column(one) for one in text])
    start = time.perf_counter()
    measured = run.measure(given)
    seconds = time.perf_counter() - start
    if measured.broken:
        skipped = tr(
            "{file}: skipped {count:,} lines that are no text or too long",
            file=given.where,
            count=measured.broken,
        )
        print(f"polyhead: {skipped}", file=sys.stderr)
    tokens, words, characters = measured.tokens, measured.words, measured.characters
    show(tr("loss"), measured.loss, tr("nats of a token, {count:,} tokens", count=tokens))
    show(tr("perplexity"), measured.per_token, tr("of a token, which depends on the tokenizer"))
    show(tr("word-ppl"), measured.per_word, tr("of a word, {count:,} with the ends of lines", count=words))
    show(
        tr("bits"), measured.bits_per_character, tr("of a character, {count:,} characters", count=characters)
    )
    remark = tr("tokens a second, in {seconds:,.1f} s with the tokenizer", seconds=seconds)
    show(tr("speed"), tokens / seconds, remark)
