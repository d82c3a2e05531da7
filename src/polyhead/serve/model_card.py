"""Data for the web page of a model: text length limit, and example inputs.

Examples are those that the run keeps; of a model that was not trained here, everyday sentences.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, partial
from importlib.resources import files
from itertools import pairwise
from typing import NamedTuple

from polyhead.config.model import SINGLE_LABEL
from polyhead.evaluate.embed import token_limit
from polyhead.run.run import Run
from polyhead.run.run_examples import (
    MAX_SHOWN_CHARS,
    MAX_SHOWN_EXAMPLES,
    TextExample,
    choose_examples,
    read_examples,
)
from polyhead.tokenizers.languages import default_languages, normalize_language
from polyhead.tokenizers.scripts import is_unspaced_char
from polyhead.tokenizers.tokenizer import Tokenizer


class TextLimit(NamedTuple):
    """Maximum text length in training and inference: in tokens, and estimated in characters and words."""

    tokens: int
    characters: int | None = None  # None: no sample text to measure
    words: int | None = None  # None: also for a script without spaces between words


class Card(NamedTuple):
    """Initial content of the web page."""

    limit: TextLimit
    examples: list[str | list[str]]  # texts, or pairs of texts

    @classmethod
    def from_run(cls, run: Run, *, use_own_samples: bool) -> Card:
        """Measure the limit on the examples that the run keeps, or else on everyday sentences.

        The examples of the page are those of the run only with ``use_own_samples``. A run that was trained
        here may know nothing of everyday sentences: only other models, as imported ones, have them.
        """
        validation, sentences = read_examples(run.directory), _choose_everyday_samples(run)
        if run.kind == "encoder-decoder":
            validation = [example[:1] for example in validation]  # without the targets
        limit = measure_text_limit(run, validation or sentences)
        if run.kind == "question answerer":  # not cut: the answer may be in any sentence
            return cls(limit, [list(pair) for pair in validation[:MAX_SHOWN_EXAMPLES] if use_own_samples])
        shown = (use_own_samples and validation) or ([] if run.recipe else sentences)
        chosen = choose_examples(shown, min(MAX_SHOWN_CHARS, limit.characters or MAX_SHOWN_CHARS))
        return cls(limit, [example[0] if len(example) == 1 else list(example) for example in chosen])


def measure_text_limit(run: Run, samples: Sequence[TextExample]) -> TextLimit:
    """Convert the token limit to characters and words, by the rates of the samples, rounded down."""
    tokens, texts = _max_text_tokens(run), [text for sample in samples for text in sample]
    n = sum(map(len, run.tokenizer.encode(texts)))
    if not n:
        return TextLimit(tokens)
    characters = round_down(tokens * sum(map(len, texts)) // n)
    words = round_down(tokens * sum(len(text.split()) for text in texts) // n)
    return TextLimit(tokens, characters, None if is_unspaced("".join(texts)) else words)


def round_down(number: int) -> int:
    """Round down to a multiple of 5, 10 or 100, for display as an estimate; small numbers are unchanged."""
    step = next((step for upper, step in ((20, 1), (100, 5), (1000, 10)) if number < upper), 100)
    return max(1, number // step * step)


def reads_pairs(run: Run) -> bool:
    """Whether the model is a reranker, or a classifier trained on pairs of texts."""
    num_columns = len(run.recipe.data.text) if run.recipe else 0
    is_reranker = len(run.config.labels) == 1 and run.config.problem_type == SINGLE_LABEL
    return run.kind == "classifier" and (is_reranker or num_columns == 2)


def _choose_everyday_samples(run: Run) -> list[TextExample]:
    """Return sentences in the source language of the model.

    Empty if the language is unknown and one tokenizer serves both languages.
    """
    tokenizer, language = run.tokenizer, run.recipe.data.source_lang if run.recipe else ""
    if run.kind == "encoder-decoder":
        language = language or default_languages(tokenizer)["source"]
    translates = run.kind == "encoder-decoder" and (
        run.recipe is None or run.recipe.task.name == "translation"
    )
    if translates and not language and tokenizer.target_tokenizer is tokenizer:
        return []
    samples = everyday_samples(tokenizer, language)
    return [a + b for a, b in pairwise(samples)] if reads_pairs(run) else samples


def _max_text_tokens(run: Run) -> int:
    """Return the maximum number of tokens of a text, special tokens not counted."""
    limit = run.config.max_len if run.kind == "decoder" else token_limit(run.generation, run.config.max_len)
    if run.recipe is not None:
        limit = min(limit, run.recipe.data.max_len)
    if run.kind == "decoder":  # its prompts need no special tokens, and its tokenizer may have none
        return limit
    if run.kind == "encoder-decoder":
        return max(1, limit - run.tokenizer.seq2seq_template.num_special[0])
    template = run.tokenizer.template(1)
    return max(1, limit - len(template.prefix_ids) - len(template.suffix_ids))


def everyday_samples(tokenizer: Tokenizer, language: str = "") -> list[TextExample]:
    """Return sentences in ``language``, or an empty list: only a few languages have sentences.

    Without a language, it is the one that the tokenizer encodes in the fewest tokens.
    """
    sentences = _load_sentences()
    fitting = partial(max, sentences, key=lambda code: _bytes_per_token(tokenizer, sentences[code]))
    code = normalize_language(language) or fitting()
    return [(sentence,) for sentence in sentences.get(code, [])]


def is_unspaced(text: str) -> bool:
    """Whether most of the text is in a script without spaces between words."""
    return 2 * sum(map(is_unspaced_char, text)) > len(text)


@cache
def _load_sentences() -> dict[str, list[str]]:
    sentences: dict[str, list[str]] = json.loads(
        files("polyhead.serve").joinpath("examples.json").read_text("utf-8")
    )
    return sentences


def _bytes_per_token(tokenizer: Tokenizer, sentences: list[str]) -> float:
    """Mean bytes per token; 0 if the tokenizer produces unknown tokens."""
    encoded = tokenizer.encode(sentences)
    if any(tokenizer.role_ids.get("unk_token") in ids for ids in encoded):
        return 0.0
    return sum(len(sentence.encode()) for sentence in sentences) / max(1, sum(map(len, encoded)))
