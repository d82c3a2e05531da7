"""A written conversation as tokens, and which of them the assistant says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import tokenizers

from polyhead.errors import UserError
from polyhead.text.chat.base import EOS, ChatFormat, Message, Piece, toolless
from polyhead.text.chat.calls import CallingFormat
from polyhead.text.chat.tools import Tools

if TYPE_CHECKING:
    from polyhead.text.specials import Special
    from polyhead.text.tokenizer import Tokenizer


class Written(NamedTuple):
    """The tokens of a conversation."""

    ids: list[int]
    learned: list[bool]  # of each, whether the assistant says it


def pieces(
    format: ChatFormat, messages: Sequence[Message], answer: bool = False, tools: Tools = Tools()
) -> list[Piece]:
    """A conversation in pieces, with ``answer`` up to where the assistant begins to speak, which may call ``tools``."""
    if not tools.all:
        return format.write(messages, answer)
    if not isinstance(format, CallingFormat):
        raise toolless(f"tools are given ({', '.join(tools.names)})")
    return format.write(messages, answer, tools)


def written(
    format: ChatFormat,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    answer: bool = False,
    tools: Tools = Tools(),
) -> Written:
    """The same in tokens."""
    return tokens(pieces(format, messages, answer, tools), tokenizer)


def ends(format: ChatFormat, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens of which any ends the assistant's turn, the one that the format itself writes first."""
    found = [_special(piece, tokenizer) for piece in format.ends]
    return tuple(dict.fromkeys(special.id for special in found if special is not None))


def speaker(format: ChatFormat, tokenizer: Tokenizer) -> Tokenizer | None:
    """A tokenizer to which the marks of calls are text, if to its own they are special tokens, which are not told."""
    marks = format.calls.marks if isinstance(format, CallingFormat) else []
    if not tokenizer.specials.keys() & set(marks):
        return None
    rules = json.loads(tokenizer.rules)
    for added in rules["added_tokens"]:
        added["special"] = added["special"] and added["content"] not in marks
    roles = {role: tokenizer.tokens([i])[0] for role, i in tokenizer.ids.items()}
    return type(tokenizer)(tokenizers.Tokenizer.from_str(json.dumps(rules)), roles)


def check_fits(format: ChatFormat, tokenizer: Tokenizer) -> None:
    """A UserError where the vocabulary has not the tokens of a format."""
    ends(format, tokenizer)
    written(format, tokenizer, [Message("user", "")], answer=True)


def tokens(pieces: Sequence[Piece], tokenizer: Tokenizer) -> Written:
    """Special tokens as what they are, and all text between two of them tokenized together, as one.

    No text becomes a special token, whatever it spells. A token that reaches over the border of two pieces counts to
    the first.
    """
    out = Written([], [])
    run: list[Piece] = []
    strip = False  # whether the token before takes the blanks after it

    def flush(rstrip: bool = False) -> None:
        text = "".join(piece.text for piece in run)
        learned = [piece.learned for piece in run for _ in piece.text]
        if strip:
            learned = learned[len(text) - len(text.lstrip()) :]
            text = text.lstrip()
        text = text.rstrip() if rstrip else text
        run.clear()
        if text:
            ids, starts = tokenizer.located(text, behind=bool(out.ids))
            out.ids.extend(ids)
            out.learned.extend(learned[min(start, len(text) - 1)] for start in starts)

    for piece in pieces:
        special = None if piece.kind == "text" else _special(piece, tokenizer)
        if special is None:
            if piece.kind != "role":
                run.append(piece)
            continue
        flush(special.lstrip)
        out.ids.append(special.id)
        out.learned.append(piece.learned)
        strip = special.rstrip
    flush()
    return out


def _special(piece: Piece, tokenizer: Tokenizer) -> Special | None:
    """The token that a piece stands for; None for text, and for the beginning of a text where no token marks it."""
    name = piece.text
    if piece.kind == "role":
        number = tokenizer.eos_id if piece.text == EOS.text else tokenizer.ids.get(name)
        if number is None:
            return None
        (name,) = tokenizer.tokens([number])
    found = tokenizer.specials.get(name)
    if found is None and piece.kind != "mark":
        raise UserError(
            f"this chat format needs the token {piece.text!r}, which the vocabulary has not; "
            "'plain' and 'zephyr' fit any"
        )
    return found
