"""Chat format of Gemma."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from polyhead.chat.base import (
    BOS,
    EOS,
    ChatPiece,
    Message,
    check_messages,
    merge_system,
    special_piece,
    split_system,
)
from polyhead.chat.jinja_quote import CHECK_ALTERNATION, SPLIT_SYSTEM
from polyhead.core.registry import CHAT

_TURN_START, _TURN_END = "<start_of_turn>", "<end_of_turn>"


@CHAT.register("gemma")
class Gemma:
    """Each message between ``<start_of_turn>`` and ``<end_of_turn>``; the role of the assistant is "model".

    Equation: <bos>  <start_of_turn>user\\nquestion<end_of_turn>\\n
              <start_of_turn>model\\nanswer<end_of_turn>\\n
    Paper: Gemma Team, 2024
    When: Gemma and models derived from it
    Options:
      system: first: the system message comes before the first user message, as in Gemma 3; none: so it does,
        but the published template refuses it
    """

    end_tokens = (special_piece(_TURN_END), EOS)
    trim_content = True

    def __init__(self, *, system: Literal["first", "none"] = "first") -> None:
        self.system = system

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[ChatPiece]:
        """Render the conversation as pieces."""
        check_messages(messages, add_generation_prompt, "gemma")
        system, turns = split_system(merge_system(messages))
        pieces = [BOS]
        for i, (role, content, *_) in enumerate(turns):
            is_assistant = role == "assistant"
            prefix = f"{system}\n\n" if system is not None and i == 0 else ""
            pieces += [
                special_piece(_TURN_START),
                ChatPiece(("model" if is_assistant else role) + "\n" + prefix),
            ]
            pieces += [
                ChatPiece(content.strip(), is_assistant=is_assistant),
                special_piece(_TURN_END, is_assistant),
                ChatPiece("\n"),
            ]
        return (
            [*pieces, special_piece(_TURN_START), ChatPiece("model\n")] if add_generation_prompt else pieces
        )

    @property
    def template(self) -> str:
        refuse = (
            "{{ raise_exception('no place for a message of the system') }}" if self.system == "none" else ""
        )
        return (
            SPLIT_SYSTEM + "{% if system is not none %}" + refuse + "{% endif %}{{ bos_token }}"
            "{% for message in turns %}"
            + CHECK_ALTERNATION
            + "{% set role = message['role'] | replace('assistant', 'model') %}"
            "{% set before = system + '\\n\\n' if loop.first and system is not none else '' %}"
            "{{ '<start_of_turn>' + role + '\\n' + before + message['content'] | trim + '<end_of_turn>\\n' "
            "}}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
        )
