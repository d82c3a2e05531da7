"""No regular expression of ours takes the square of a text's length, whatever the text: all are found, and
attacked.

A pattern goes wrong where two of its repetitions can share the same characters, so each repetition is fed
with what it takes, behind what leads to it, and the text ends otherwise than the pattern wants.
"""

import ast
import importlib
import re
import string
import time
from pathlib import Path
from re import _parser as sre  # the only thing that knows what a pattern is made of

import pytest

from polyhead.config import yaml_io
from polyhead.data.readers.csv import _RecordLines
from polyhead.data.readers.detect_encoding import _ENCODINGS
from polyhead.data.readers.files import _PATTERNS
from polyhead.hf.family import FAMILY
from polyhead.hf.hub import KNOWN_OWNERS

SOURCE = Path(yaml_io.__file__).parents[1]
CALLS = {"compile", "match", "fullmatch", "search", "sub", "split", "findall", "finditer"}
CHARACTERS = sorted({*string.printable, "é", "你", "\udc80"})
LONGEST = 32_000  # characters
# made of escaped words, or of what another place or a test yields
COMPUTED_PATTERNS = (
    "chat/formats.py",
    "chat/jinja.py",  # also of what a template wrote for a short conversation of ours
    "chat/sandbox/placeholders.py",
    "cli/verb_help.py",  # of our own help
    "config/yaml_io.py",
    "core/i18n.py",  # of our own messages
    "data/readers/csv.py",
    "data/readers/detect_encoding.py",
    "evaluate/metrics.py",
    "hf/hub.py",
    "hf/load.py",
    "tokenizers/tokenizer.py",
)
SMALL = 0.02  # seconds of the processor, below which nothing is compared


def find_patterns():
    """Where a pattern stands, the pattern, and the methods it is used with."""
    matched = {regex.pattern for regex, *_ in _PATTERNS}  # which have no names of their own
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
        assignments = [n for n in ast.walk(tree) if isinstance(n, ast.Assign)]
        variables = {n.value: t.id for n in assignments for t in n.targets if isinstance(t, ast.Name)}
        for call in calls:
            owner, method = call.func.value, call.func.attr
            if not (isinstance(owner, ast.Name) and owner.id == "re" and method in CALLS):
                continue
            name = variables.get(call)
            methods = {c.func.attr for c in calls if getattr(c.func.value, "id", None) == name}
            place = f"{path.relative_to(SOURCE)}:{call.lineno}"
            module = "polyhead." + ".".join(path.relative_to(SOURCE).with_suffix("").parts)
            try:
                namespace = vars(importlib.import_module(module))
                pattern = eval(compile(ast.Expression(call.args[0]), place, "eval"), dict(namespace))
            except (NameError, AttributeError):
                assert place.split(":")[0] in COMPUTED_PATTERNS, f"{place}: which pattern is it?"
                continue
            methods = {"match"} if pattern in matched else methods
            pattern = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
            yield place, pattern, ({*methods} & CALLS or {"search"}) if method == "compile" else {method}
    for tag, (pattern, _) in yaml_io._NUMBERS.items():
        yield f"document.py {tag}", f"^(?:{pattern})$", {"match"}
    for name in FAMILY.names():
        family = FAMILY.get(name)
        yield f"hf {name}", f"{family.buffer_pattern}|{family.ignored_pattern}", {"fullmatch"}
    for delimiter in ",;\t|":
        lines = _RecordLines(iter(()), delimiter, 0)
        yield "csv spaced quote", lines.spaced_quote.pattern, {"search"}
        yield "csv field", lines.field.pattern, {"match"}
    for names, regex, _ in _ENCODINGS:
        yield f"encoding {names[0]}", regex.pattern, {"findall"}
    yield from ((f"hub {owner}", names, {"fullmatch"}) for owner, names in KNOWN_OWNERS.items())


def example(tokens):
    """A short text that the parsed pattern takes, as good as it can be made without looking about."""
    return "".join(_example(op, of) for op, of in tokens)


def _example(op, of):
    kind = str(op)
    if kind == "LITERAL":
        return chr(of)
    if kind == "SUBPATTERN":
        return example(of[3])
    if kind == "BRANCH":
        return example(of[1][0])
    if "REPEAT" in kind:
        return example(of[2]) * of[0]
    if kind not in ("IN", "ANY", "NOT_LITERAL", "CATEGORY"):
        return ""
    return next(iter(accepted_characters([(op, of)])), "")


def accepted_characters(tokens):
    """The characters of a few that a parsed pattern of one takes."""
    state = sre.State()
    state.str = ""
    part = sre.SubPattern(state, list(tokens))
    try:
        regex = re._compiler.compile(part)
    except Exception:
        return []
    return [c for c in CHARACTERS if regex.fullmatch(c)]


def find_repetitions(tokens, prefix=""):
    """What leads to each unbounded repetition, and something that it repeats."""
    for op, of in tokens:
        kind = str(op)
        if "REPEAT" in kind:
            if of[1] is sre.MAXREPEAT:
                accepted = accepted_characters(of[2])
                for unit in {*accepted[:: max(1, len(accepted) // 8)], example(of[2])} - {""}:
                    yield prefix, unit
            yield from find_repetitions(of[2], prefix)
        elif kind == "SUBPATTERN":
            yield from find_repetitions(of[3], prefix)
        elif kind == "BRANCH":
            for branch in of[1]:
                yield from find_repetitions(branch, prefix)
        prefix += _example(op, of)


def attacks(pattern):
    """A beginning, a unit to repeat, and an end that spoils it."""
    tree = sre.parse(pattern)
    match_text = example(tree)
    for prefix, unit in {*find_repetitions(tree), ("", match_text or "a")}:
        for end in ("\0", "\0" + match_text, ""):
            yield prefix, unit, end
            yield "", prefix + unit, end


def cost(pattern, method, text):
    call = getattr(re.compile(pattern), "finditer" if method in ("sub", "split", "findall") else method)
    start = time.process_time()
    patterns = call(text)
    for _ in patterns if hasattr(patterns, "__next__") else ():
        pass
    return time.process_time() - start


def grows_by_its_square(pattern, methods):
    """An attack under which twice the text takes over three times as long, twice over; else nothing."""
    for prefix, unit, end in attacks(pattern):
        for method in methods:
            last, ratios, n = 0.0, [], 250
            while n <= LONGEST and last < 25 * SMALL:
                now = cost(pattern, method, prefix + unit * (n // len(unit)) + end)
                ratios = [*ratios, now / last] if last > SMALL / 8 else []
                last, n = now, 2 * n
                if now > SMALL and len(ratios) > 1 and min(ratios[-2:]) > 3:
                    return f"{method}({prefix!r} + {unit!r} * n + {end!r}): {ratios}"
    return ""


@pytest.mark.slow
@pytest.mark.acceptance("F9")
def test_no_pattern_takes_quadratic_time():
    patterns = list(find_patterns())
    assert len(patterns) > 40
    attacks = {place: grows_by_its_square(pattern, uses) for place, pattern, uses in patterns}
    assert not {place: attack for place, attack in attacks.items() if attack}

    for pattern in (r"\s*\(?\s*x", r"a[0-9]*\.?[0-9]*b"):
        assert grows_by_its_square(pattern, {"match"})
    for pattern in (r"\s+$", "x(.*)y(.*)z"):
        assert grows_by_its_square(pattern, {"search"})
