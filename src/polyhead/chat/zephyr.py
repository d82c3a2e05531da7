"""Chat formats with plain-text markers, which need no special token but EOS."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.chat.base import BOS, EOS, ChatPiece, Message, assistant_piece, check_messages
from polyhead.core.registry import CHAT

_ASSISTANT_EOS = EOS._replace(is_assistant=True)


@CHAT.register("zephyr")
class Zephyr:
    """Each message under a line with its role, up to EOS: Zephyr, TinyLlama and others.

    The role markers are special tokens if the vocabulary has them, else plain text.

    Equation: <|user|>\\nquestion</s>\\n<|assistant|>\\nanswer</s>\\n
    Paper: Tunstall et al., 2023
    When: models trained with the alignment handbook
    """

    end_tokens = (EOS,)
    trim_content = False

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[ChatPiece]:
        """The conversation in pieces."""
        check_messages(messages, add_generation_prompt)
        pieces: list[ChatPiece] = []
        for role, content, *_ in messages:
            is_assistant = role == "assistant"
            pieces += [
                ChatPiece(f"<|{role}|>", "mark"),
                ChatPiece("\n"),
                ChatPiece(content, is_assistant=is_assistant),
            ]
            pieces += [_ASSISTANT_EOS if is_assistant else EOS, ChatPiece("\n")]
        return (
            [*pieces, ChatPiece("<|assistant|>", "mark"), ChatPiece("\n")]
            if add_generation_prompt
            else pieces
        )

    @property
    def template(self) -> str:
        return (
            "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + "
            "eos_token + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% "
            "endif %}"
        )


@CHAT.register("tulu")
class Tulu:
    """Each message under a line with its role, and EOS after each answer: Tülu, OLMo 2 and others.

    Like ``zephyr``, but only assistant messages end with EOS.

    Equation: <|user|>\\nquestion\\n<|assistant|>\\nanswer</s>\\n
    Paper: Wang et al., 2023; Lambert et al., 2024
    When: the instruct models of OLMo 2, and models trained with open-instruct
    Options:
      bos: whether BOS comes first, as in OLMo 2
    """

    end_tokens = (EOS,)
    trim_content = False

    def __init__(self, *, bos: bool = False) -> None:
        self.bos = bos

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[ChatPiece]:
        """Render the conversation as pieces; a final answer ends with EOS, without a newline."""
        check_messages(messages, add_generation_prompt)
        pieces = [BOS] if self.bos else []
        for role, content, *_ in messages:
            is_assistant = role == "assistant"
            pieces += [
                ChatPiece(f"<|{role}|>", "mark"),
                ChatPiece("\n"),
                ChatPiece(content, is_assistant=is_assistant),
            ]
            pieces += [_ASSISTANT_EOS, ChatPiece("\n")] if is_assistant else [ChatPiece("\n")]
        if add_generation_prompt:
            return [*pieces, ChatPiece("<|assistant|>", "mark"), ChatPiece("\n")]
        return pieces[:-1] if messages[-1].role == "assistant" else pieces

    @property
    def template(self) -> str:
        return (
            ("{{ bos_token }}" if self.bos else "")
            + "{% for message in messages %}{% set own = message['role'] == 'assistant' %}"
            "{{ '<|' + message['role'] + '|>\\n' + message['content'] }}{% if own %}{{ eos_token }}{% endif "
            "%}{% if not (own and loop.last) %}{{ '\\n' }}{% endif %}{% endfor %}{% if "
            "add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
        )


@CHAT.register("plain")
class PlainChat:
    """Each message as a document that starts with the name of its role: the default for models trained here.

    Every vocabulary has EOS, which separates documents, and no text can spell it.

    Equation: </s>User: question</s>Assistant: answer</s>
    When: a language model trained here is fine-tuned on conversations; the default format
    """

    end_tokens = (EOS,)
    trim_content = True

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[ChatPiece]:
        """The conversation in pieces."""
        check_messages(messages, add_generation_prompt)
        pieces = [EOS]
        for role, content, *_ in messages:
            words, is_assistant = f" {content.strip()}", role == "assistant"
            pieces += [
                ChatPiece(f"{role.capitalize()}:"),
                assistant_piece(words) if is_assistant else ChatPiece(words),
                _ASSISTANT_EOS if is_assistant else EOS,
            ]
        return [*pieces, ChatPiece("Assistant:")] if add_generation_prompt else pieces

    @property
    def template(self) -> str:
        return (
            "{{ eos_token }}{% for message in messages %}"
            "{{ message['role'] | capitalize + ': ' + message['content'] | trim + eos_token }}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
        )
