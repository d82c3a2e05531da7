"""The format of Phi-3."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.registry import CHAT
from polyhead.text.chat.base import BOS, EOS, Message, Piece, check, token

END = "<|end|>"


@CHAT.register("phi3")
class Phi3:
    """Every message after a token of its role, up to ``<|end|>``.

    Equation: <|user|>\\nquestion<|end|>\\n<|assistant|>\\nanswer<|end|>\\n
    Paper: Abdin et al., 2024
    When: Phi-3, Phi-3.5 and models made of them
    Options:
      bos: whether the begin-of-text token comes first, as in the first edition; else the end-of-text token ends it all
    """

    ends = (token(END), EOS)
    trims = False

    def __init__(self, *, bos: bool = False) -> None:
        self.bos = bos

    def write(self, messages: Sequence[Message], answer: bool) -> list[Piece]:
        """The conversation in pieces."""
        check(messages, answer)
        pieces = [BOS] if self.bos else []
        for role, content, *_ in messages:
            own = role == "assistant"
            pieces += [
                token(f"<|{role}|>"),
                Piece("\n"),
                Piece(content, learned=own),
                token(END, own),
                Piece("\n"),
            ]
        if answer:
            return [*pieces, token("<|assistant|>"), Piece("\n")]
        return pieces if self.bos else [*pieces, EOS]

    @property
    def template(self) -> str:
        return (
            ("{{ bos_token }}" if self.bos else "")
            + "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}"
            + ("" if self.bos else "{% else %}{{ eos_token }}")
            + "{% endif %}"
        )
