"""How well a language model predicts text."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from polyhead.analysis.perplexity import Perplexity
from polyhead.cli.measures.lines import Split, column, no_files, say_verdict, show, training_tokens
from polyhead.core.i18n import tr
from polyhead.data.text import Text
from polyhead.errors import UserError
from polyhead.evaluate.baselines import Baselines, unigram_baselines
from polyhead.run import Run
from polyhead.train.tasks.plain_text import asked_in, text_in, text_of


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
    values = {
        "loss": measured.loss,
        "ppl": measured.per_token,
        "word_ppl": measured.per_word,
        "bits_per_char": measured.bits_per_character,
    }
    baselines = text_baselines(run, given, measured)
    tokens, words, characters = measured.tokens, measured.words, measured.characters
    lines = [
        (tr("loss"), tr("nats of a token, {count:,} tokens", count=tokens)),
        (tr("perplexity"), tr("of a token, which depends on the tokenizer")),
        (tr("word-ppl"), tr("of a word, {count:,} with the ends of lines", count=words)),
        (tr("bits"), tr("of a character, {count:,} characters", count=characters)),
    ]
    for (name, value), line in zip(values.items(), lines, strict=True):
        show(line[0], value, line[1], baselines.get(name))
    say_verdict(run, values, baselines)
    remark = tr("tokens a second, in {seconds:,.1f} s with the tokenizer", seconds=seconds)
    show(tr("speed"), tokens / seconds, remark)


def text_baselines(run: Run, given: Text, measured: Perplexity) -> Baselines:
    """Those of token frequencies; none where the run directory does not tell them."""
    counts = training_tokens(run)
    if counts is None:
        return {}
    return unigram_baselines(counts, asked_in(given, run.tokenizer), measured.words, measured.characters)
