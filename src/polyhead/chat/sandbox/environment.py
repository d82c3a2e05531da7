"""The Jinja environment of chat templates, as in transformers; placeholders compare as their characters."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from polyhead.chat.sandbox.placeholders import Placeholders

_SEARCHES = {"startswith", "endswith", "find", "rfind", "index", "rindex", "count"}
_TRIMS = {"strip", "lstrip", "rstrip", "removeprefix", "removesuffix"}
_SPLITS = {"split", "rsplit", "partition", "rpartition"}
_SCOPES = {"_loop_vars", "_block_vars"}  # arguments of compiled templates


class RaisedByTemplateError(TemplateError):
    """The exception of ``raise_exception``."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The environment of ``apply_chat_template``; ``placeholders`` are those of the current rendering."""

    def __init__(self) -> None:
        self.code_generator_class = _ComparingCode
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag], cache_size=0
        )
        self.placeholders: Placeholders | None = None
        self.now = datetime.now()
        self.filters |= {"tojson": _to_json, "replace": self._replace}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": self._format_now}

    def plain(self, value: Any) -> Any:
        """A value as it compares: without placeholders."""
        return value if self.placeholders is None else self.placeholders.restore(value)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of a template; a method of a text finds characters where their placeholders are."""
        text, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if self.placeholders and isinstance(text, str) and args and kwargs.keys() <= _SCOPES:
            if name in _SEARCHES:
                return getattr(self.plain(text), name)(*self.plain(args))
            if name in _TRIMS | _SPLITS | {"replace"} and isinstance(args[0], str) and args[0]:
                return self._cut(text, name, args)
        return super().call(context, obj, *args, **kwargs)

    def _cut(self, text: str, name: str, args: tuple[Any, ...]) -> Any:
        """The result of a method that cuts a text, with the placeholders of the text."""
        if name == "replace":
            old, new, *count = args
            return new.join(self._cut(text, "split", (old, *count)))
        plain = self.plain(text)
        result = getattr(plain, name)(*self.plain(args))
        if name in _TRIMS:
            from_left = name in ("lstrip", "removeprefix")
            start = len(plain) - len(result) if from_left else 0
            if name == "strip":
                start = len(plain) - len(plain.lstrip(*self.plain(args)))
            return text[start : start + len(result)]
        parts, position = [], 0
        for part in result:
            parts.append(text[position : position + len(part)])
            position += len(part) + (len(args[0]) if name in ("split", "rsplit") else 0)
        return parts if isinstance(result, list) else tuple(parts)

    def _replace(self, text: Any, old: str, new: str, count: int | None = None) -> str:
        """The filter ``replace``."""
        counts = () if count is None else (count,)
        return str(self._cut(str(text), "replace", (old, new, *counts))) if old else str(text)

    def _format_now(self, format: str) -> str:
        return self.now.strftime(format)


class _ComparingCode(CodeGenerator):
    """Compiles comparisons to those of texts without placeholders."""

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        self.write("(environment.plain(")
        self.visit(node.expr, frame)
        self.write(")")
        for operand in node.ops:
            self.visit(operand, frame)
        self.write(")")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:  # noqa: N802
        self.write(f" {operators[node.op]} environment.plain(")
        self.visit(node.expr, frame)
        self.write(")")


class _GenerationTag(Extension):
    """The tag ``{% generation %}`` around answers."""

    tags = {"generation"}  # noqa: RUF012  # as in Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark_answer"), [], [], body).set_lineno(line)

    def _mark_answer(self, caller: Macro) -> str:
        placeholders = getattr(self.environment, "placeholders", None)
        if placeholders is None:
            return str(caller())
        return f"{placeholders.answer_start}{caller()}{placeholders.answer_end}"


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter ``tojson``, which escapes nothing for HTML."""
    dumps: Callable[..., str] = json.dumps
    return dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise RaisedByTemplateError(message)
