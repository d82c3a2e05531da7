"""Tokenized conversations on disk, read through memory maps: built once, opened instantly."""

from __future__ import annotations

import os
from bisect import bisect_left
from functools import partial
from pathlib import Path

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
from polyhead.data.readers.reader_common import check_usable, count_problem
from polyhead.data.stores.build_cache import IdArray, build_once, cache_dir, flat_writers, open_flat_file
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.unknown_tokens import UnknownTokens, count_unknown_ids

_LAYOUT = 1  # version of the file layout; another version makes another cache
_DTYPES: dict[str, type[np.generic]] = {"ids": np.int32, "learned": np.int8, "offsets": np.int64}


class ConversationStore:
    """The tokens of conversations, with a mask of the assistant's tokens, in the order of the files."""

    def __init__(self, directory: Path, report: ConversationReport) -> None:
        self.directory, self.report = directory, report
        self.ids: IdArray = open_flat_file(directory / "ids.npy")
        self.assistant_mask: IdArray = open_flat_file(directory / "learned.npy")
        self.offsets: IdArray = open_flat_file(directory / "offsets.npy")
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

    def count_unknown(self, tokenizer: Tokenizer) -> UnknownTokens:
        """Count the unknown tokens."""
        return count_unknown_ids(self.ids, tokenizer)

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
        directory, format = cache_dir(cache, "chat", settings), CHAT.build(chat)
        write = partial(_write_store, conversations, format, tokenizer, max_len)
        return cls(directory, build_once(directory, _DTYPES, ConversationReport, write))


def _write_store(
    conversations: Conversations, format: ChatFormat, tokenizer: Tokenizer, max_len: int, directory: Path
) -> ConversationReport:
    report = ConversationReport(conversations.source_label)
    with flat_writers(directory, _DTYPES) as out:
        out["offsets"].append([0])
        for place, messages in conversations.read(report):
            try:
                pieces = format.render(messages, False)
            except UserError as error:
                count_problem(report, "unsupported", f"{place}, {error}")
                continue
            row, kept_messages = _truncate_conversation(
                encode_pieces(pieces, tokenizer), messages, format, tokenizer, max_len
            )
            if row is None:
                count_problem(report, "too_long", place)
                continue
            if len(kept_messages) < len(messages):
                count_problem(report, "truncated", place)
            report.used += 1
            report.answers += sum(message.role == "assistant" for message in kept_messages)
            out["ids"].append(row.ids)
            out["learned"].append(row.assistant_mask)
            out["offsets"].append([out["ids"].count])
    check_usable(report, "conversation")
    return report


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
