"""Formats whose marks are plain text, so that any vocabulary with an end-of-text token will do."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.registry import CHAT
from polyhead.text.chat.base import EOS, Message, Piece, check, said

ENDED = EOS._replace(learned=True)


@CHAT.register("zephyr")
class Zephyr:
    """Every message under a line with its role, up to the end-of-text token: Zephyr, TinyLlama and others.

    The lines are special tokens where the vocabulary has such, else plain text.

    Equation: <|user|>\\nquestion</s>\\n<|assistant|>\\nanswer</s>\\n
    Paper: Tunstall et al., 2023
    When: models made with the alignment handbook
    """

    ends = (EOS,)
    trims = False

    def write(self, messages: Sequence[Message], answer: bool) -> list[Piece]:
        """The conversation in pieces."""
        check(messages, answer)
        pieces: list[Piece] = []
        for role, content in messages:
            own = role == "assistant"
            pieces += [Piece(f"<|{role}|>", "mark"), Piece("\n"), Piece(content, learned=own)]
            pieces += [ENDED if own else EOS, Piece("\n")]
        return [*pieces, Piece("<|assistant|>", "mark"), Piece("\n")] if answer else pieces

    @property
    def template(self) -> str:
        return (
            "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
        )


@CHAT.register("plain")
class Plain:
    """Every message a document of its own, which begins with the name of its role: for models that are trained here.

    No vocabulary lacks the end-of-text token that parts documents, and nobody can write it.

    Equation: </s>User: question</s>Assistant: answer</s>
    When: a language model of one's own learns to converse; what is not said otherwise is this
    """

    ends = (EOS,)
    trims = True

    def write(self, messages: Sequence[Message], answer: bool) -> list[Piece]:
        """The conversation in pieces."""
        check(messages, answer)
        pieces = [EOS]
        for role, content in messages:
            words, own = f" {content.strip()}", role == "assistant"
            pieces += [
                Piece(f"{role.capitalize()}:"),
                said(words) if own else Piece(words),
                ENDED if own else EOS,
            ]
        return [*pieces, Piece("Assistant:")] if answer else pieces

    @property
    def template(self) -> str:
        return (
            "{{ eos_token }}{% for message in messages %}"
            "{{ message['role'] | capitalize + ': ' + message['content'] | trim + eos_token }}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
        )
