"""Texts to try a model on: those that its run is measured on, or everyday sentences in its language."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.resources import files
from itertools import islice

from polyhead import hub
from polyhead.data.conversations import ConversationReport, open_conversations
from polyhead.data.corpus import CorpusReport, open_corpus
from polyhead.data.labelled import LabelledReport, open_labelled
from polyhead.data.text import open_text, texts
from polyhead.errors import UserError
from polyhead.recipe import Recipe
from polyhead.text.tokenizer import Tokenizer
from polyhead.text.words import unspaced

Sample = tuple[str, ...]  # one text, or the two of a pair
SAMPLES = 200
LARGEST = 1 << 26  # bytes of a file that is read to its end to find the share that was held out


def validation_samples(recipe: Recipe | None) -> list[Sample]:
    """The first texts that a run is measured on; none where its files are not on this machine."""
    if recipe is None or not _is_local(recipe):
        return []
    read = _READERS.get(recipe.task.name, _lines)
    try:
        return list(islice(read(recipe), SAMPLES))
    except (UserError, OSError):
        return []


def everyday_samples(tokenizer: Tokenizer, language: str = "") -> list[Sample]:
    """Sentences in a language; without one in that which the tokenizer writes in the fewest tokens. Few languages have some."""
    sentences = _sentences()
    fitting = partial(max, sentences, key=lambda code: _bytes_per_token(tokenizer, sentences[code]))
    code = re.split("[-_]", language.lower())[0] or fitting()
    return [(sentence,) for sentence in sentences.get(code, [])]


def is_unspaced(text: str) -> bool:
    """Whether most of the text is in a script that puts no blanks between words."""
    return 2 * sum(map(unspaced, text)) > len(text)


def _is_local(recipe: Recipe) -> bool:
    data = recipe.data
    names = data.valid or data.train
    if any(name.startswith(hub.PREFIX) for name in names):
        return False
    found = [path for name in names for path in data.local(name)]
    return bool(found) and (data.valid is not None or all(path.stat().st_size < LARGEST for path in found))


def _sources(recipe: Recipe) -> Iterator[Sample]:
    data, (files, share, held) = recipe.data, recipe.data.part("valid")
    corpus = open_corpus(
        files, format=data.format, source=data.source, target=data.target, share=share, held=held
    )
    return ((pair.source,) for pair in corpus.pairs(CorpusReport(corpus.where)))


def _labelled(recipe: Recipe) -> Iterator[Sample]:
    data, (files, share, held) = recipe.data, recipe.data.part("valid")
    found = open_labelled(files, format=data.format, text=data.text, label=data.label, share=share, held=held)
    return (example.texts for example in found.examples(LabelledReport(found.where)))


def _questions(recipe: Recipe) -> Iterator[Sample]:
    found = open_conversations(*recipe.data.part("valid"))
    for _, messages in found.read(ConversationReport(found.where)):
        yield from [(message.content,) for message in messages if message.role == "user"][:1]


def _lines(recipe: Recipe) -> Iterator[Sample]:
    data, (files, share, _) = recipe.data, recipe.data.part("valid")
    found = texts(
        open_text(files, data.documents, (1.0 - share if share else 0.0, 1.0), data.text, data.format)
    )
    # a share of a file begins anywhere in a line
    return ((line.strip(),) for line in islice(found, 1 if share else 0, None) if line.strip())


_READERS: dict[str, Callable[[Recipe], Iterator[Sample]]] = {
    "translation": _sources, "classification": _labelled, "chat": _questions,
}  # fmt: skip


@cache
def _sentences() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(
        files("polyhead.serve").joinpath("examples.json").read_text("utf-8")
    )
    return found


def _bytes_per_token(tokenizer: Tokenizer, sentences: list[str]) -> float:
    """0 where the tokenizer cannot write them."""
    encoded = tokenizer.encode(sentences)
    if any(tokenizer.ids.get("unk_token") in ids for ids in encoded):
        return 0.0
    return sum(len(sentence.encode()) for sentence in sentences) / max(1, sum(map(len, encoded)))
