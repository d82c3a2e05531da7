"""What language models show: continuations of the validation text, and the loss by place and by kind of token."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from polyhead.analysis.samples import Breakdown, Samples, break_down, group_by_length, group_by_name
from polyhead.data.conversations import ConversationReport
from polyhead.data.packing import documents
from polyhead.data.rows import Rows, collate_rows
from polyhead.models import CausalLM
from polyhead.nn.loss import IGNORED
from polyhead.nn.place import beside
from polyhead.run import Run
from polyhead.text.chat.base import Message
from polyhead.train.samples.base import (
    attention_of,
    is_short,
    kinds_of,
    readable,
    take_samples,
    token_losses,
)
from polyhead.train.tasks import next_token
from polyhead.train.tasks.chat import Chat, conversations_of
from polyhead.train.tasks.language import LanguageModel

PROMPTS, READ, WRITTEN = 6, 16, 40  # continuations; tokens of a prompt and of what is written
READ_TALKS = 64  # conversations among which those that fit are looked for
ROWS = 8  # rows whose losses are taken, one by one


@take_samples.register
def language_samples(task: LanguageModel, run: Run) -> Samples:
    """What the model writes after some places of the validation text."""
    read = max(1, min(READ, task.width // 2))
    written = max(1, min(WRITTEN, run.config.max_len - read - 2))
    begins = _places(task, read + written)
    ids = task.valid.ids
    prompts = [readable(run.tokenizer, ids[at : at + read].tolist()) for at in begins]
    actual = [readable(run.tokenizer, ids[at + read : at + read + written].tolist()) for at in begins]
    outputs = run.generate(prompts, seed=1, max_new_tokens=written)
    last = max(1, len(task.valid) - 1)
    starts = np.unique(np.linspace(0, max(0, last - task.width), ROWS).astype(np.int64))
    rows = [
        collate_rows(task.valid, starts[i : i + 1], task.width, documents=task.documents)
        for i in range(len(starts))
    ]
    return Samples(
        about="What the model writes after a piece of the validation text, drawn with one seed, beside what stands there.",
        columns=("Prompt", "Continuation", "Text"),
        differences="none",
        examples=_examples(prompts, outputs, actual),
        breakdowns=_losses(run, rows),
        attention=attention_of(run, "self", *_short(run, prompts)),
    )


@take_samples.register
def chat_samples(task: Chat, run: Run) -> Samples:
    """What the model answers to the first questions of some validation conversations."""
    assert run.recipe is not None
    found = conversations_of(run.recipe, "valid")
    talks = [_first_turn(c.messages) for c in islice(found.read(ConversationReport(found.where)), READ_TALKS)]
    chat = run.talker(run.generation.chat or Chat.chat)
    examples: list[dict[str, Any]] = []
    for messages, answer in talks:
        room = run.config.max_len - len(chat.prompt(messages))
        if room > 0 and len(examples) < PROMPTS:
            output = "".join(chat.answer(messages, seed=1, max_new_tokens=min(WRITTEN, room)))
            asked = "\n".join(message.content for message in messages)
            examples += _examples([asked], [output], [answer])
    chosen = np.unique(np.linspace(0, len(task.valid) - 1, ROWS).astype(np.int64))
    rows = [task.valid.batch(chosen[i : i + 1], task.pad_id) for i in range(len(chosen))]
    return Samples(
        about="The model's answers, drawn with one seed, beside those of the validation conversations.",
        columns=("Conversation", "Answer", "Text"),
        differences="none",
        examples=examples,
        breakdowns=_losses(run, rows),
        attention=attention_of(run, "self", *_short(run, [example["source"] for example in examples])),
    )


def _short(run: Run, texts: list[str]) -> list[tuple[str, None]]:
    """The texts that are short enough for an attention map."""
    return [(text, None) for text in texts if is_short(run.tokenizer, text)]


def _first_turn(messages: list[Message]) -> tuple[list[Message], str]:
    """What comes before the first answer, and that answer."""
    at = next(i for i, message in enumerate(messages) if message.role == "assistant")
    return messages[:at], messages[at].content


def _places(task: LanguageModel, length: int) -> list[int]:
    """Where prompts begin: at documents that are long enough, else evenly in the text."""
    found = documents(task.valid, -1)
    long = found.starts[found.lengths >= length]
    if len(long) >= PROMPTS:
        return [int(long[len(long) * i // PROMPTS]) for i in range(PROMPTS)]
    last = max(0, len(task.valid) - length)
    return [int(at) for at in np.unique(np.linspace(0, last, PROMPTS).astype(np.int64))]


def _examples(prompts: list[str], outputs: list[str], actual: list[str]) -> list[dict[str, Any]]:
    return [
        {"source": prompt, "output": output, "reference": text}
        for prompt, output, text in zip(prompts, outputs, actual, strict=True)
    ]


def _losses(run: Run, rows: list[Rows]) -> list[Breakdown]:
    """The loss of a token by how many tokens the model has read before it, and by what it is made of."""
    assert isinstance(run.model, CausalLM)
    losses: list[float] = []
    places: list[int] = []
    labels: list[int] = []
    for row in rows:
        row = beside(run.model, row)
        asked = row.labels != IGNORED
        losses += token_losses(run.model.head, next_token.features(run.model, row)[asked], row.labels[asked])
        labels += row.labels[asked].tolist()
        places += (asked[0].nonzero().flatten() + 1).tolist()

    def mean(some: list[int]) -> float:
        return sum(losses[i] for i in some) / len(some)

    kinds = group_by_name(kinds_of(run.tokenizer, labels))
    return [
        break_down("Loss of a token", "tokens read before", group_by_length(places), mean),
        break_down("Loss of a token", "kind of token", kinds, mean),
    ]
