"""Chat formats of Gemma, Phi-3 and Zephyr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from polyhead.chat.base import (
    BOS,
    EOS,
    ChatPiece,
    Message,
    assistant_piece,
    check_messages,
    merge_system,
    special_piece,
    split_system,
)
from polyhead.chat.jinja import CHECK_ALTERNATION, SPLIT_SYSTEM
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
