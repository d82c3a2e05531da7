"""Tokenized conversations on disk, read through memory maps: built once, opened instantly."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from polyhead.chat.apply_template import EncodedChat, encode_answers
from polyhead.chat.base import ChatFormat, Message
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT
from polyhead.data.batching.collate import concat_rows, fill_rows, make_positions
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.data.readers.conversations import ChatRow, ConversationReport, Conversations
from polyhead.data.readers.rows import ReadReport
from polyhead.data.stores.build_cache import FlatWriter, IdArray, IdStore
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.tokenizer import Tokenizer


class ConversationStore(IdStore):
    """The tokens of conversations, with a mask of the answers that are learned, in the order of the files."""

    kind = "chat"
    # of older caches the mask has another name: they are written again in the directory that runs know
    dtypes: ClassVar = {"ids": np.int32, "assistant_mask": np.int8, "offsets": np.int64}

    def __init__(self, directory: Path, report: ReadReport) -> None:
        super().__init__(directory, report)
        self.assistant_mask, self.offsets = (self.arrays[name] for name in ("assistant_mask", "offsets"))
        self.lengths = np.diff(self.offsets) - 1  # number of tokens that have a next token

    def hash_texts(self) -> list[int]:
        """A hash of each conversation."""
        return [hash(ids.tobytes()) for ids in np.split(self.ids, self.offsets[1:-1])]

    def collate(self, rows: IdArray, pad_id: int) -> TokenWindows:
        """Collate conversations, padded on the right; only tokens of the assistant have labels."""
        spans = [slice(self.offsets[row], self.offsets[row + 1]) for row in rows]
        return pad_answers([(self.ids[span], self.assistant_mask[span]) for span in spans], pad_id)

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
        format = CHAT.build(chat)
        share = [conversations.validation_fraction, conversations.is_validation]
        settings = [tokenizer.sha256, share, chat.to_config(), max_len]

        def write(out: dict[str, FlatWriter], report: ConversationReport) -> None:
            for place, row in conversations.read(report):
                try:
                    encoded, kept_messages = _encode_within(row, format, tokenizer, max_len)
                except UserError as error:
                    report.count_problem(f"unsupported: {error}", place)
                    continue
                if encoded is None:
                    report.count_problem("too_long", place)
                    continue
                if len(kept_messages) < len(row.messages):
                    report.count_problem("truncated", place)
                report.used += 1
                report.answers += sum(row.is_learned[: len(kept_messages)])
                out["ids"].append_rows([encoded.ids], out["offsets"])
                out["assistant_mask"].append(encoded.assistant_mask)
            report.check_usable()

        return cls(*cls.build_rows(cache, conversations, settings, write))


def pad_answers(rows: Sequence[tuple[IdArray, IdArray]], pad_id: int) -> TokenWindows:
    """A batch of token ids with the mask of those that have labels, padded on the right."""
    ids, lengths = concat_rows([ids for ids, _ in rows])
    mask, _ = concat_rows([mask for _, mask in rows])
    tokens, has_label = fill_rows(ids, lengths, pad_id), fill_rows(mask, lengths, 0)
    labels = np.where(has_label[:, 1:], tokens[:, 1:], IGNORE_INDEX)
    return TokenWindows(
        torch.from_numpy(tokens[:, :-1]), make_positions(lengths - 1), torch.from_numpy(labels)
    )


def _encode_within(
    row: ChatRow, format: ChatFormat, tokenizer: Tokenizer, max_len: int
) -> tuple[EncodedChat | None, list[Message]]:
    """The conversation, without its last turns if it is too long; None if no turn fits."""

    @cache
    def encode_prefix(end: int) -> EncodedChat:
        return encode_answers(format, tokenizer, row.messages[:end], row.is_learned[:end], row.tools)

    ends = [i + 1 for i, is_learned in enumerate(row.is_learned) if is_learned]
    if len(encode_prefix(ends[-1]).ids) <= max_len:
        return encode_prefix(ends[-1]), row.messages
    # number of ends that fit
    n_fitting = bisect_left(ends[:-1], True, key=lambda end: len(encode_prefix(end).ids) > max_len)
    if not n_fitting:
        return None, []
    return encode_prefix(ends[n_fitting - 1]), row.messages[: ends[n_fitting - 1]]
