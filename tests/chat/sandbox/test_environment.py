"""Templates do with placeholders what they do with the characters that they stand for."""

from __future__ import annotations

import jinja2.sandbox
import pytest

from polyhead.chat.sandbox.client import render_template
from polyhead.core.errors import UserError

TEXTS = [
    "a<b>c", "<think>x</think>y", "</think>", "<tool_response>1</tool_response>", "", " <x> \n", "a/b//c/",
    "x</think>y</think>z", "{}[]", "<<>>", "é<é>",
]  # fmt: skip
EXPRESSIONS = [
    "x.split('</think>') | join('|')",
    "x.split('</think>')[-1].lstrip('\n')",
    "x.split('/', 1) | join('|')",
    "x.rsplit('/', 1) | join('|')",
    "x.partition('<') | join('|')",
    "x.rpartition('>') | join('|')",
    "x.strip('<>')",
    "x.lstrip('<')",
    "x.rstrip('/>')",
    "x | trim",
    "x.replace('<', '(')",
    "x.replace('/', '', 1)",
    "x | replace('<', '[')",
    "x | replace('/', '-', 1)",
    "x.startswith('<think>')",
    "x.endswith('</tool_response>')",
    "x.find('<')",
    "x.rfind('>')",
    "x.count('/')",
    "x.removeprefix('<')",
    "x.removesuffix('>')",
    "'</think>' in x",
    "x == 'a<b>c'",
    "x in ['</think>']",
    "x in {'{}[]': 1}",
    "x < 'a<'",
    "x | length",
    "x.split() | join('|')",
    "x | upper",
    "x[::-1]",
    "x | tojson",
    "x ~ '</s>'",
    "x.index('<') if '<' in x else -1",
    "[x, x] | join('<')",
    "'%s' % x",
    "'{}'.format(x)",
    "x is string",
    "x | first if x else ''",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_has_the_value_that_it_has_without_placeholders(expression):
    own = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    own.filters["tojson"] = lambda value: __import__("json").dumps(value, ensure_ascii=False)
    template = "{% for x in messages %}{% set y = x %}<" + "{{ " + expression + " }}>{% endfor %}"
    template = template.replace("x in messages", "x in texts")
    wanted = own.from_string(template).render(texts=TEXTS)
    rendering = render_template(template, {"texts": TEXTS})
    assert rendering.placeholders.restore(rendering.text) == wanted


def test_what_a_template_writes_itself_has_no_placeholder_and_what_it_copies_has():
    rendering = render_template("<{{ x }}>{{ x.split('<')[1] }}<b>", {"x": "a<b>"})
    protect = rendering.placeholders.protect
    assert rendering.text == "<" + protect("a<b>") + ">" + protect("b>") + "<b>"


def test_a_template_that_makes_its_text_of_what_a_person_wrote_is_refused():
    template = "{{ x | urlencode }}"
    assert render_template(template, {"x": "abc"}).text == "abc"
    with pytest.raises(UserError, match="which then looks like its own"):
        render_template(template, {"x": "a<b"})


def test_loop_controls_and_dates_are_those_of_transformers():
    text = (
        "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}"
    )
    assert render_template(text + "{{ i }}{% endfor %}{{ strftime_now('%%') }}", {}).text == "013%"
