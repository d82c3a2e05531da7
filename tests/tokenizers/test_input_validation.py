"""Tests of tokenizers/input_validation.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.run.run_helpers import run

from polyhead.core.errors import UserError

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark ."]


def test_one_text_is_not_taken_for_a_list_of_its_letters() -> None:
    translator, writer, reader = run(), run(kind="decoder"), run(kind="encoder")
    for able, verb, lists in (
        (translator, "translate", 1),
        (translator, "hypotheses", 1),
        (translator, "score", 2),
        (translator, "perplexity", 2),
        (translator, "evaluate", 2),
        (writer, "generate", 1),
        (writer, "stream", 1),
        (writer, "hypotheses", 1),
        (writer, "score", 1),
        (writer, "perplexity", 1),
        (writer, "embed", 1),
        (reader, "embed", 1),
        (reader, "fill_mask", 1),
        (run(kind="encoder", labels=("n", "y")), "classify", 1),
    ):
        way = ", ".join(lists * ['["..."]'])
        told = f"run.{verb} expects a list of texts, got one text; write run.{verb}({way})"
        for text in ("ein hund", b"ein hund"):
            with pytest.raises(UserError, match=f"^{re.escape(told)}$"):
                getattr(able, verb)(*lists * [text])
    with pytest.raises(
        UserError, match=r'^prefix expects a list of texts, got one text; write prefix=\["..."\]$'
    ):
        translator.translate(["ein hund"], prefix="a")


def test_what_can_be_read_only_once_is_not_taken_for_no_text_at_all() -> None:
    """A generator would be read to its end by the first who looks at it, and be empty for the next."""
    translator, writer, reader = run(), run(kind="decoder"), run(kind="encoder")
    classifier = run(kind="encoder", labels=("n", "y"))
    asked: list[Callable[[Any], Any]] = [
        translator.translate,
        translator.hypotheses,
        writer.generate,
        writer.stream,
        writer.score,
        writer.perplexity,
        lambda texts: translator.score(texts, TEXTS),
        lambda texts: translator.score(TEXTS, texts),
        lambda texts: translator.translate(TEXTS, prefix=texts),
        lambda texts: translator.evaluate(texts, TEXTS),
        reader.embed,
        reader.fill_mask,
        classifier.classify,
    ]
    for ask in asked:
        with pytest.raises(
            UserError,
            match=r"expects a list of texts, got generator; write (prefix=|run\.\w+\()list\(texts\)",
        ):
            ask(text for text in TEXTS)
        with pytest.raises(
            UserError, match=r"expects a list of texts, got set; write (prefix=|run\.\w+\()list\(texts\)"
        ):
            ask(set(TEXTS))  # which has no order that what is made could be in
        with pytest.raises(UserError, match=r"expects a list of texts, got int$"):
            ask(7)
        with pytest.raises(UserError, match="text 0 is int, expected a string"):
            ask([7] * len(TEXTS))
    most = reader.tokenizer.vocab_size - 1
    for ids in ([most + 1], [-1], [True], [0.5], ["a"], [None]):
        with pytest.raises(UserError, match=f"text 1 has no token .*; the vocabulary has 0 to {most}"):
            reader.embed([TEXTS[0], ids])
    both = reader.embed([reader.tokenizer.encode(TEXTS)[0], TEXTS[0]])
    assert torch.equal(both[0], both[1])
    with pytest.raises(UserError, match=r"run\.evaluate expects a list of texts, got generator"):
        translator.evaluate(TEXTS, (text for text in TEXTS))  # type: ignore[arg-type]
    for stop, shown in ((None, "null"), (3, "3"), ([None], r"\[None\]")):
        for ask in (writer.generate, lambda texts, stop: writer.engine().submit(texts[0], stop=stop)):
            with pytest.raises(UserError, match=f"^stop is {shown}; expected a text or a list of texts"):
                ask(TEXTS, stop=stop)
    assert writer.score(dict.fromkeys(TEXTS).keys()) == writer.score(TEXTS)  # type: ignore[arg-type]
