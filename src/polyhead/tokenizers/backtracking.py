"""Find regular expressions with which a matcher that backtracks takes exponential time.

The matcher of tokenizers panics after ten million steps, which prints a traceback. A pattern is parsed and
becomes an automaton whose states read one character of a set. The matcher tries its paths through a text one
by one until one reaches the end. A pattern is refused if for some text the number of paths that are not at
the end grows faster than the square of the length: for n times an a, ``(a+)+$`` has 2^n paths.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache, lru_cache
from typing import NamedTuple

from tokenizers import Regex, pre_tokenizers

_MAX_PATTERN_LEN = 20_000  # characters; published tokenizers have at most some thousands
_MAX_GROUP_DEPTH = 50
_MAX_STATES = 5_000
_MAX_CHARS = 40  # characters that are tried, those that most states read
_MAX_COPIES = 8  # a repetition up to so many times is written out; a longer one counts as unlimited
_PROBE_LEN = 16  # characters of the shorter of two texts
_MAX_GROWTH = 2.8  # of the number of paths when the text is twice as long; a square has 4, and two loops 2
_PROBES = "aAbB01_ \t\n\r-'\"/.,;:!?(é漢かا́🙂"  # characters of the kinds that patterns tell apart
_QUANTIFIER = re.compile(r"([*+?])[?+]?|\{(\d++)(,?)(\d*+)\}\??|\{(),(\d++)\}\??")
_GROUP = re.compile(r"\((?:\?(?:([imsx]*)(?:-([imsx]+))?(:|\))|<[A-Za-z_]\w*>|>|<?[=!]))?")
_ESCAPE = re.compile(r"\\(?:[pP]\{[^}]*\}|x\{[^}]*\}|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_EMPTY = re.compile(r"\\[bBAzZGK]|[\^$]")  # assertions
_REFERENCE = re.compile(r"\\[gk1-9]")


class PatternError(ValueError):
    """The reason why a pattern is refused."""


class _Set(NamedTuple):
    """One character, as the pattern that matches it."""

    pattern: str


class _Empty(NamedTuple):
    """Reads nothing; an assertion may fail."""

    may_fail: bool


class _Sequence(NamedTuple):
    parts: list[_Node]


class _Choice(NamedTuple):
    branches: list[_Node]


class _Repeat(NamedTuple):
    part: _Node
    low: int
    high: int | None


_Node = _Set | _Empty | _Sequence | _Choice | _Repeat


@lru_cache(maxsize=256)
def check_backtracking(pattern: str) -> int:
    """Return the least number of characters that the pattern matches; PatternError if it is refused."""
    if len(pattern) > _MAX_PATTERN_LEN:
        raise PatternError(f"it has {len(pattern):,} characters; the maximum is {_MAX_PATTERN_LEN:,}")
    parser = _Parser(pattern)
    try:
        root = parser.parse()
        for node in (root, *parser.look_arounds):
            _Automaton(node).check_growth()
        return _min_width(root)
    except RecursionError:
        raise PatternError("it has too many parts") from None


class _Parser:
    """A recursive descent parser of the syntax of Oniguruma."""

    def __init__(self, pattern: str) -> None:
        self.text, self.at, self.depth = pattern, 0, 0
        self.flags: frozenset[str] = frozenset()
        self.look_arounds: list[_Node] = []

    def parse(self) -> _Node:
        node = self._parse_choice()
        if self.at < len(self.text):
            raise PatternError("a parenthesis closes that was not opened")
        return node

    def _parse_choice(self) -> _Node:
        flags, branches = self.flags, [self._parse_sequence()]
        while self.text[self.at : self.at + 1] == "|":
            self.at += 1
            branches.append(self._parse_sequence())
        self.flags = flags
        return branches[0] if len(branches) == 1 else _Choice(branches)

    def _parse_sequence(self) -> _Node:
        parts: list[_Node] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            node = self._parse_atom()
            while match := _QUANTIFIER.match(self.text, self.at):
                self.at = match.end()
                node = _Repeat(node, *_repetitions(match))
            parts.append(node)
        return _Sequence(parts)

    def _parse_atom(self) -> _Node:
        char = self.text[self.at]
        if char == "(":
            return self._parse_group()
        if match := _EMPTY.match(self.text, self.at):
            self.at = match.end()
            return _Empty(may_fail=True)
        if _REFERENCE.match(self.text, self.at):
            raise PatternError("it refers to one of its groups, which is not supported")
        begin = self.at
        if char == "[":
            self._skip_class()
        else:
            match = _ESCAPE.match(self.text, self.at)
            self.at = match.end() if match else self.at + 1
        flags = f"(?{''.join(sorted(self.flags))})" if self.flags else ""
        return _Set(flags + self.text[begin : self.at])

    def _parse_group(self) -> _Node:
        if self.text.startswith("(?#", self.at):
            self.at = self.text.find(")", self.at) + 1 or len(self.text)
            return _Empty(may_fail=False)
        match = _GROUP.match(self.text, self.at)
        assert match is not None
        self.at, outer = match.end(), self.flags
        if self.text.startswith("?", self.at):
            raise PatternError("it has a group of a kind that is not supported")
        added, removed, last = (text or "" for text in match.groups())
        if "x" in added:
            raise PatternError("it ignores blanks (flag x), which is not supported")
        self.flags = (self.flags | set(added)) - set(removed)
        if last == ")":  # the flags hold until the end of the enclosing group
            return _Empty(may_fail=False)
        self.depth += 1
        if self.depth > _MAX_GROUP_DEPTH:
            raise PatternError(f"its groups are nested deeper than {_MAX_GROUP_DEPTH} levels")
        node = self._parse_choice()
        self.depth, self.flags = self.depth - 1, outer
        if self.text[self.at : self.at + 1] != ")":
            raise PatternError("a parenthesis is not closed")
        self.at += 1
        if match[0].endswith(("=", "!")):
            self.look_arounds.append(node)
            return _Empty(may_fail=True)
        return node

    def _skip_class(self) -> None:
        """Move past a character class, which may contain others."""
        depth = 0
        while self.at < len(self.text):
            if self.text[self.at] == "\\":
                self.at += 2
                continue
            if self.text[self.at] == "[":
                depth += 1
                self.at += 2 if self.text.startswith("[^", self.at) else 1
                self.at += self.text[self.at : self.at + 1] == "]"  # the first one is a member
                continue
            depth -= self.text[self.at] == "]"
            self.at += 1
            if not depth:
                return
        raise PatternError("a character class is not closed")


def _repetitions(match: re.Match[str]) -> tuple[int, int | None]:
    if match[1]:
        return int(match[1] == "+"), 1 if match[1] == "?" else None
    low, high = int(match[2] or 0), match[4] or match[6]
    return low, int(high) if high else None if match[3] else low


def _min_width(node: _Node) -> int:
    if isinstance(node, _Sequence):
        return sum(map(_min_width, node.parts))
    if isinstance(node, _Choice):
        return min(map(_min_width, node.branches))
    if isinstance(node, _Repeat):
        return node.low * _min_width(node.part)
    return int(isinstance(node, _Set))


class _Automaton:
    """The states of a pattern. State 0 is the end."""

    def __init__(self, node: _Node) -> None:
        self.free: list[list[int]] = [[]]  # next states, without reading
        self.guarded: list[list[int]] = [[]]  # next states after an assertion
        self.reads: dict[int, tuple[str, int]] = {}  # the pattern of a character, and the next state
        self.has_loops, self.n_nodes = False, 0
        self._add(node, 0)

    def _add_state(self, *following: int) -> int:
        self.free.append(list(following))
        self.guarded.append([])
        return len(self.free) - 1

    def _add(self, node: _Node, following: int) -> int:
        """Add the states of a node before the state ``following``; return the first."""
        self.n_nodes += 1
        if self.n_nodes > _MAX_STATES:
            raise PatternError("it has too many parts")
        if isinstance(node, _Set):
            state = self._add_state()
            self.reads[state] = node.pattern, following
            return state
        if isinstance(node, _Empty):
            state = self._add_state()
            (self.guarded if node.may_fail else self.free)[state].append(following)
            return state
        if isinstance(node, _Sequence):
            for part in reversed(node.parts):
                following = self._add(part, following)
            return following
        if isinstance(node, _Choice):
            return self._add_state(*[self._add(branch, following) for branch in node.branches])
        return self._add_repeat(node, following)

    def _add_repeat(self, node: _Repeat, following: int) -> int:
        optional = None if node.high is None else node.high - node.low
        if optional is None or optional > _MAX_COPIES or node.low > _MAX_COPIES:
            self.has_loops = True
            loop = self._add_state(following)
            self.free[loop].insert(0, self._add(node.part, loop))
            following = loop
        else:
            end = following
            for _ in range(optional):
                following = self._add_state(self._add(node.part, following), end)
        for _ in range(min(node.low, _MAX_COPIES)):
            following = self._add(node.part, following)
        return following

    def check_growth(self) -> None:
        """Raise PatternError if the number of paths grows faster than the square of the text's length."""
        if not self.has_loops:
            return
        literals = "".join(pattern[-1] for pattern, _ in self.reads.values())
        alphabet = "".join(dict.fromkeys(_PROBES + literals))
        members = {state: _matched_chars(pattern, alphabet) for state, (pattern, _) in self.reads.items()}
        readers = {
            tuple(state for state in members if char in members[state]): char for char in reversed(alphabet)
        }
        chars = [readers[states] for states in sorted(filter(None, readers), key=len, reverse=True)]

        def read(counts: Counter[int], char: str) -> Counter[int]:
            following: Counter[int] = Counter()
            for state, count in counts.items():
                if char in members[state]:
                    for target, n_ways in continued[self.reads[state][1]].items():
                        following[target] += count * n_ways
            return following

        targets = {target for _, target in self.reads.values()}
        continued = {target: self._continue_paths(target) for target in targets}
        for first in chars[:_MAX_CHARS]:
            totals: list[int] = []
            counts = read(Counter(list(members)), first)
            while counts and len(totals) < 2 * _PROBE_LEN:
                totals.append(counts.total())
                counts = max((read(counts, char) for char in chars[:_MAX_CHARS]), key=Counter.total)
            if len(totals) == 2 * _PROBE_LEN and totals[-1] > _MAX_GROWTH * totals[_PROBE_LEN - 1]:
                raise PatternError("matching it can take exponential time")

    def _continue_paths(self, state: int) -> Counter[int]:
        """The states that read next, with the number of ways to them; none if the end is reached for sure."""
        if self._reaches_end(state):
            return Counter()
        known: dict[int, Counter[int]] = {}

        def count_ways(state: int) -> Counter[int]:
            if state not in known:
                known[state] = ways = Counter({state: 1} if state in self.reads else {})
                for target in (*self.free[state], *self.guarded[state]):
                    ways.update(Counter(count_ways(target)))
            return known[state]

        return count_ways(state)

    def _reaches_end(self, state: int) -> bool:
        seen, waiting = {state}, [state]
        while waiting:
            for target in self.free[waiting.pop()]:
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
        return 0 in seen


@cache
def _matched_chars(pattern: str, alphabet: str) -> frozenset[str]:
    """The characters of the alphabet that a pattern of one character matches."""
    try:
        others = pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str(alphabet)
    except Exception:  # tokenizers has no exception class of its own
        return frozenset(alphabet)
    return frozenset(alphabet).difference(*(piece for piece, _ in others))
