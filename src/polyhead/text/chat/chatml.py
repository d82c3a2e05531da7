"""ChatML: every message between two special tokens, with the name of its role."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.registry import CHAT
from polyhead.text.chat.base import BOS, EOS, Message, Piece, apart, check, token
from polyhead.text.chat.jinja import quoted

OPEN, CLOSE = "<|im_start|>", "<|im_end|>"
THOUGHT, DONE = "<think>\n", "\n</think>\n\n"


@CHAT.register("chatml")
class ChatML:
    """Every message between ``<|im_start|>`` and ``<|im_end|>``: Qwen, SmolLM and many others.

    With ``thinks`` an answer of before the last question is written without what stands before ``</think>`` in it, and
    one after that question with its thoughts, empty ones if it has none.

    Equation: <|im_start|>role\\ncontent<|im_end|>\\n ...  <|im_start|>assistant\\n
    Paper: OpenAI, 2023; Bai et al., 2023
    When: the vocabulary has these tokens
    Options:
      system: what the system says where no message of it comes first
      bos: whether the begin-of-text token comes first
      thinks: whether the model thinks aloud before it answers, as Qwen 3
    """

    ends = (token(CLOSE), EOS)
    trims = False

    def __init__(self, *, system: str = "", bos: bool = False, thinks: bool = False) -> None:
        self.system, self.bos, self.thinks = system, bos, thinks

    def write(self, messages: Sequence[Message], answer: bool) -> list[Piece]:
        """The conversation in pieces."""
        check(messages, answer)
        if self.system and apart(messages)[0] is None:
            messages = [Message("system", self.system), *messages]
        last = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
        pieces = [BOS] if self.bos else []
        for i, (role, content) in enumerate(messages):
            own = role == "assistant"
            if own and self.thinks:
                content = _told(content, i > last, i == len(messages) - 1)
            pieces += [token(OPEN), Piece(f"{role}\n"), Piece(content, learned=own)]
            pieces += [token(CLOSE, own), Piece("\n")]
        return [*pieces, token(OPEN), Piece("assistant\n")] if answer else pieces

    @property
    def template(self) -> str:
        begin = "{{ bos_token }}" if self.bos else ""
        if self.system:
            head = quoted(f"{OPEN}system\n{self.system}{CLOSE}\n")
            begin += "{% if messages[0]['role'] != 'system' %}{{ " + head + " }}{% endif %}"
        content = _THINKING if self.thinks else "{% set content = message['content'] %}"
        return (
            begin
            + (_LAST if self.thinks else "")
            + "{% for message in messages %}"
            + content
            + "{{ '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
        )


def _told(content: str, recent: bool, last: bool) -> str:
    """An answer as a model that thinks reads it again."""
    thought, sep, _ = content.partition("</think>")
    if sep:
        content = content.rpartition("</think>")[2].lstrip("\n")
        thought = thought.rstrip("\n").rpartition("<think>")[2].strip("\n")
    else:
        thought = ""
    if recent and (last or thought):
        return THOUGHT + thought + DONE + content.lstrip("\n")
    return content


_LAST = (
    "{% set ns = namespace(last=-1) %}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
)
_THINKING = (
    "{% set content = message['content'] %}{% if message['role'] == 'assistant' %}{% set thought = '' %}"
    "{% if '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].strip('\\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}"
    "{% set content = '<think>\\n' + thought + '\\n</think>\\n\\n' + content.lstrip('\\n') %}{% endif %}{% endif %}"
)
