"""The formats of Llama 2 and Llama 3."""

from __future__ import annotations

import json
from collections.abc import Sequence

from polyhead.errors import UserError
from polyhead.registry import CHAT
from polyhead.text.chat.base import BOS, EOS, Message, Piece, apart, check, said, token
from polyhead.text.chat.calls import Calls
from polyhead.text.chat.jinja import ALTERNATE, APART, quoted
from polyhead.text.chat.tools import Tools

HEAD, TITLE, END = "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"
ENVIRONMENT = "Environment: ipython\n"
TOOLS = (
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best "
    'answers the given prompt.\n\nRespond in the format {"name": function name, "parameters": dictionary of argument '
    "name and its value}.Do not use variables.\n\n"
)


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
        for i, (role, content, *_) in enumerate(turns):
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

    Tools stand before the first question, as in Llama 3.1; an answer calls one of them or none, and then says nothing else.

    Equation: <|begin_of_text|>  <|start_header_id|>role<|end_header_id|>\\n\\ncontent<|eot_id|> ...
    Paper: Grattafiori et al., 2024
    When: Llama 3, 3.1, 3.2 and models made of them
    Options:
      header: what the system's message begins with, which is then there in any case; Llama 3.1 wants dates there
    """

    ends = (token(END), Piece("<|eom_id|>", "mark"), EOS)  # the second ends some calls
    trims = True
    calls = Calls(key="parameters", several=False)

    def __init__(self, *, header: str = "") -> None:
        self.header = header

    def write(self, messages: Sequence[Message], answer: bool, tools: Tools = Tools()) -> list[Piece]:
        """The conversation in pieces."""
        check(messages, answer, calls=True)
        header = f"{ENVIRONMENT if tools.all else ''}{self.header}"
        system, turns = apart(messages)
        pieces = [BOS]
        if header or system is not None:
            pieces += _turn("system", Piece(header + (system or "").strip()))
        if tools.all and turns[0].role != "user":
            raise UserError("in this chat format tools stand in the first message, which must be the user's")
        given = "".join(f"{json.dumps(tool.given, ensure_ascii=False, indent=4)}\n\n" for tool in tools.all)
        for i, message in enumerate(turns):
            head, said = TOOLS + given if given and i == 0 else "", self._said(message)
            role = "ipython" if message.role == "tool" else message.role
            pieces += _turn(role, Piece(head + said, learned=role == "assistant"))
        return [*pieces, token(HEAD), Piece("assistant"), token(TITLE), Piece("\n\n")] if answer else pieces

    def _said(self, message: Message) -> str:
        """The words of a turn: a result as JSON writes it, and of an answer that calls the call alone."""
        if message.role == "tool":
            return json.dumps(message.content, ensure_ascii=False)
        if len(message.calls) > 1:
            raise UserError(
                f"this chat format writes one call at once, and a message has {len(message.calls)}"
            )
        return self.calls.said(message.calls[0]) if message.calls else message.content.strip()

    @property
    def template(self) -> str:
        opening = quoted(f"{HEAD}assistant{TITLE}\n\n")
        begin = (
            APART
            + "{{ bos_token }}{% if "
            + ("true" if self.header else "tools or system is not none")
            + " %}{{ "
        )
        begin += quoted(f"{HEAD}system{TITLE}\n\n") + " + (" + quoted(ENVIRONMENT) + " if tools else '') + "
        begin += quoted(self.header) + " + ((system or '') | trim) + '<|eot_id|>' }}{% endif %}"
        return begin + _TURNS + "{% if add_generation_prompt %}{{ " + opening + " }}{% endif %}"


def _turn(role: str, content: Piece) -> list[Piece]:
    return [token(HEAD), Piece(role), token(TITLE), Piece("\n\n"), content, token(END, content.learned)]


_TURNS = (
    "{% for message in turns %}{% set role = message['role'] %}{% set content = (message['content'] or '') | trim %}"
    "{% if role == 'tool' %}{% set role = 'ipython' %}{% set content = (message['content'] or '') | tojson %}"
    "{% elif message['tool_calls'] %}{% if message['tool_calls'] | length > 1 %}"
    "{{ raise_exception('one call at once') }}{% endif %}{% set call = message['tool_calls'][0]['function'] %}"
    "{% set given = call['arguments'] if call['arguments'] is string else call['arguments'] | tojson %}"
    "{% set content = '{\"name\": \"' + call['name'] + '\", \"parameters\": ' + given + '}' %}{% endif %}"
    "{{ '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}{% if tools and loop.first %}{{ "
    + quoted(TOOLS)
    + " }}{% for tool in tools %}{{ (tool | tojson(indent=4)) + '\\n\\n' }}{% endfor %}{% endif %}"
    "{{ content + '<|eot_id|>' }}{% endfor %}"
)
