"""What of Jinja is needed to write a template; none is ever run."""

from __future__ import annotations

ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
ALTERNATE = (
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('user and assistant must take turns, the user first') }}{% endif %}"
)
APART = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set turns = messages[1:] %}"
    "{% else %}{% set system = none %}{% set turns = messages %}{% endif %}"
)


def quoted(text: str) -> str:
    """A text as a string of Jinja."""
    return "'" + "".join(ESCAPES.get(c, c) for c in text) + "'"
