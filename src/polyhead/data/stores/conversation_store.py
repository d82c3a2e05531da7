"""Tokenized conversations, or answers with their prompts, on disk, read through memory maps."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from polyhead.chat.apply_template import EncodedChat, encode_answers, encode_pieces
from polyhead.chat.base import ChatFormat, ChatPiece, Message
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT
from polyhead.data.batching.collate import concat_rows, fill_rows, make_positions
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.data.readers.conversations import ChatRow, ConversationReport, Conversations
from polyhead.data.readers.preferences import Answer, PreferenceReport, PreferenceRow, Preferences, TextAnswer
from polyhead.data.readers.rows import ReadReport, Rows
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
            def encode(place: str, row: ChatRow) -> list[EncodedChat]:
                encoded, kept_messages = _encode_within(row, format, tokenizer, max_len)
                if encoded is None:
                    return []
                if len(kept_messages) < len(row.messages):
                    report.count_problem("truncated", place)
                report.answers += sum(row.is_learned[: len(kept_messages)])
                return [encoded]

            _write_answers(conversations, report, out, encode)

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


class PreferenceStore(ConversationStore):
    """The tokens of prompts with an answer, the mask of the answers, and whether each is a chosen one.

    Of pairs, row 2i is the chosen and row 2i + 1 the rejected answer.
    """

    kind = "preferences"
    dtypes: ClassVar = ConversationStore.dtypes | {"is_chosen": np.int8}

    def __init__(self, directory: Path, report: PreferenceReport, max_len: int) -> None:
        super().__init__(directory, report)
        self.is_chosen = self.arrays["is_chosen"].astype(bool)
        answer_tokens, n = np.flatnonzero(self.assistant_mask), len(self.lengths)
        self.starts = answer_tokens[np.searchsorted(answer_tokens, self.offsets[:-1])]  # of the answers
        self.partners = (np.arange(n) + n // 2 + 1) % max(n, 1)  # whose answers are mismatched
        answers = self.offsets[1:] - self.starts
        # tokens that have a next token, of a prompt with the answer of another
        mismatched = self.starts - self.offsets[:-1] + answers[self.partners] - 1
        self.mismatched_lengths: IdArray = np.minimum(mismatched, max_len)

    def collate_mismatched(self, rows: IdArray, pad_id: int) -> TokenWindows:
        """Collate prompts, each with the answer of its partner, cut to ``max_len`` tokens with a next one."""
        joined = []
        for row, partner in zip(rows, self.partners[rows], strict=True):
            tokens = np.r_[
                self.offsets[row] : self.starts[row], self.starts[partner] : self.offsets[partner + 1]
            ][: self.mismatched_lengths[row] + 1]
            joined.append((self.ids[tokens], self.assistant_mask[tokens]))
        return pad_answers(joined, pad_id)


def open_preference_store(
    preferences: Preferences,
    chat: Choice,
    prefix_ids: list[int],
    tokenizer: Tokenizer,
    cache: str | os.PathLike[str],
    *,
    max_len: int,
) -> PreferenceStore:
    """Open the store of these files in the directory ``cache``; build it if missing or incomplete.

    ``prefix_ids`` come before a prompt that is a text.
    """
    chat = CHAT.check(chat)
    format, share = CHAT.build(chat), preferences.validation_fraction
    split = [share, bool(share) and preferences.is_validation, preferences.needs_pairs]
    settings = [tokenizer.sha256, split, chat.to_config(), prefix_ids, max_len]

    def write(out: dict[str, FlatWriter], report: PreferenceReport) -> None:
        def encode(place: str, row: PreferenceRow) -> list[EncodedChat]:
            answers = [encode_answer(answer, format, prefix_ids, tokenizer) for answer in row.answers]
            if max(len(answer.ids) for answer in answers) > max_len:
                return []
            out["is_chosen"].append(row.is_chosen)
            return answers

        _write_answers(preferences, report, out, encode)

    return PreferenceStore(*PreferenceStore.build_rows(cache, preferences, settings, write), max_len)


def encode_answer(
    answer: Answer, format: ChatFormat, prefix_ids: list[int], tokenizer: Tokenizer
) -> EncodedChat:
    """Tokenize a prompt with its answer and end token; of a conversation, in the chat format."""
    if not isinstance(answer, TextAnswer):
        return encode_answers(format, tokenizer, answer.messages, answer.is_learned, answer.tools)
    pieces = [ChatPiece(answer.prompt), ChatPiece(answer.completion, is_assistant=True)]
    encoded = encode_pieces(pieces, tokenizer)
    if not any(encoded.assistant_mask):
        raise UserError("the answer has no token of its own")
    ids = [*prefix_ids, *encoded.ids, tokenizer.eos_id]
    return EncodedChat(ids, [*(False for _ in prefix_ids), *encoded.assistant_mask, True])


def _write_answers(
    rows: Rows[Any],
    report: ReadReport,
    out: dict[str, FlatWriter],
    encode: Callable[[str, Any], list[EncodedChat]],
) -> None:
    """Write what ``encode`` makes of the location and the content of each row, nothing if it is too long."""
    for place, row in rows.read(report):
        try:
            encoded = encode(place, row)
        except UserError as error:
            report.count_problem(f"unsupported: {error}", place)
            continue
        if not encoded:
            report.count_problem("too_long", place)
        report.used += bool(encoded)
        for answer in encoded:
            out["ids"].append_rows([answer.ids], out["offsets"])
            out["assistant_mask"].append(answer.assistant_mask)
    report.check_usable()
