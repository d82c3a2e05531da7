"""Chat format of Phi-3."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.chat.base import BOS, EOS, ChatPiece, Message, check_messages, special_piece
from polyhead.core.registry import CHAT

_END = "<|end|>"


@CHAT.register("phi3")
class Phi3:
    """Each message after a special token of its role, up to ``<|end|>``.

    Equation: <|user|>\\nquestion<|end|>\\n<|assistant|>\\nanswer<|end|>\\n
    Paper: Abdin et al., 2024
    When: Phi-3, Phi-3.5 and models derived from them
    Options:
      bos: whether BOS comes first, as in the first release; else EOS ends the conversation
    """

    end_tokens = (special_piece(_END), EOS)
    trim_content = False

    def __init__(self, *, bos: bool = False) -> None:
        self.bos = bos

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[ChatPiece]:
        """Render the conversation as pieces."""
        check_messages(messages, add_generation_prompt)
        pieces = [BOS] if self.bos else []
        for role, content, *_ in messages:
            is_assistant = role == "assistant"
            pieces += [
                special_piece(f"<|{role}|>"),
                ChatPiece("\n"),
                ChatPiece(content, is_assistant=is_assistant),
                special_piece(_END, is_assistant),
                ChatPiece("\n"),
            ]
        if add_generation_prompt:
            return [*pieces, special_piece("<|assistant|>"), ChatPiece("\n")]
        return pieces if self.bos else [*pieces, EOS]

    @property
    def template(self) -> str:
        return (
            ("{{ bos_token }}" if self.bos else "")
            + "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + "
            "'<|end|>\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}"
            + ("" if self.bos else "{% else %}{{ eos_token }}")
            + "{% endif %}"
        )
