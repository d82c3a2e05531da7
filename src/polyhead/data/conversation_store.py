"""Written conversations as tokens on disk, read through memory maps: made once, opened in an instant."""

from __future__ import annotations

import os
from bisect import bisect_left
from functools import partial
from pathlib import Path

import numpy as np
import torch

from polyhead.data.arrays import Ints, flat_files, open_flat
from polyhead.data.built import home, whole
from polyhead.data.conversations import ConversationReport, Conversations
from polyhead.data.files import fingerprint
from polyhead.data.reading import check_usable, count
from polyhead.data.rows import Rows
from polyhead.errors import UserError
from polyhead.nn.loss import IGNORED
from polyhead.registry import CHAT, Choice
from polyhead.text.chat.base import ChatFormat, Message
from polyhead.text.chat.tokens import Written, tokens
from polyhead.text.tokenizer import Tokenizer

LAYOUT = 1  # of the files of a cache; another number makes another cache
DTYPES: dict[str, type[np.generic]] = {"ids": np.int32, "learned": np.int8, "offsets": np.int64}


class ConversationStore:
    """The tokens of conversations and which of them the assistant says, in the order of the files."""

    def __init__(self, directory: Path, report: ConversationReport) -> None:
        self.directory, self.report = directory, report
        self.ids: Ints = open_flat(directory / "ids.npy")
        self.learned: Ints = open_flat(directory / "learned.npy")
        self.offsets: Ints = open_flat(directory / "offsets.npy")
        self.lengths: Ints = np.diff(self.offsets) - 1  # tokens that have a next one

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: Ints, pad_id: int) -> Rows:
        """Some conversations, padded on the right: what the assistant says is asked for, of the rest nothing."""
        lengths = self.lengths[rows]
        columns = np.arange(int(lengths.max(initial=0)))
        padded = columns >= lengths[:, None]
        cells = np.full((len(rows), len(columns) + 1), pad_id, dtype=np.int64)
        asked = np.zeros(cells.shape, dtype=bool)
        for i, row in enumerate(rows):
            of = slice(self.offsets[row], self.offsets[row + 1])
            cells[i, : of.stop - of.start] = self.ids[of]
            asked[i, : of.stop - of.start] = self.learned[of]
        labels = np.where(asked[:, 1:], cells[:, 1:], IGNORED)
        pos = torch.from_numpy(np.where(padded, -1, columns)) if padded.any() else None
        return Rows(torch.from_numpy(cells[:, :-1]), pos, torch.from_numpy(labels))

    @classmethod
    def open_or_build(
        cls,
        conversations: Conversations,
        chat: Choice,
        tokenizer: Tokenizer,
        cache: str | os.PathLike[str],
        *,
        max_len: int,
    ) -> ConversationStore:
        """The store of some files under the directory ``cache``; made if it is not there or not whole."""
        chat = CHAT.check(chat)
        prints = [fingerprint(path) for path in conversations.files]
        share = [conversations.share, conversations.held]
        settings = [LAYOUT, prints, tokenizer.sha256, share, chat.written(), max_len]
        directory, format = home(cache, "chat", settings), CHAT.build(chat)
        write = partial(_write, conversations, format, tokenizer, max_len)
        return cls(directory, whole(directory, DTYPES, ConversationReport, write))


def _write(
    conversations: Conversations, format: ChatFormat, tokenizer: Tokenizer, max_len: int, directory: Path
) -> ConversationReport:
    report = ConversationReport(conversations.where)
    with flat_files(directory, DTYPES) as out:
        out["offsets"].append([0])
        for place, messages in conversations.read(report):
            try:
                pieces = format.write(messages, False)
            except UserError as error:
                count(report, "unfit", f"{place}, {error}")
                continue
            row, kept = _fitting(tokens(pieces, tokenizer), messages, format, tokenizer, max_len)
            if row is None:
                count(report, "overlong", place)
                continue
            if len(kept) < len(messages):
                count(report, "cut", place)
            report.kept += 1
            report.answers += sum(message.role == "assistant" for message in kept)
            out["ids"].append(row.ids)
            out["learned"].append(row.learned)
            out["offsets"].append([out["ids"].count])
    check_usable(report, "conversation")
    return report


def _fitting(
    row: Written, messages: list[Message], format: ChatFormat, tokenizer: Tokenizer, max_len: int
) -> tuple[Written | None, list[Message]]:
    """The conversation, without its last questions and answers where it is too long; None if nothing of it fits."""
    if len(row.ids) <= max_len:
        return row, messages
    ends = [i + 1 for i, message in enumerate(messages[:-1]) if message.role == "assistant"]

    def begun(end: int) -> Written:
        return tokens(format.write(messages[:end], False), tokenizer)

    # so many ends are early enough
    fitting = bisect_left(ends, True, key=lambda end: len(begun(end).ids) > max_len)
    return (begun(ends[fitting - 1]), messages[: ends[fitting - 1]]) if fitting else (None, [])
