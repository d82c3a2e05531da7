"""Tests of chat/detect_template.py."""

from __future__ import annotations

import pytest
from tests.chat.published_chats import OTHERS, PUBLISHED

from polyhead.chat.detect_template import build_template, detect_format


@pytest.mark.parametrize("family", PUBLISHED)
def test_a_template_that_was_exported_is_recognised(family):
    choice = detect_format(PUBLISHED[family])
    assert detect_format(build_template(choice)) == choice


def test_formats_are_recognised_by_their_markers_and_others_are_not():
    found = {family: detect_format(template) for family, template in PUBLISHED.items()}
    names = {family: choice.name for family, choice in found.items()}
    assert names == {
        "qwen2": "chatml", "qwen2.5": "chatml", "qwen3": "chatml", "smollm2": "chatml",
        "openhermes": "chatml",
        "llama2": "llama2", "llama3": "llama3", "llama3.1": "llama3", "mixtral": "mistral",
        "mistral-v1": "mistral",
        "mistral-v3": "mistral", "mistral-nemo": "mistral", "gemma2": "gemma", "gemma3": "gemma",
        "phi3": "phi3",
        "phi3.5": "phi3", "zephyr": "zephyr", "olmo2": "tulu",
    }  # fmt: skip
    assert (
        found["smollm2"].options["system"]
        == "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    )
    assert found["qwen3"].options["thinks"] and not found["qwen2.5"].options["thinks"]
    assert {name: detect_format(template) for name, template in OTHERS.items()} == dict.fromkeys(OTHERS)


SAID = "'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n'"

TURNS = "{% for message in messages %}{{ " + SAID + " }}{% endfor %}"


@pytest.mark.parametrize(
    ("before", "system"),
    [
        ("", ""),
        ("{{ '<|im_start|>system\\nAnswer me.<|im_end|>\\n' }}", "Answer me."),
        ('{{ "<|im_start|>system\\nYou\'re Bob.<|im_end|>\\n" }}', "You're Bob."),
        ('<|im_start|>system\nYou\'re "Bob".<|im_end|>\n', 'You\'re "Bob".'),
    ],
)
def test_what_the_system_says_by_itself_is_found_however_it_is_quoted(before, system):
    assert detect_format(before + TURNS).options["system"] == system


@pytest.mark.parametrize(
    "other",
    [
        "{% set system_message = 'A conversation.' %}" + TURNS,
        TURNS.replace("<|im_end|>\\n'", "<|im_end|>\\n' + eos_token"),
        TURNS.replace("message['content']", "message['content'] | trim"),
        TURNS.replace("<|im_end|>\\n'", "<|im_end|>'"),
    ],
)
def test_what_is_only_like_chatml_is_not_taken_for_it(other):
    assert other != TURNS and detect_format(TURNS) and detect_format(other) is None


@pytest.mark.acceptance("F4")
def test_no_template_names_code():
    for evil in ("os:system", "polyhead.cli.app:main"):
        assert detect_format('{# polyhead: {"name": "' + evil + '"} #}') is None
    assert detect_format("{# polyhead: " + "[" * 100_000 + " #}") is None
