"""Helpers to write Jinja templates."""

from __future__ import annotations

ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
CHECK_ALTERNATION = (
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('user and assistant must take turns, the user first') }}{% endif %}"
)
SPLIT_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set turns = "
    "messages[1:] %}{% else %}{% set system = none %}{% set turns = messages %}{% endif %}"
)


def quote(text: str) -> str:
    """Quote a text as a Jinja string literal."""
    return "'" + "".join(ESCAPES.get(c, c) for c in text) + "'"
