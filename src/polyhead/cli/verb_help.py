"""The help of one verb: types in words, and options in groups."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

_TYPES = {"int": "NUMBER", "int range": "NUMBER", "float": "NUMBER", "str": "TEXT", "path": "PATH"}
_TYPES |= {"float range": "NUMBER", "list[str]": "TEXT", "list[int]": "NUMBER"}
_WORDS = [
    (r"default: \((.+)\)", r"default: \1"),
    (r"(\S+)<=x<=(\S+)(?=[];])", r"\1 to \2"),
    (r"x>=(\S+)(?=[];])", r"at least \1"),
    (r"x<=(\S+)(?=[];])", r"at most \1"),
]


class VerbCommand(TyperCommand):
    """A command whose help lists options under the headings of their ``rich_help_panel``."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                default = "Arguments" if param.param_type_name == "argument" else "Options"
                heading = vars(param).get("rich_help_panel") or default
                sections.setdefault(heading, []).append(_to_words(heading, *record))
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def _to_words(heading: str, name: str, text: str) -> tuple[str, str]:
    """Replace Python types and inequalities by words: ``--seed NUMBER``, ``at least 0``."""
    if heading == "Arguments":
        name = name.partition(" <")[0]
    name = re.sub(r"<([a-z\[\] ]+)>", lambda match: _TYPES.get(match[1], match[1].upper()), name)
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    return name, text
