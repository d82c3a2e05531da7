"""Sample texts to try a model on: validation texts of the run, or everyday sentences in its language."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.resources import files
from itertools import islice

from polyhead.config.recipe import Recipe
from polyhead.core import hub
from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError
from polyhead.data.readers.conversations import ConversationReport, open_conversations
from polyhead.data.readers.labeled import LabeledReport, open_labeled
from polyhead.data.readers.parallel_corpus import CorpusReport, open_corpus
from polyhead.data.readers.plain_text import open_text, read_text_lines
from polyhead.tokenizers.languages import normalize_language
from polyhead.tokenizers.scripts import is_unspaced_char
from polyhead.tokenizers.tokenizer import Tokenizer

TextSample = tuple[str, ...]  # one text, or a pair of texts
MAX_SAMPLES = 200
MAX_FILE_BYTES = 1 << 26  # largest file read to its end to find the held-out split, in bytes


def validation_samples(recipe: Recipe | None) -> list[TextSample]:
    """Return the first validation texts of a run; empty if its files are not on this machine."""
    if recipe is None or not _is_local(recipe):
        return []
    read_samples = _READERS.get(recipe.task.name, _read_lines)
    try:
        return list(islice(read_samples(recipe), MAX_SAMPLES))
    except (UserError, OSError):
        return []


def everyday_samples(tokenizer: Tokenizer, language: str = "") -> list[TextSample]:
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


def _is_local(recipe: Recipe) -> bool:
    data = recipe.data
    names = data.valid or data.train
    if any(name.startswith(hub.HUB_PREFIX) for name in names):
        return False
    paths = [path for name in names for path in data.find_local_files(name)]
    return bool(paths) and (
        data.valid is not None or all(path.stat().st_size < MAX_FILE_BYTES for path in paths)
    )


def _read_sources(recipe: Recipe) -> Iterator[TextSample]:
    data, (files, share, is_held_out) = recipe.data, recipe.data.select_split("valid")
    corpus = open_corpus(
        files,
        format=data.format,
        source=data.source,
        target=data.target,
        validation_fraction=share,
        is_validation=is_held_out,
    )
    return ((pair.source,) for pair in corpus.iter_pairs(CorpusReport(corpus.source_label)))


def _read_labeled(recipe: Recipe) -> Iterator[TextSample]:
    data, (files, share, is_held_out) = recipe.data, recipe.data.select_split("valid")
    dataset = open_labeled(
        files,
        format=data.format,
        text=data.text,
        label=data.label,
        validation_fraction=share,
        is_validation=is_held_out,
    )
    return (example.texts for example in dataset.iter_examples(LabeledReport(dataset.source_label)))


def _read_questions(recipe: Recipe) -> Iterator[TextSample]:
    dataset = open_conversations(*recipe.data.select_split("valid"))
    for _, messages in dataset.read(ConversationReport(dataset.source_label)):
        yield from [(message.content,) for message in messages if message.role == "user"][:1]


def _read_lines(recipe: Recipe) -> Iterator[TextSample]:
    data, (files, share, _) = recipe.data, recipe.data.select_split("valid")
    lines = read_text_lines(
        open_text(
            files, data.document_separator, (1.0 - share if share else 0.0, 1.0), data.text, data.format
        )
    )
    # a split of a file may begin in the middle of a line
    return ((line.strip(),) for line in islice(lines, 1 if share else 0, None) if not is_blank(line))


_READERS: dict[str, Callable[[Recipe], Iterator[TextSample]]] = {
    "translation": _read_sources, "classification": _read_labeled, "chat": _read_questions,
}  # fmt: skip


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
