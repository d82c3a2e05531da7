"""Tokenized conversations on disk, read through memory maps: built once, opened instantly."""

from __future__ import annotations

import os
from bisect import bisect_left
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from polyhead.chat.apply_template import EncodedChat, encode_pieces
from polyhead.chat.base import ChatFormat, Message
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.data.readers.conversations import ConversationReport, Conversations
from polyhead.data.readers.files import fingerprint
from polyhead.data.stores.build_cache import FlatWriter, IdArray, IdStore
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.tokenizer import Tokenizer

_LAYOUT = 1  # version of the file layout; another version makes another cache


class ConversationStore(IdStore):
    """The tokens of conversations, with a mask of the assistant's tokens, in the order of the files."""

    kind = "chat"
    dtypes: ClassVar = {"ids": np.int32, "learned": np.int8, "offsets": np.int64}

    def __init__(self, directory: Path, report: ConversationReport) -> None:
        super().__init__(directory, report)
        _, self.assistant_mask, self.offsets = self.arrays.values()
        self.lengths: IdArray = np.diff(self.offsets) - 1  # number of tokens that have a next token

    def __len__(self) -> int:
        return len(self.lengths)

    def collate(self, rows: IdArray, pad_id: int) -> TokenWindows:
        """Collate conversations, padded on the right; only tokens of the assistant have labels."""
        lengths = self.lengths[rows]
        columns = np.arange(int(lengths.max(initial=0)))
        padded = columns >= lengths[:, None]
        cells = np.full((len(rows), len(columns) + 1), pad_id, dtype=np.int64)
        has_label = np.zeros(cells.shape, dtype=bool)
        for i, row in enumerate(rows):
            span = slice(self.offsets[row], self.offsets[row + 1])
            cells[i, : span.stop - span.start] = self.ids[span]
            has_label[i, : span.stop - span.start] = self.assistant_mask[span]
        labels = np.where(has_label[:, 1:], cells[:, 1:], IGNORE_INDEX)
        pos = torch.from_numpy(np.where(padded, -1, columns)) if padded.any() else None
        return TokenWindows(torch.from_numpy(cells[:, :-1]), pos, torch.from_numpy(labels))

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
        """Open the store of these files in the directory ``cache``; build it if missing or incomplete."""
        chat = CHAT.check(chat)
        prints = [fingerprint(path) for path in conversations.files]
        share = [conversations.validation_fraction, conversations.is_validation]
        settings = [_LAYOUT, prints, tokenizer.sha256, share, chat.to_config(), max_len]
        report = ConversationReport(conversations.source_label)
        write = partial(_write_rows, conversations, CHAT.build(chat), tokenizer, max_len)
        return cls(*cls.build(cache, settings, report, write))


def _write_rows(
    conversations: Conversations,
    format: ChatFormat,
    tokenizer: Tokenizer,
    max_len: int,
    out: dict[str, FlatWriter],
    report: ConversationReport,
) -> None:
    for place, messages in conversations.read(report):
        try:
            pieces = format.render(messages, False)
        except UserError as error:
            report.count_problem("unsupported", f"{place}, {error}")
            continue
        row, kept_messages = _truncate_conversation(
            encode_pieces(pieces, tokenizer), messages, format, tokenizer, max_len
        )
        if row is None:
            report.count_problem("too_long", place)
            continue
        if len(kept_messages) < len(messages):
            report.count_problem("truncated", place)
        report.used += 1
        report.answers += sum(message.role == "assistant" for message in kept_messages)
        out["ids"].append_rows([row.ids], out["offsets"])
        out["learned"].append(row.assistant_mask)
    report.check_usable()


def _truncate_conversation(
    row: EncodedChat, messages: list[Message], format: ChatFormat, tokenizer: Tokenizer, max_len: int
) -> tuple[EncodedChat | None, list[Message]]:
    """The conversation, without its last turns if it is too long; None if no turn fits."""
    if len(row.ids) <= max_len:
        return row, messages
    ends = [i + 1 for i, message in enumerate(messages[:-1]) if message.role == "assistant"]

    def encode_prefix(end: int) -> EncodedChat:
        return encode_pieces(format.render(messages[:end], False), tokenizer)

    # number of ends that fit
    n_fitting = bisect_left(ends, True, key=lambda end: len(encode_prefix(end).ids) > max_len)
    return (encode_prefix(ends[n_fitting - 1]), messages[: ends[n_fitting - 1]]) if n_fitting else (None, [])
