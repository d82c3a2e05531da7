"""The help of one verb, in English or Chinese: types in words, and options in groups."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

from polyhead.core.i18n import translate_message

_TYPES = {"int": "NUMBER", "int range": "NUMBER", "float": "NUMBER", "str": "TEXT", "path": "PATH"}
_TYPES |= {"float range": "NUMBER", "list[str]": "TEXT", "list[int]": "NUMBER"}
_WORDS = [
    (r"default: \((.+)\)", r"default: \1"),
    (r"(\S+)<=x<=(\S+)(?=[];])", r"\1 to \2"),
    (r"x>=(\S+)(?=[];])", r"at least \1"),
    (r"x<=(\S+)(?=[];])", r"at most \1"),
]
_RAW = "\b\n"  # click does not wrap a paragraph that starts with this line
# a line may break between these: spaces, words and wide characters, each with its punctuation
_PIECE = re.compile(r"\s+|\[\w+\]|(?:\[\w+：|[（\[])*(?:[!-~]+|\S)[，。；：、）！？\]]*")


class VerbCommand(TyperCommand):
    """A command whose help lists options under the headings of their ``rich_help_panel``."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        pieces = map(_translate, self.collect_usage_pieces(ctx))
        formatter.write_usage(ctx.command_path, " ".join(pieces), _translate("Usage: "))

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        formatter.write_paragraph()
        with formatter.indentation():
            width = formatter.width - formatter.current_indent
            paragraphs = (self.help or "").split("\n\n")
            formatter.write_text("\n\n".join(_translate_paragraph(text, width) for text in paragraphs))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                default = "Arguments" if param.param_type_name == "argument" else "Options"
                heading = vars(param).get("rich_help_panel") or default
                name, text = replace_types(heading, *record)
                sections.setdefault(heading, []).append((name, _translate_option(text)))
        for heading, records in sections.items():
            if records:
                formatter.write_paragraph()
                formatter.write(_translate(f"{heading}:") + "\n")
                width = formatter.width - min(max(len(name) for name, _ in records), 30) - 4
                with formatter.indentation():
                    formatter.write_dl([(name, _wrap_wide(text, width)) for name, text in records])


def replace_types(heading: str, name: str, text: str) -> tuple[str, str]:
    """Replace Python types and inequalities by words: ``--seed NUMBER``, ``at least 0``."""
    if heading == "Arguments":
        name = name.partition(" <")[0]
    name = re.sub(r"<([a-z\[\] ]+)>", lambda match: _TYPES.get(match[1], match[1].upper()), name)
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    return name, text


def _translate(text: str) -> str:
    return translate_message(text, "help")


def _translate_paragraph(text: str, width: int) -> str:
    """Translate a paragraph of a docstring; one that click does not wrap is looked up with its lines."""
    if text.startswith(_RAW):
        return _RAW + _translate(text.removeprefix(_RAW))
    return _wrap_wide(_translate(text.replace("\n", " ")), width)


def _translate_option(text: str) -> str:
    """Translate the help of an option, such as ``number of beams  [default: 4; at least 1]``."""
    meaning, bracket, remark = text.partition("  [")
    return f"{_translate(meaning)}{bracket}{_translate(remark[:-1])}{remark[-1:]}"


def _wrap_wide(text: str, width: int) -> str:
    """Wrap a text with Chinese, whose characters take two columns each; click wraps other texts."""
    if text.isascii():
        return text
    from rich.cells import cell_len

    lines = [""]
    for piece in _PIECE.findall(text):
        if lines[-1] and cell_len(lines[-1] + piece) > width:
            lines.append("")
        if lines[-1] or not piece.isspace():
            lines[-1] += piece
    return _RAW + "\n".join(map(str.rstrip, lines))
