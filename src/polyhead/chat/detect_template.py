"""Detect the chat format of a published checkpoint by markers in its chat template (never run)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from polyhead.chat.base import ChatFormat
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT

_OWN_TEMPLATE = re.compile(r"\{# polyhead: (.*?) #\}")
# the end of a string, then the role of a message
_ROLE_PATTERN = r"['\"]\s*\+\s*(?:\(\s*)?(?:message|role)"
# default system message, as a string or as text of the template
_DEFAULT_SYSTEM = re.compile(
    r"(?:(['\"])|(?<!['\"]))<\|im_start\|>system(?:\\n|\n)((?:(?!\1)[^{}<])+)<\|im_end\|>"
)
# not chatml: a default system message in a variable, trimmed contents, or another end of a turn
_NOT_CHATML = re.compile(
    r"set\s+\w*(?:system|default)\w*\s*=\s*['\"][^'\"]|content['\"]?\]?\s*\|\s*trim|<\|im_end\|>(?:\\n|\n)?["
    r"'\"]\s*[+~]\s*eos_token"
)
_END_OF_TURN = re.compile(r"<\|im_end\|>.{0,12}?(?:\\n|\n)", re.DOTALL)
# default dates of Llama 3.1; 3.2 uses the current date, but prompts must not change from day to day
_LLAMA3_DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"


def build_template(choice: Choice) -> str:
    """The Jinja template of a format, with a comment from which ``detect_format`` restores the choice."""
    part: ChatFormat = CHAT.build(CHAT.check(choice))
    config = choice.to_config()
    config_json = json.dumps({"name": config} if isinstance(config, str) else config)
    # "#}" would end the comment
    return "{# polyhead: " + config_json.replace("#}", "#\\u007d") + " #}" + part.template


def detect_format(template: str) -> Choice | None:
    """The chat format of a template; None if it is unknown."""
    if own_comment := _OWN_TEMPLATE.match(template):
        try:
            choice = Choice.from_config(json.loads(own_comment[1]))
            # a file must not name code to import
            return CHAT.check(choice) if choice.name in CHAT.names() else None
        except (UserError, ValueError, RecursionError):
            return None
    for detector in _DETECTORS:
        if detected := detector(template):
            return CHAT.check(detected)
    return None


def _detect_llama3(template: str) -> Choice | None:
    if not re.search(r"<\|start_header_id\|>" + _ROLE_PATTERN, template) or "<|eot_id|>" not in template:
        return None
    return Choice("llama3", header=_LLAMA3_DATES if "Cutting Knowledge Date" in template else "")


def _detect_chatml(template: str) -> Choice | None:
    if not re.search(r"<\|im_start\|>" + _ROLE_PATTERN, template) or "<|im_end|>" not in template:
        return None
    if not re.search(r"(?:\\n|\n)['\"]\s*\+", template):  # with other whitespace it is another format
        return None
    if "custom_instructions" in template:  # SmolLM3 writes the date and a mode around the system message
        return None
    if _NOT_CHATML.search(template) or not _END_OF_TURN.search(template):
        return None
    system = _DEFAULT_SYSTEM.search(template)
    return Choice(
        "chatml",
        system=system[2].replace("\\n", "\n") if system else "",
        bos="bos_token" in template,
        thinks="</think>" in template,
    )


def _detect_gemma(template: str) -> Choice | None:
    if not re.search(r"<start_of_turn>" + _ROLE_PATTERN, template) or "<end_of_turn>" not in template:
        return None
    return Choice("gemma", system="first" if "first_user_prefix" in template else "none")


def _detect_llama2(template: str) -> Choice | None:
    return Choice("llama2") if "[INST] " in template and "<<SYS>>" in template else None


def _detect_mistral(template: str) -> Choice | None:
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


def _detect_phi3(template: str) -> Choice | None:
    lines = re.search(r"<\|user\|>(?:['\"]\s*\+\s*['\"])?(?:\\n|\n)", template)
    marks = lines and "<|end|>" in template and "<|assistant|>" in template
    return Choice("phi3", bos="bos_token" in template) if marks else None


def _detect_zephyr(template: str) -> Choice | None:
    lines = re.search(
        r"<\|user\|>(?:\\n|\n)['\"]\s*\+\s*message\[['\"]content['\"]\]\s*\+\s*eos_token", template
    )
    return Choice("zephyr") if lines and "<|assistant|>" in template else None


def _detect_tulu(template: str) -> Choice | None:
    lines = re.search(
        r"<\|user\|>(?:\\n|\n)['\"]\s*\+\s*message\[['\"]content['\"]\]\s*\+\s*['\"](?:\\n|\n)['\"]", template
    )
    marks = lines and "<|assistant|>" in template and "eos_token" in template
    return Choice("tulu", bos="bos_token" in template) if marks else None


_DETECTORS: tuple[Callable[[str], Choice | None], ...] = (
    _detect_llama3, _detect_chatml, _detect_gemma, _detect_llama2, _detect_mistral, _detect_phi3,
    _detect_zephyr, _detect_tulu,
)  # fmt: skip
