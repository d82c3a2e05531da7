"""Render and tokenize conversations, with the mask of assistant tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, takewhile, zip_longest
from typing import TYPE_CHECKING, NamedTuple

import tokenizers
from polyhead.chat.base import EOS, ChatFormat, ChatPiece, Message, ToolChoice, is_prefill, no_tools_error
from polyhead.chat.reasoning import ReasoningFormat, insert_reasoning, reasoning_syntax
from polyhead.chat.sandbox.placeholders import EDGE_CHARS
from polyhead.chat.tool_calls import ToolCallFormat, get_tool_syntax
from polyhead.core.errors import UserError

if TYPE_CHECKING:
    from polyhead.tokenizers.special_tokens import AddedToken
    from polyhead.tokenizers.tokenizer import Tokenizer


_EDGE_CHARS = set(EDGE_CHARS)
_END_MARK = "\ue000 "  # a private character, and a space that a format may trim


class EncodedChat(NamedTuple):
    """The tokens of a conversation."""

    ids: list[int]
    assistant_mask: list[bool]  # whether each token is output of the assistant


def render_chat(
    format: ChatFormat,
    messages: Sequence[Message],
    add_generation_prompt: bool = False,
    tools: ToolChoice = ToolChoice(),
) -> list[ChatPiece]:
    """Render a conversation as pieces; UserError if the format does not support ``tools``.

    With ``add_generation_prompt`` it ends at the start of an assistant turn, or within the last message if it
    is one of the assistant: after its content, which is continued.
    """
    is_continued = False
    if add_generation_prompt and is_prefill(messages):
        *messages, answer = messages
        if is_continued := bool(answer.content.strip()):
            # a mark after the content shows what the format trims or adds there, as in transformers
            messages = [*messages, answer._replace(content=answer.content + _END_MARK)]
            add_generation_prompt = False
    if not tools.all_tools:
        pieces = format.render(messages, add_generation_prompt)
    elif isinstance(format, ToolCallFormat):
        pieces = format.render(messages, add_generation_prompt, tools)
    else:
        raise no_tools_error(f"tools are given ({', '.join(tools.tool_names)})")
    if not is_continued:
        return pieces
    last = max(i for i, piece in enumerate(pieces) if _END_MARK.strip() in piece.text)
    text, _, rest = pieces[last].text.rpartition(_END_MARK.strip())
    return [*pieces[:last], pieces[last]._replace(text=text if rest.startswith(" ") else text.rstrip())]


def encode_chat(
    format: ChatFormat,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    add_generation_prompt: bool = False,
    tools: ToolChoice = ToolChoice(),
    thinks: bool = True,
) -> EncodedChat:
    """Render and tokenize a conversation; the arguments are those of ``render_chat``.

    Without ``thinks`` the answer starts after empty reasoning, in a format with reasoning.
    """
    if any(message.reasoning for message in messages):
        messages = insert_reasoning(messages, reasoning_syntax(format))
    has_begun = is_prefill(messages) and messages[-1].content.strip()
    if thinks or has_begun or not isinstance(format, ReasoningFormat):
        pieces = render_chat(format, messages, add_generation_prompt, tools)
    else:
        before = messages[:-1] if is_prefill(messages) else messages
        pieces = format.render_without_reasoning(before, tools)
    return encode_pieces(pieces, tokenizer)


def encode_answers(
    format: ChatFormat,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    is_learned: Sequence[bool],
    tools: ToolChoice = ToolChoice(),
) -> EncodedChat:
    """Render and tokenize a complete conversation to learn some of its answers, each with its end token.

    ``is_learned`` is that of each message, of which the last is learned; the mask has the tokens of these
    answers. UserError if the format does not write a part of the conversation.
    """
    syntax = reasoning_syntax(format)
    pieces = render_chat(format, insert_reasoning(messages, syntax), False, tools)
    runs = [list(run) for _, run in groupby(pieces, lambda piece: piece.is_assistant)]
    answers = [run for run in runs if run[0].is_assistant]
    texts = ["".join(piece.text for piece in answer) for answer in answers]
    for i, message in enumerate(messages):
        written = syntax and any(message.reasoning.strip() in text.partition(syntax.end)[0] for text in texts)
        if is_learned[i] and message.reasoning and not written:
            is_last = syntax is None or i == len(messages) - 1
            remedy = "" if is_last else " before a later message: set its train to false"
            raise UserError(f"message {i} has reasoning, which this chat format does not write{remedy}")
    turns = [i for i, message in enumerate(messages) if message.role == "assistant"]
    if len(turns) != len(answers):
        if not all(is_learned[i] for i in turns):
            raise UserError("this chat format does not tell answers apart, of which some are not learned")
        turns = []
    for i, answer, text in zip(turns, answers, texts, strict=False):
        if not is_learned[i]:
            answer[:] = [piece._replace(is_assistant=False) for piece in answer]
        elif messages[i].tool_calls and messages[i].content.strip() not in text:
            raise UserError(f"message {i} has a text and calls, of which this chat format writes the calls")
    return encode_pieces([*_add_ends(chain.from_iterable(runs), format, tokenizer)], tokenizer)


def _add_ends(pieces: Iterable[ChatPiece], format: ChatFormat, tokenizer: Tokenizer) -> Iterator[ChatPiece]:
    """The pieces, with an end token in each answer: its own, else the one that follows it, else a new one."""
    end_ids = encode_end_tokens(format, tokenizer)

    def is_end(piece: ChatPiece) -> bool:
        special = None if piece.kind == "text" else _find_special_token(piece, tokenizer)
        return special is not None and special.id in end_ids

    parts = _find_template_tokens(pieces, tokenizer)
    runs = [list(run) for _, run in groupby(parts, lambda piece: piece.is_assistant)]
    for run, following in zip_longest(runs, runs[1:], fillvalue=list[ChatPiece]()):
        yield from run
        if run and run[0].is_assistant and not any(map(is_end, run)):
            blanks = len(
                [*takewhile(lambda piece: piece.kind == "text" and not piece.text.strip(), following)]
            )
            if is_end(next(iter(following[blanks:]), ChatPiece(""))):
                yield from (piece._replace(is_assistant=True) for piece in following[: blanks + 1])
                del following[: blanks + 1]
            else:
                yield ChatPiece(tokenizer.ids_to_tokens([end_ids[0]])[0], "token", True)


def encode_end_tokens(format: ChatFormat, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids of the tokens that end the assistant's turn; the first is the one that the format writes."""
    end_tokens = [_find_special_token(piece, tokenizer) for piece in format.end_tokens]
    return tuple(dict.fromkeys(special.id for special in end_tokens if special is not None))


def build_output_tokenizer(format: ChatFormat, tokenizer: Tokenizer) -> Tokenizer | None:
    """A tokenizer that decodes markers of tool calls and reasoning; None if they are not special tokens."""
    syntaxes = get_tool_syntax(format), reasoning_syntax(format)
    marks = [mark for syntax in syntaxes if syntax for mark in syntax.markers]
    if not tokenizer.special_tokens.keys() & set(marks):
        return None
    rules = json.loads(tokenizer.tokenizer_json)
    for added in rules["added_tokens"]:
        added["special"] = added["special"] and added["content"] not in marks
    return type(tokenizer)(tokenizers.Tokenizer.from_str(json.dumps(rules)), tokenizer.roles)


def check_vocabulary(format: ChatFormat, tokenizer: Tokenizer) -> None:
    """Raise UserError if the vocabulary lacks special tokens of a format."""
    encode_end_tokens(format, tokenizer)
    encode_chat(format, tokenizer, [Message("user", "")], add_generation_prompt=True)


def encode_pieces(pieces: Sequence[ChatPiece], tokenizer: Tokenizer) -> EncodedChat:
    """Encode special tokens by id, and the text between two of them as one text.

    Text never becomes a special token, whatever it spells. A token that spans two pieces counts to the first.
    """
    out = EncodedChat([], [])
    run: list[ChatPiece] = []
    strip = False  # whether the previous special token includes the whitespace after it (rstrip)

    def flush(rstrip: bool = False) -> None:
        text = "".join(piece.text for piece in run)
        learned = [piece.is_assistant for piece in run for _ in piece.text]
        if strip:
            learned = learned[len(text) - len(text.lstrip()) :]
            text = text.lstrip()
        text = text.rstrip() if rstrip else text
        run.clear()
        if text:
            ids, starts = tokenizer.encode_with_offsets(text, after_special=bool(out.ids))
            out.ids.extend(ids)
            out.assistant_mask.extend(learned[min(start, len(text) - 1)] for start in starts)

    for piece in _find_template_tokens(pieces, tokenizer):
        special = None if piece.kind == "text" else _find_special_token(piece, tokenizer)
        if special is None:
            if piece.kind != "role":
                run.append(piece)
            continue
        flush(special.lstrip)
        out.ids.append(special.id)
        out.assistant_mask.append(piece.is_assistant)
        strip = special.rstrip
    flush()
    return out


def encode_with_special_tokens(text: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a text, in which names of special tokens are these tokens."""
    pieces, position = list[ChatPiece](), 0
    for match in tokenizer.special_pattern.finditer(text):
        pieces += [ChatPiece(text[position : match.start()]), ChatPiece(match[0], "token")]
        position = match.end()
    return encode_pieces([*pieces, ChatPiece(text[position:])], tokenizer).ids


def _find_template_tokens(pieces: Iterable[ChatPiece], tokenizer: Tokenizer) -> Iterator[ChatPiece]:
    """The pieces, with the text of a Jinja template split at the names of special tokens.

    Names without a character of ``EDGE_CHARS`` at an end stay text: a person may have written them.
    """
    for piece in pieces:
        if piece.kind != "template":
            yield piece
            continue
        position = 0
        for match in tokenizer.special_pattern.finditer(piece.text):
            if not {match[0][0], match[0][-1]} & _EDGE_CHARS:
                continue
            yield piece._replace(text=piece.text[position : match.start()], kind="text")
            yield piece._replace(text=match[0], kind="token")
            position = match.end()
        yield piece._replace(text=piece.text[position:], kind="text")


def _find_special_token(piece: ChatPiece, tokenizer: Tokenizer) -> AddedToken | None:
    """The special token of a piece; None for a mark that is plain text, or BOS without a BOS token."""
    name = piece.text
    if piece.kind == "role":
        if name not in tokenizer.roles and name != EOS.text:
            return None
        # the end may have another role, or none, which is an error
        name = tokenizer.roles.get(name) or tokenizer.ids_to_tokens([tokenizer.eos_id])[0]
    special = tokenizer.special_tokens.get(name)
    if special is None and piece.kind != "mark":
        raise UserError(
            f"this chat format needs the token {piece.text!r}, which is not in the vocabulary; 'plain' and "
            "'zephyr' work with any"
        )
    return special
