"""Calls of functions in what an assistant says: how a format writes them, how they are read, and how one is made sure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable
from uuid import uuid4

from polyhead.registry import Choice
from polyhead.text.chat.base import Call, Message, Piece
from polyhead.text.chat.tools import Tool, Tools, arguments_of
from polyhead.text.form.parts import BLANKS

KEYS = ("arguments", "parameters")
APART = re.compile(r"[\s;,]*")  # what some models put between calls
_decode = json.JSONDecoder().raw_decode


class Calls(NamedTuple):
    """How a format writes calls.

    With ``open`` each stands between two marks, and text may stand around them; without it they are the whole answer,
    maybe behind ``begin``.
    """

    open: str = ""  # before each of them
    close: str = ""  # behind each
    between: str = ""
    begin: str = ""  # before all of them
    end: str = ""
    key: str = "arguments"
    several: bool = True  # whether an answer may have more than one

    @property
    def mark(self) -> str:
        """What a call, or all of them, begin with; nothing where that is the call itself."""
        return (self.open or self.begin.removesuffix("[")).strip()

    @property
    def marks(self) -> list[str]:
        """What tells calls from text."""
        return [mark for mark in (self.mark, self.close.strip()) if mark]

    def said(self, call: Call) -> str:
        """A call without its marks."""
        return f'{{"name": "{call.name}", "{self.key}": {call.arguments}}}'

    def form(self, tools: Tools) -> Choice:
        """The form of an answer that calls one of the functions that it must, or several calls where they may be."""
        one = f"{_quoted(self.open)} call {_quoted(self.close)}"
        more = f" ({_quoted(self.between)} one)*" if self.several and tools.several else ""
        lines = [f"start: {_quoted(self.begin)} one{more} {_quoted(self.end)}", f"one: {one}"]
        lines.append("call: " + " | ".join(f"f{i}" for i in range(len(tools.must))))
        lines += [self._rule(i, tool) for i, tool in enumerate(tools.must)]
        return Choice("grammar", lark="\n".join(lines) + "\n")

    def unfit(self, error: str, tools: Tools) -> str:
        """Why there is no such form, of an error that may tell a line of the grammar: two are of each tool, behind three."""
        why = error.removeprefix("form 'grammar': ")
        if at := re.match(r"at (\d+)\(\d+\): ", why):
            why = f"{tools.must[(int(at[1]) - 4) // 2].name}: {why[at.end() :]}"
        return f"tools: no answer can be held to what they say: {why}"

    def _rule(self, number: int, tool: Tool) -> str:
        """The arguments are what the schema says; all about them is as the format writes it."""
        head = f'{{"name": "{tool.name}", "{self.key}": '
        schema = json.dumps({**tool.schema, "x-guidance": {"whitespace_pattern": BLANKS}}, ensure_ascii=False)
        return f'f{number}: {_quoted(head)} a{number} "}}"\na{number}: %json {schema}'

    def reader(self, tools: Tools) -> CallReader:
        """One who finds the calls in an answer as it comes."""
        return CallReader(self, tools)


@runtime_checkable
class CallingFormat(Protocol):
    """A chat format that has a way to write tools, and what they are called with."""

    calls: Calls

    def write(self, messages: Sequence[Message], answer: bool, tools: Tools = Tools()) -> list[Piece]:
        """As any format; ``tools`` are what may be called in the answer."""
        ...


class CallReader:
    """Parts text from calls, as it comes: text is given on as soon as it can belong to no call.

    What is no call of these tools stays text. Behind the first call all is left out where there may be only one.
    """

    def __init__(self, style: Calls, tools: Tools, id: Callable[[], str] = lambda: uuid4().hex[:9]) -> None:
        self.style, self.names, self._id = style, set(tools.names), id
        self.most = 2**31 if style.several and tools.several else 1
        self.held = ""  # what may belong to a call
        self.calls = 0
        self.passed = 0  # bytes of what is decided about
        self._fresh = True  # whether blanks alone have come since the beginning, or since the last call
        self._plain = not self.names  # whether all that comes yet is text
        self._find = self._marked if style.open else self._whole

    def feed(self, text: str, last: bool = False) -> tuple[str, list[Call]]:
        """The text and the calls that are sure with this text; with ``last`` all that is left."""
        said, calls = zip(*self.parts(text, last), strict=True)
        return "".join(said), [call for some in calls for call in some]

    def parts(self, text: str, last: bool = False) -> Iterator[tuple[str, list[Call]]]:
        """The same in the order in which it was said: some text and what is called behind it, then more."""
        if self._plain or self.calls == self.most:
            yield (text if self._plain else ""), []
            return
        self.held += text
        more = True
        while more:
            before = self.held
            said, calls = self._find(last)
            self.passed += len(before.removesuffix(self.held).encode())
            yield said, calls
            more = bool(calls and self.style.open) and self.calls < self.most

    def _marked(self, last: bool) -> tuple[str, list[Call]]:
        """The text up to the next call between marks, and that call; blanks alone about it are left out."""
        said, mark = "", self.style.mark
        while (at := self.held.find(mark)) >= 0:
            call, end = self._between(at + len(mark), last)
            if end < 0:  # it goes on
                break
            if call is None:  # the mark is text, and what follows may be anything
                said += self._given(end, True)
                continue
            rest = self.held[end:]
            said += self._given(len(self._before(at)))
            self.calls, self._fresh, self.held = self.calls + 1, True, rest
            return said, [call]
        begun = max(_overlap(self.held, mark), _overlap(self.held, self.style.between + mark))
        sure = len(self._before(at)) if at >= 0 else len(self.held) - (0 if last else begun)
        return said + self._given(sure, last and not self.calls), []

    def _given(self, size: int, blanks: bool = False) -> str:
        """So much of what was held; if it is all blank since the last call it waits, unless ``blanks`` count."""
        text = self.held[:size]
        if self._fresh and not text.strip() and not blanks:
            return ""
        self._fresh, self.held = self._fresh and not text.strip(), self.held[size:]
        return text

    def _before(self, at: int) -> str:
        """The text before a mark, without what the format puts between them."""
        return self.held[:at].removesuffix(self.style.between)

    def _between(self, at: int, last: bool) -> tuple[Call | None, int]:
        """A call whose mark ends there, and where it ends: none and -1 where more must come, else where the mark ends."""
        close = self.style.close.strip()
        stop = self.held.find(close, at)
        if stop < 0 and not last:
            return None, -1
        try:
            value, end = _decode(self.held, _behind_blanks(self.held, at))
        except json.JSONDecodeError as error:
            # a closing mark in a string ends nothing
            within = error.msg.startswith("Unterminated string") or error.pos > stop
            return None, -1 if within and not last else at
        except (ValueError, RecursionError):
            return None, at
        end = _behind_blanks(self.held, end)
        if self.held.startswith(close, end):
            end += len(close)
        elif not last and close.startswith(self.held[end:]):
            return None, -1
        elif end < len(self.held):
            return None, at
        call = self._call(value)
        return call, at if call is None else end

    def _whole(self, last: bool) -> tuple[str, list[Call]]:
        """Calls that are the whole answer."""
        style, text = self.style, self.held.strip()
        opens = (style.mark, "{", "[") if style.end else ("{",)
        if text and not any(text.startswith(one) or one.startswith(text) for one in opens):
            self._plain = True
        elif not last:
            return "", []
        found = [] if self._plain else self._all(text.removeprefix(style.mark))[: self.most]
        said, self.held, self.calls = "" if found else self.held, "", len(found)
        return said, found

    def _all(self, text: str) -> list[Call]:
        """The calls that a text is made of; none where it is made of anything else."""
        found, at = list[Call](), 0
        while (at := APART.match(text, at).end()) < len(text):  # type: ignore[union-attr]
            try:
                value, at = _decode(text, at)
            except (ValueError, RecursionError):
                return []
            calls = [self._call(one) for one in (value if isinstance(value, list) else [value])]
            if None in calls:
                return []
            found += [call for call in calls if call is not None]
        return found

    def _call(self, value: Any) -> Call | None:
        """The call that a value is; None where it is none of a tool that is there."""
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in self.names:
            return None
        given = next((value[key] for key in (self.style.key, *KEYS) if key in value), None)
        try:
            return Call(name, arguments_of(given), self._id()) if isinstance(given, dict) else None
        except (ValueError, RecursionError):
            return None


def _behind_blanks(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip())


def _overlap(text: str, mark: str) -> int:
    """Characters at the end of a text that a mark may begin with."""
    return next((k for k in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:k])), 0)


def _quoted(text: str) -> str:
    """A text as a grammar writes it."""
    return json.dumps(text, ensure_ascii=False)
