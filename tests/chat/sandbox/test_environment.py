"""Tests of chat/sandbox/environment.py: templates treat placeholders as the characters that they replace."""

import json
from pathlib import Path

import jinja2.sandbox
import pytest

from polyhead.chat.sandbox.client import render_template
from polyhead.core.errors import UserError

TEXTS = ["a<b>c", "<think>x</think>y", "</think>", "<tool_response>1</tool_response>", "", " <x> \n"]
TEXTS += ["a/b//c/", "x</think>y</think>z", "{}[]", "<<>>", "é<é>"]
EXPRESSIONS = (Path(__file__).parent / "expressions.txt").read_text().splitlines()


def test_expressions_have_the_value_without_placeholders():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    for expression in EXPRESSIONS:
        template = "{% for x in texts %}{% set y = x %}<{{ " + expression + " }}>{% endfor %}"
        expected = environment.from_string(template).render(texts=TEXTS)
        rendering = render_template(template, {"texts": TEXTS})
        assert rendering.placeholders.restore(rendering.text) == expected, expression


def test_only_copied_text_has_placeholders():
    rendering = render_template("<{{ x }}>{{ x.split('<')[1] }}<b>", {"x": "a<b>"})
    protect = rendering.placeholders.protect
    assert rendering.text == "<" + protect("a<b>") + ">" + protect("b>") + "<b>"
    template = "{{ x | urlencode }}"
    assert render_template(template, {"x": "abc"}).text == "abc"
    with pytest.raises(UserError, match="which then looks like its own"):
        render_template(template, {"x": "a<b"})
    loop = "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}"
    loop += "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render_template(loop + "{{ strftime_now('%%') }}", {}).text == "013%"
