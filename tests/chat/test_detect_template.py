"""Tests of chat/detect_template.py."""

from __future__ import annotations

import pytest
from tests.chat.published_chats import OTHERS, PUBLISHED

from polyhead.chat.detect_template import build_template, detect_format
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT


@pytest.mark.parametrize("family", PUBLISHED)
def test_a_template_that_was_exported_is_recognised(family):
    choice = detect_format(PUBLISHED[family])
    assert detect_format(build_template(choice)) == choice


def test_a_template_is_a_known_format_only_if_it_writes_the_same():
    found = {family: detect_format(template) for family, template in PUBLISHED.items()}
    known = {family: choice.name for family, choice in found.items() if choice.name != "jinja"}
    assert known == {
        "qwen2.5": "chatml", "qwen3": "chatml", "llama2": "llama2", "mixtral": "mistral",
        "mistral-v3": "mistral", "mistral-nemo": "mistral", "gemma2": "gemma", "gemma3": "gemma",
        "zephyr": "zephyr", "olmo2": "tulu",
    }  # fmt: skip
    assert found["qwen3"].options["thinks"] and not found["qwen2.5"].options["thinks"]
    others = [name for name in OTHERS if name not in ("nothing", "broken")]
    for template in [
        *(OTHERS[name] for name in others),
        *(PUBLISHED[n] for n in found.keys() - known.keys()),
    ]:
        assert detect_format(template) == Choice("jinja", template=template)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("", "does not write the message of the user"),
        ("{% for", "is not valid Jinja: unexpected 'end of template', line 1"),
        ("{{ raise_exception('no') }}", "cannot write this conversation: no"),
    ],
)
def test_a_template_that_writes_nothing_is_refused(template, problem):
    with pytest.raises(UserError, match=problem):
        detect_format(template)


QWEN_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."


@pytest.mark.parametrize(("quote", "system"), [("'", QWEN_SYSTEM), ("'", "Answer me."), ('"', "You're Bob.")])
def test_the_default_system_message_is_found_however_it_is_quoted(quote, system):
    template = PUBLISHED["qwen2.5"]
    for text in (QWEN_SYSTEM, f"<|im_start|>system\\n{QWEN_SYSTEM}<|im_end|>\\n"):
        template = template.replace(f"'{text}'", quote + text.replace(QWEN_SYSTEM, system) + quote)
    assert detect_format(template).options["system"] == system


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("message.content + '<|im_end|>'", "message.content | trim + '<|im_end|>'"),
        ("'<|im_end|>' + '\\n'", "'<|im_end|>'"),
        ("# Tools", "# Functions"),
        ("{{- message.content }}", "{{- message.content | tojson }}"),
        ("tool | tojson", "tool.function | tojson"),
        ("'You are Qwen,", "strftime_now('%Y') + 'You are Qwen,"),
        ("not loop.first)", "loop.first)"),
        ("'<|im_start|>user'", "'<|im_start|>tool'"),
    ],
)
def test_a_template_that_differs_in_one_place_is_rendered_itself(old, new):
    """Each is ChatML by its marks: in whitespace, in the words about tools, in the turns of results."""
    other = PUBLISHED["qwen2.5"].replace(old, new)
    assert other != PUBLISHED["qwen2.5"] and detect_format(other).name == "jinja"


def test_a_comment_that_the_template_does_not_keep_is_not_believed():
    written = build_template(Choice("chatml"))
    assert detect_format(written) == CHAT.check(Choice("chatml"))
    assert detect_format(written.replace("# Tools", "# Functions")).name == "jinja"


@pytest.mark.acceptance("F4")
def test_no_template_names_code():
    for evil in ("os:system", "polyhead.cli.app:main"):
        comment = '{# polyhead: {"name": "' + evil + '"} #}'
        assert detect_format(comment + PUBLISHED["openhermes"]).name == "jinja"
    assert detect_format("{# polyhead: " + "[" * 100_000 + " #}" + PUBLISHED["openhermes"]).name == "jinja"
