"""Hostile and broken templates are answered in one line within bounds."""

from __future__ import annotations

import pytest

from polyhead.chat.sandbox import client
from polyhead.chat.sandbox.client import TemplateError, render_template
from polyhead.chat.sandbox.limits import MAX_TEMPLATE_CHARS
from polyhead.chat.sandbox.placeholders import EDGE_CHARS, Placeholders, choose_placeholders
from polyhead.core.errors import UserError

LOOPS = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"


@pytest.mark.acceptance("F4")
@pytest.mark.parametrize(
    ("template", "problem"),
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
)
def test_a_hostile_template_is_answered_in_a_line(template, problem, monkeypatch):
    monkeypatch.setattr(client, "CPU_SECONDS", 0.3)
    with pytest.raises(UserError, match=problem) as error:
        render_template(template, {"messages": []})
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
    assert render_template("{{ 1 + 1 }}", {}).text == "2", "the next template is rendered"


def test_what_a_template_raises_is_told_apart():
    with pytest.raises(TemplateError, match=r"cannot write this conversation: no\\.$".replace("\\\\", "\\")):
        render_template("{{ raise_exception('no\n.') if false else raise_exception('no.') }}", {})


def test_placeholders_are_characters_that_no_text_has():
    first = Placeholders(0x1000)
    taken = "".join([*first.originals, *first.roles.values()])
    chosen = choose_placeholders({"x": [taken]})
    assert chosen is not None and not {*chosen.originals, *chosen.roles.values()} & set(taken)
    assert chosen.restore(chosen.protect(taken + EDGE_CHARS)) == taken + EDGE_CHARS
    all_blocks = "".join(chr(block * 0x100) for block in range(0x1000, 0x10FF))
    assert choose_placeholders(all_blocks) is None
    with pytest.raises(UserError, match="too many private-use characters"):
        render_template("x", {"messages": all_blocks})


def test_a_text_cannot_forge_the_token_of_a_role():
    token = Placeholders(0x1000).roles["eos_token"]
    rendering = render_template("{{ x }}{{ eos_token }}", {"x": token})
    assert rendering.text == token + rendering.placeholders.roles["eos_token"]
    assert rendering.text[0] != rendering.text[1]
