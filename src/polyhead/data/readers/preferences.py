"""Read preferences between answers from JSONL: two answers to a prompt, or one with a label.

Lines that cannot be used are counted, never dropped silently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError, format_value
from polyhead.data.readers.conversations import ChatRow, parse_chat_row
from polyhead.data.readers.rows import ReadReport, Rows
from polyhead.data.readers.tabular import check_object_files, parse_lines, parse_object_line

PAIR_KEYS, LABEL_KEYS = ("chosen", "rejected"), ("completion", "label")
_PAIR_EXAMPLE = '{"prompt": "...", "chosen": "...", "rejected": "..."}'
_LABEL_EXAMPLE = '{"prompt": "...", "completion": "...", "label": true}'


class TextAnswer(NamedTuple):
    """A prompt and an answer that continues it as text."""

    prompt: str
    completion: str


Answer = TextAnswer | ChatRow
"""An answer with its prompt: a text, or a conversation of which the last messages are learned."""


class PreferenceRow(NamedTuple):
    """Answers to one prompt: the chosen and the rejected one, or one that is either."""

    answers: tuple[Answer, ...]
    is_chosen: tuple[bool, ...]


class PreferenceReport(ReadReport):
    """Read counts of preferences; too_long is one of which an answer does not fit."""

    unit = "preference"
    counts = "{where}: {kept:,} of {read:,} preferences"


@dataclass(frozen=True)
class Preferences(Rows[PreferenceRow]):
    """Files of preferences; all with the same prompt are in the same split."""

    report_type = PreferenceReport
    needs_pairs: bool = False  # an answer with a label is no comparison

    def read_file(self, path: Path) -> Iterator[tuple[int, PreferenceRow | str]]:
        return parse_lines(path, partial(parse_preference_line, needs_pairs=self.needs_pairs))

    def get_split_text(self, row: PreferenceRow) -> str:
        """The prompt."""
        return get_prompt(row.answers[0])


def get_prompt(answer: Answer) -> str:
    """The text of a prompt; of a conversation, that of the messages before the answer."""
    if isinstance(answer, TextAnswer):
        return answer.prompt
    return "\n".join(message.content for message in answer.messages[: answer.is_learned.index(True)])


def open_preferences(
    files: Sequence[Path],
    validation_fraction: float = 0.0,
    is_validation: bool = False,
    *,
    needs_pairs: bool = False,
) -> Preferences:
    """Open files of preferences; a missing file, or one without preferences, is a UserError."""
    example = _PAIR_EXAMPLE if needs_pairs else f"{_PAIR_EXAMPLE} or {_LABEL_EXAMPLE}"
    parse_line = partial(parse_preference_line, needs_pairs=needs_pairs)
    paths, empty = check_object_files(files, parse_line, PreferenceReport.unit, example)
    return Preferences(paths, "jsonl", {}, validation_fraction, is_validation, empty, needs_pairs)


def parse_preference_line(raw: bytes | None, needs_pairs: bool = False) -> PreferenceRow | str:
    """The preference of a line, or the kind of problem."""
    return parse_object_line(raw, partial(_parse_row, needs_pairs=needs_pairs))


def _parse_row(row: dict[str, Any], needs_pairs: bool) -> PreferenceRow:
    """The answers of a row with the keys of TRL; a UserError for what is missing or not comparable."""
    json.dumps(row, ensure_ascii=False).encode()  # half of a surrogate pair is a ValueError
    if row.keys() >= set(PAIR_KEYS):
        completions, is_chosen = [row[key] for key in PAIR_KEYS], [True, False]
    elif row.keys() >= set(LABEL_KEYS) and not needs_pairs:
        if not isinstance(row["label"], bool) and row["label"] not in (0, 1):
            raise UserError(f"the label is {format_value(row['label'])}, expected true or false")
        completions, is_chosen = [row["completion"]], [bool(row["label"])]
    else:
        hint = "; single answers with a label are for task kto" if row.keys() >= set(LABEL_KEYS) else ""
        raise UserError(f"the row has the keys {', '.join(map(str, row)) or 'of none'}{hint}")
    answers = tuple(_parse_answer(row.get("prompt"), value, row.get("tools")) for value in completions)
    if len(answers) == 2 and answers[0] == answers[1]:
        raise UserError("both answers are the same")
    return PreferenceRow(answers, tuple(is_chosen))


def _parse_answer(prompt: Any, completion: Any, tools: Any) -> Answer:
    """An answer with its prompt; messages without a prompt are a conversation that ends with the answer."""
    if isinstance(prompt, str) and isinstance(completion, str):
        if is_blank(completion):
            raise UserError("an answer is blank")
        return TextAnswer(prompt, completion)
    before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []
    if not isinstance(before, list) or not isinstance(completion, list):
        raise UserError("prompt and answers are neither texts nor lists of messages")
    messages, n_before = [*before, *completion], len(before) if prompt else len(completion) - 1
    for i, message in enumerate(messages[:n_before]):
        if isinstance(message, dict) and message.get("role", message.get("from")) in ("assistant", "gpt"):
            messages[i] = message | {"weight": 0}
    chat = parse_chat_row({"messages": messages, "tools": tools})
    if isinstance(chat, str) or len(chat.messages) < len(messages):
        raise UserError("the messages of an answer do not end with one of the assistant")
    return chat


def read_preference_texts(preferences: Preferences) -> Iterator[str]:
    """Yield the prompts and answers of all rows."""
    for _, row in preferences.read():
        for answer in row.answers:
            if isinstance(answer, TextAnswer):
                yield answer.prompt + answer.completion
            else:
                yield from (f"{message.role.capitalize()}: {message.content}" for message in answer.messages)
