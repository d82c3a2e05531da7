"""Which format a published checkpoint has, told by the markers in its template, which is never run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from polyhead.errors import UserError
from polyhead.registry import CHAT, Choice
from polyhead.text.chat.base import ChatFormat

OURS = re.compile(r"\{# polyhead: (.*?) #\}")
ROLE = r"['\"]\s*\+\s*(?:\(\s*)?(?:message|role)"  # the end of a string, and then the role of a message
# what the system says where nobody speaks for it, as a string or as text of the template
STANDARD = re.compile(r"(?:(['\"])|(?<!['\"]))<\|im_start\|>system(?:\\n|\n)((?:(?!\1)[^{}<])+)<\|im_end\|>")
# what chatml is not: a system's message of its own in a variable, texts without their blanks, another end of a turn
OTHER = re.compile(
    r"set\s+\w*(?:system|default)\w*\s*=\s*['\"][^'\"]|content['\"]?\]?\s*\|\s*trim|<\|im_end\|>(?:\\n|\n)?['\"]\s*[+~]\s*eos_token"
)
END_OF_TURN = re.compile(r"<\|im_end\|>.{0,12}?(?:\\n|\n)", re.DOTALL)
# what Llama 3.1 says where no date is given; 3.2 would ask a clock, and prompts shall not change from day to day
DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"


def template_of(choice: Choice) -> str:
    """The template of a format, with a remark by which it is known again."""
    part: ChatFormat = CHAT.build(CHAT.check(choice))
    written = choice.written()
    said = json.dumps({"name": written} if isinstance(written, str) else written)
    # a remark must not end before its end, nor hold what is itself a marker
    return "{# polyhead: " + said.replace("#}", "#\\u007d") + " #}" + part.template


def recognise(template: str) -> Choice | None:
    """The format that a template writes; None where it is none of these."""
    if ours := OURS.match(template):
        try:
            found = Choice.read(json.loads(ours[1]))
            return CHAT.check(found) if found.name in CHAT.names() else None  # no file names code to import
        except (UserError, ValueError, RecursionError):
            return None
    for known in KNOWN:
        if told := known(template):
            return CHAT.check(told)
    return None


def _llama3(template: str) -> Choice | None:
    if not re.search(r"<\|start_header_id\|>" + ROLE, template) or "<|eot_id|>" not in template:
        return None
    return Choice("llama3", header=DATES if "Cutting Knowledge Date" in template else "")


def _chatml(template: str) -> Choice | None:
    if not re.search(r"<\|im_start\|>" + ROLE, template) or "<|im_end|>" not in template:
        return None
    if not re.search(r"(?:\\n|\n)['\"]\s*\+", template):  # with other blanks it is another format
        return None
    if "custom_instructions" in template:  # SmolLM3 writes the day and a mode around the system's message
        return None
    if OTHER.search(template) or not END_OF_TURN.search(template):
        return None
    system = STANDARD.search(template)
    return Choice(
        "chatml",
        system=system[2].replace("\\n", "\n") if system else "",
        bos="bos_token" in template,
        thinks="</think>" in template,
    )


def _gemma(template: str) -> Choice | None:
    if not re.search(r"<start_of_turn>" + ROLE, template) or "<end_of_turn>" not in template:
        return None
    return Choice("gemma", system="first" if "first_user_prefix" in template else "none")


def _llama2(template: str) -> Choice | None:
    return Choice("llama2") if "[INST] " in template and "<<SYS>>" in template else None


def _mistral(template: str) -> Choice | None:
    if "[/INST]" not in template or "eos_token" not in template or "[SYSTEM_PROMPT]" in template:
        return None
    if re.search(r"['\"] \[INST\] ['\"]", template):
        style = "v1"
    elif re.search(r"['\"]\[INST\] ['\"]", template):
        style = "first" if re.search(r"['\"] \[/INST\]['\"]", template) else "v3"
    elif re.search(r"['\"]\[INST\]['\"]", template):
        style = "tekken"
    else:
        return None
    if "system" not in template:
        return Choice("mistral", style=style, system="none")
    return Choice("mistral", style=style, system="first" if "loop.first" in template else "last")


def _phi3(template: str) -> Choice | None:
    lines = re.search(r"<\|user\|>(?:['\"]\s*\+\s*['\"])?(?:\\n|\n)", template)
    marks = lines and "<|end|>" in template and "<|assistant|>" in template
    return Choice("phi3", bos="bos_token" in template) if marks else None


def _zephyr(template: str) -> Choice | None:
    lines = re.search(
        r"<\|user\|>(?:\\n|\n)['\"]\s*\+\s*message\[['\"]content['\"]\]\s*\+\s*eos_token", template
    )
    return Choice("zephyr") if lines and "<|assistant|>" in template else None


def _tulu(template: str) -> Choice | None:
    lines = re.search(
        r"<\|user\|>(?:\\n|\n)['\"]\s*\+\s*message\[['\"]content['\"]\]\s*\+\s*['\"](?:\\n|\n)['\"]", template
    )
    marks = lines and "<|assistant|>" in template and "eos_token" in template
    return Choice("tulu", bos="bos_token" in template) if marks else None


KNOWN: tuple[Callable[[str], Choice | None], ...] = (
    _llama3, _chatml, _gemma, _llama2, _mistral, _phi3, _zephyr, _tulu,
)  # fmt: skip
