"""Formats whose marks are plain text, so that any vocabulary with an end-of-text token will do."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.registry import CHAT
from polyhead.text.chat.base import BOS, EOS, Message, Piece, check, said

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
        for role, content, *_ in messages:
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


@CHAT.register("tulu")
class Tulu:
    """Every message under a line with its role, an answer up to the end-of-text token: Tülu, OLMo 2 and others.

    As ``zephyr``, but nothing ends what others than the assistant say.

    Equation: <|user|>\\nquestion\\n<|assistant|>\\nanswer</s>\\n
    Paper: Wang et al., 2023; Lambert et al., 2024
    When: the instructed models of OLMo 2, and those made with open-instruct
    Options:
      bos: whether the begin-of-text token comes first, as in OLMo 2
    """

    ends = (EOS,)
    trims = False

    def __init__(self, *, bos: bool = False) -> None:
        self.bos = bos

    def write(self, messages: Sequence[Message], answer: bool) -> list[Piece]:
        """The conversation in pieces; an answer that ends it all ends it with the token."""
        check(messages, answer)
        pieces = [BOS] if self.bos else []
        for role, content, *_ in messages:
            own = role == "assistant"
            pieces += [Piece(f"<|{role}|>", "mark"), Piece("\n"), Piece(content, learned=own)]
            pieces += [ENDED, Piece("\n")] if own else [Piece("\n")]
        if answer:
            return [*pieces, Piece("<|assistant|>", "mark"), Piece("\n")]
        return pieces[:-1] if messages[-1].role == "assistant" else pieces

    @property
    def template(self) -> str:
        return (
            ("{{ bos_token }}" if self.bos else "")
            + "{% for message in messages %}{% set own = message['role'] == 'assistant' %}"
            "{{ '<|' + message['role'] + '|>\\n' + message['content'] }}{% if own %}{{ eos_token }}{% endif %}"
            "{% if not (own and loop.last) %}{{ '\\n' }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
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
        for role, content, *_ in messages:
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
