"""The formats of Llama 2 and Llama 3."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.registry import CHAT
from polyhead.text.chat.base import BOS, EOS, Message, Piece, apart, check, said, token
from polyhead.text.chat.jinja import ALTERNATE, APART, quoted

HEAD, TITLE, END = "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"


@CHAT.register("llama2")
class Llama2:
    """Questions between ``[INST]`` and ``[/INST]``, which are plain text; what the system says stands in the first one.

    Equation: <s>[INST] <<SYS>>\\nsystem\\n<</SYS>>\\n\\nquestion [/INST] answer </s>
    Paper: Touvron et al., 2023
    When: Llama 2 and models made of it
    """

    ends = (EOS,)
    trims = True

    def write(self, messages: Sequence[Message], answer: bool) -> list[Piece]:
        """The conversation in pieces."""
        check(messages, answer, "llama2")
        system, turns = apart(messages)
        pieces: list[Piece] = []
        for i, (role, content) in enumerate(turns):
            if role == "assistant":
                pieces += [said(f" {content.strip()} "), EOS._replace(learned=True)]
                continue
            if i == 0 and system is not None:
                content = f"<<SYS>>\n{system}\n<</SYS>>\n\n{content}"
            pieces += [BOS, Piece(f"[INST] {content.strip()} [/INST]")]
        return pieces

    @property
    def template(self) -> str:
        return (
            APART + "{% for message in turns %}" + ALTERNATE + "{% if loop.first and system is not none %}"
            "{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}"
            "{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
            "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% else %}"
            "{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
        )


@CHAT.register("llama3")
class Llama3:
    """Every message under a header with its role, up to ``<|eot_id|>``.

    Equation: <|begin_of_text|>  <|start_header_id|>role<|end_header_id|>\\n\\ncontent<|eot_id|> ...
    Paper: Grattafiori et al., 2024
    When: Llama 3, 3.1, 3.2 and models made of them
    Options:
      header: what the system's message begins with, which is then there in any case; Llama 3.1 wants dates there
    """

    ends = (token(END), EOS)
    trims = True

    def __init__(self, *, header: str = "") -> None:
        self.header = header

    def write(self, messages: Sequence[Message], answer: bool) -> list[Piece]:
        """The conversation in pieces."""
        check(messages, answer)
        if self.header:
            system, turns = apart(messages)
            messages = [Message("system", (system or "").strip()), *turns]
        pieces = [BOS]
        for role, content in messages:
            own, header = role == "assistant", self.header if role == "system" else ""
            pieces += [token(HEAD), Piece(role), token(TITLE), Piece(f"\n\n{header}")]
            pieces += [Piece(content.strip(), learned=own), token(END, own)]
        return [*pieces, token(HEAD), Piece("assistant"), token(TITLE), Piece("\n\n")] if answer else pieces

    @property
    def template(self) -> str:
        message = "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}"
        opening = quoted(f"{HEAD}assistant{TITLE}\n\n")
        begin = "{{ bos_token }}{% set turns = messages %}"
        if self.header:
            header = quoted(f"{HEAD}system{TITLE}\n\n{self.header}")
            begin = APART + "{{ bos_token + " + header + " + ((system or '') | trim) + '<|eot_id|>' }}"
        turns = begin + "{% for message in turns %}" + message + "{% endfor %}"
        return turns + "{% if add_generation_prompt %}{{ " + opening + " }}{% endif %}"
