import pytest
from tests.chat.chat_helpers import detect
from tests.chat.published_chats import LOOKALIKES, PUBLISHED_TEMPLATES

from polyhead.chat.detect_template import build_template, detect_format
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT

OTHER_FORMATS = ("mistral-v7", "smollm3", "granite", "phi-4-mini", "phi-4")  # look-alikes
QWEN_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."


def test_only_equal_templates_are_a_known_format():
    choices = {family: detect(family) for family in (*PUBLISHED_TEMPLATES, *OTHER_FORMATS)}
    names = {"qwen2.5": "chatml", "qwen3": "chatml", "llama2": "llama2", "zephyr": "zephyr", "olmo2": "tulu"}
    names |= dict.fromkeys(("mixtral", "mistral-v3", "mistral-nemo"), "mistral")
    names |= dict.fromkeys(("gemma2", "gemma3"), "gemma")
    assert {family: choice.name for family, choice in choices.items() if choice.name != "jinja"} == names
    assert choices["qwen3"].options["thinks"] and not choices["qwen2.5"].options["thinks"]
    for name in choices.keys() - names:
        assert choices[name] == Choice("jinja", template=(PUBLISHED_TEMPLATES | LOOKALIKES)[name])
    for family in PUBLISHED_TEMPLATES:  # the exported template is detected
        assert detect_format(build_template(choices[family])) == choices[family]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", "does not write the message of the user"),
        ("{% for", "is not valid Jinja: unexpected 'end of template', line 1"),
        ("{{ raise_exception('no') }}", "cannot write this conversation: no"),
    ],
)
def test_unusable_template_is_refused(template, message):
    with pytest.raises(UserError, match=message):
        detect_format(template)


@pytest.mark.parametrize(("quote", "system"), [("'", QWEN_SYSTEM), ("'", "Answer me."), ('"', "You're Bob.")])
def test_default_system_message_is_detected_in_either_quotes(quote, system):
    template = PUBLISHED_TEMPLATES["qwen2.5"]
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
def test_modified_template_is_rendered_itself(old, new):
    """Each is ChatML by its marks: in whitespace, in the words about tools, in the turns of results."""
    template = PUBLISHED_TEMPLATES["qwen2.5"].replace(old, new)
    assert template != PUBLISHED_TEMPLATES["qwen2.5"] and detect_format(template).name == "jinja"


@pytest.mark.acceptance("F4")
def test_template_comment_cannot_name_code():
    comments = ['{"name": "os:system"}', '{"name": "polyhead.cli.app:main"}', "[" * 100_000]
    for comment in comments:
        template = f"{{# polyhead: {comment} #}}{PUBLISHED_TEMPLATES['openhermes']}"
        assert detect_format(template).name == "jinja"
    template = build_template(Choice("chatml"))
    assert detect_format(template) == CHAT.check(Choice("chatml"))
    assert detect_format(template.replace("# Tools", "# Functions")).name == "jinja", "a wrong comment"
