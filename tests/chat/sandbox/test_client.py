"""Tests of chat/sandbox/client.py: hostile and broken templates are refused in one line within limits."""

import pytest

from polyhead.chat.sandbox import client
from polyhead.chat.sandbox.client import MAX_TEMPLATE_CHARS, TemplateError, render_template
from polyhead.chat.sandbox.placeholders import EDGE_CHARS, Placeholders, choose_placeholders
from polyhead.core.errors import UserError

LOOPS = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"


@pytest.mark.acceptance("F4")
@pytest.mark.parametrize(
    ("template", "message"),
    [
        (LOOPS, "needs more than 0.3 s of CPU time"),
        ("{{ 9 ** (9 ** 9) }}", "needs more than 0.3 s of CPU time"),
        ("{{ 'x' * 10 ** 12 }}", "needs more than 512 MiB of memory"),
        ("{{ 'x' * 10 ** 7 }}", "writes more than 1,0"),
        ("{% for i in range(99999) %}{{ 'x' * 99 }}{% endfor %}", "writes more than 1,0"),
        ("{{ [].__class__.__base__.__subclasses__() }}", "'__class__' of 'list' object is unsafe"),
        ("{{ cycler.__init__.__globals__.os.system('x') }}", "'__init__' of 'type' object is unsafe"),
        ("{{ messages.append(1) }}", "is not safely callable|unsafe"),
        ("{% include '/etc/passwd' %}", "TypeError: no loader"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "chat template"),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{% for x in y", "is not valid Jinja"),
        ("x" * (MAX_TEMPLATE_CHARS + 1), "has 262,145 characters; the maximum is 262,144"),
    ],
    ids=lambda value: value[:50],
)
@pytest.mark.whole
def test_hostile_template_is_refused_in_one_line(template, message, monkeypatch):
    if "CPU time" in message:
        monkeypatch.setattr(client, "CPU_SECONDS", 0.3)
    with pytest.raises(UserError, match=message) as error:
        render_template(template, {"messages": []})
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
    assert render_template("{{ 1 + 1 }}", {}).text == "2", "the next template is rendered"


def test_exceptions_of_templates_are_template_errors():
    with pytest.raises(TemplateError, match=r"cannot write this conversation: no\.$"):
        render_template("{{ raise_exception('no\n.') if false else raise_exception('no.') }}", {})


def test_placeholders_do_not_occur_in_the_values():
    first = Placeholders(0x1000)
    used_chars = "".join([*first.originals, *first.roles.values()])
    placeholders = choose_placeholders({"x": [used_chars]})
    assert not {*placeholders.originals, *placeholders.roles.values()} & set(used_chars)
    assert placeholders.restore(placeholders.protect(used_chars + EDGE_CHARS)) == used_chars + EDGE_CHARS
    all_blocks = "".join(chr(block * 0x100) for block in range(0x1000, 0x10FF))
    with pytest.raises(UserError, match="too many private-use characters"):
        render_template("x", {"messages": all_blocks})
    token = Placeholders(0x1000).roles["eos_token"]
    rendering = render_template("{{ x }}{{ eos_token }}", {"x": token})
    assert rendering.text == token + rendering.placeholders.roles["eos_token"]
    assert rendering.text[0] != rendering.text[1]
