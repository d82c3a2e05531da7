"""Tokenized answers with their prompts on disk, of two answers to compare or of one with a label."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import numpy as np

from polyhead.chat.apply_template import EncodedChat, encode_answers, encode_pieces
from polyhead.chat.base import ChatFormat, ChatPiece
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.data.readers.preferences import Answer, PreferenceReport, Preferences, TextAnswer
from polyhead.data.stores.build_cache import FlatWriter, IdArray
from polyhead.data.stores.conversation_store import ConversationStore, pad_answers
from polyhead.tokenizers.tokenizer import Tokenizer


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
        for place, row in preferences.read(report):
            try:
                answers = [encode_answer(answer, format, prefix_ids, tokenizer) for answer in row.answers]
            except UserError as error:
                report.count_problem(f"unsupported: {error}", place)
                continue
            if max(len(answer.ids) for answer in answers) > max_len:
                report.count_problem("too_long", place)
                continue
            report.used += 1
            for answer in answers:
                out["ids"].append_rows([answer.ids], out["offsets"])
                out["assistant_mask"].append(answer.assistant_mask)
            out["is_chosen"].append(row.is_chosen)
        report.check_usable()

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
