"""Names and prose, by the rules of CONTRIBUTING.md.

A definition is no bare participle, pronoun, adverb or preposition; a public name is defined once; docstrings,
comments, help and messages use plain technical words.
"""

from __future__ import annotations

import ast
import functools
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.source_files import MODULES, ROOT, TEST_FILES, TESTS, parse_file, walk_file

PARTICIPLES = set(
    """
    told said says given held kept shown found wanted made drawn written taken put begun begin met bound
    lost won     seen known done gone come grown thrown chosen broken spoken dealt heard meant sent built
    bought brought caught     fed got hidden hung laid lent paid risen sold shut slept spent stood stuck
    taught thought torn understood worn
    """.split()  # noqa: SIM905
)
OTHERS = set(
    """
    beside behind there alone together whole apart along here before after also other others those these
    some such     very most many few every again already still soon late ever never anew away aside near far
    beyond within     without below above about around across against among upon own same else enough ours
    theirs mine its who whom     whose what which why way thing things wish wishes where when then thus once
    """.split()  # noqa: SIM905
)
# single words that end in -ed and are no participles
NOUNS = {"seed", "need", "feed", "speed", "embed"}

EXCEPTIONS = {
    "TIED": "a constant of every Hugging Face family: which weights are tied",
    "other": "the second operand of a method, as in Python's own protocols",
    "expected": "the value that a check compares with",
    "observed": "the statistic of a test, beside its permutations",
    "allowed": "the names or values that are allowed",
    "required": "JSON Schema's own word",
    "supported": "the classes that are supported",
    "restored": "the config read back from what was written",
    "malformed": "a counter of a read report",
    "truncated": "a counter of a read report; a boolean of an encoder input",
    "unsupported": "a counter of a read report",
    "used": "a counter of a read report",
    "skipped": "a counter of training progress, stored in checkpoints",
    "updated": "the step of training progress, stored in checkpoints",
    "hidden": "hidden states, and a recipe's weight of their distance",
    "masked": "a batch or tensor with masks",
    "encoded": "encoded sources",
    "enabled": "a boolean of the field",
    "prepared": "a PreparedRequest",
    "finished": "a boolean",
    "diverged": "a boolean",
    "bound": "the noun: a limit",
    "others": "runs of an ensemble, given by an option of the command line",
}


TEST_EXCEPTIONS = {
    "packed": "rows or weights that are packed, beside those that are not",
    "padded": "rows with padding, beside those without",
    "tied": "a parameter: whether weights are tied",
    "excluded": "a parameter: what a comparison leaves out",
}
TEST_DIALECT = set(
    """
    told tells tell said says say wish wishes nobody nothing beside stands stand stood whoever wanted wants
    want likeliest anew begun anybody everybody somebody knows know behind speaks speak theirs ours whole
    """.split()  # noqa: SIM905
)


class Definition(NamedTuple):
    """A name, what it names, and where."""

    kind: str  # class, function, method, parameter, field or constant
    name: str
    place: str


def definitions(path: Path) -> Iterator[Definition]:
    """All definitions of a module: classes, functions, parameters, fields and constants."""

    def walk(node: ast.AST, owner: str) -> Iterator[Definition]:
        for child in ast.iter_child_nodes(node):
            place = (
                f"{path.relative_to(TESTS if TESTS in path.parents else ROOT)}:{getattr(child, 'lineno', 0)}"
            )
            if isinstance(child, ast.ClassDef):
                yield Definition("class" if owner == "module" else "inner", child.name, place)
                yield from walk(child, "class")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                kind = {"module": "function", "class": "method"}.get(owner, "inner")
                yield Definition(kind, child.name, place)
                a = child.args
                for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))):
                    yield Definition("parameter", arg.arg, place)
                yield from walk(child, "function")
            elif isinstance(child, ast.Assign | ast.AnnAssign) and owner in ("module", "class"):
                for target in child.targets if isinstance(child, ast.Assign) else [child.target]:
                    for name in ast.walk(target):
                        if isinstance(name, ast.Name):
                            yield Definition("constant" if owner == "module" else "field", name.id, place)
            elif not isinstance(child, ast.expr):
                yield from walk(child, owner)

    yield from walk(parse_file(path), "module")


@functools.cache
def package_definitions() -> list[Definition]:
    return [definition for path in MODULES for definition in definitions(path)]


def is_bare(name: str) -> bool:
    """Whether a name is one bare participle, pronoun, adverb or preposition."""
    if name.startswith("__"):
        return False
    word = name.strip("_").lower()
    if "_" in word or (name[:1].isupper() and not name.isupper()):  # several words, or a class
        return False
    return word in PARTICIPLES | OTHERS or (word.endswith("ed") and len(word) > 3 and word not in NOUNS)


def test_no_definition_is_a_bare_participle() -> None:
    assert is_bare("told") and is_bare("_kept") and not is_bare("packed_rows") and not is_bare("seed")
    bare = [
        d for d in package_definitions() if is_bare(d.name) and d.name.lower().strip("_") not in EXCEPTIONS
    ]
    bare = [d for d in bare if d.name.strip("_") not in EXCEPTIONS]
    assert bare == []


def test_names_of_tests_are_plain_and_short() -> None:
    """At most eight words, none of them of the dialect; helpers and fixtures have names as in the package."""
    every = [definition for path in TEST_FILES for definition in definitions(path)]
    tests = [d for d in every if d.kind in ("function", "method") and d.name.startswith("test_")]
    assert [d for d in tests if len(d.name.split("_")) > 9 or TEST_DIALECT & {*d.name.split("_")}] == []
    bare = [
        d for d in every if is_bare(d.name) and d.name.lower().strip("_") not in EXCEPTIONS | TEST_EXCEPTIONS
    ]
    assert bare == []


def test_exceptions_are_few_and_needed() -> None:
    assert len(EXCEPTIONS) <= 25
    names = {d.name.strip("_") for d in package_definitions()} | {
        d.name.lower().strip("_") for d in package_definitions()
    }
    assert set(EXCEPTIONS) <= names


def test_a_public_name_is_defined_once() -> None:
    """Constants of Hugging Face families (KEYS, TABLE, ...) are declarations; verbs of the command line are
    all ``run``.
    """
    exempt = {"log", "T", "run"}
    places: dict[str, set[str]] = defaultdict(set)
    for d in package_definitions():
        if (
            d.kind in ("class", "function", "constant")
            and not d.name.startswith("_")
            and d.name not in exempt
            and not d.place.startswith("hf/families/")
        ):
            places[d.name].add(d.place.split(":")[0])
    assert {name: sorted(found) for name, found in places.items() if len(found) > 1} == {}


DIALECT = re.compile(
    r"\b(told|says|wish|wishes|nobody|beside|stands|behind|goes on|go on|whoever|asked for|is to be)\b",
    re.IGNORECASE,
)


def prose(path: Path) -> Iterator[str]:
    """Docstrings, comments, and the help of options and fields."""
    text = path.read_text(encoding="utf-8")
    for node in walk_file(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        if isinstance(node, ast.Call):
            for word in node.keywords:
                if word.arg in ("help", "description"):
                    yield from (
                        part.value
                        for part in ast.walk(word.value)
                        if isinstance(part, ast.Constant) and isinstance(part.value, str)
                    )
    for token in tokenize.generate_tokens(iter(text.splitlines(keepends=True)).__next__):
        if token.type == tokenize.COMMENT:
            yield token.string


MESSAGE_DIALECT = re.compile(
    DIALECT.pattern
    + r"|\b(said|say|stand|wanted|wants?|whole numbers?|likeliest|anew|begun|of (no )?use|gives? "
    r"way|alike|left out"
    r"|leave (\S+ )?out|(here|there) already|in turns|drawn|vectors of|is none|nothing to (draw|look at))\b"
    r"|there are:|; it has:|what (is|was) (asked|meant|to be)",
    re.IGNORECASE,
)
TEMPLATE = re.compile(r"\{%|<\||\[INST\]|Cutting Knowledge")  # chat templates are those of published models


def messages(path: Path) -> Iterator[str]:
    """String literals of two words or more, without docstrings: messages, texts of ``tr``, help, pages."""
    nodes = walk_file(path)
    statements = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    pieces = {id(piece) for node in nodes if isinstance(node, ast.JoinedStr) for piece in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            text = "{}".join(str(v.value) for v in node.values if isinstance(v, ast.Constant))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in statements | pieces
        ):
            text = node.value
        else:
            continue
        if " " in text and not TEMPLATE.search(text):
            yield re.sub("<[^>]*>", "", text)


def web_messages(path: Path) -> Iterator[str]:
    """The texts that a script shows: the arguments of ``t``."""
    yield from re.findall(r'\bt\("((?:[^"\\\n]|\\.)*)"', path.read_text(encoding="utf-8"))


def find_dialect(pattern: re.Pattern[str], texts: Iterable[tuple[Path, Iterator[str]]]) -> list[str]:
    """The lines that the pattern matches, with the names of their files."""
    return [
        f"{path.name}: {line}"
        for path, parts in texts
        for part in parts
        for line in part.splitlines()
        if pattern.search(line)
    ]


def test_prose_is_plain() -> None:
    assert find_dialect(DIALECT, ((path, prose(path)) for path in MODULES)) == []


def test_messages_are_plain() -> None:
    assert MESSAGE_DIALECT.search("n is 1.5; wanted a whole number")
    assert find_dialect(MESSAGE_DIALECT, ((path, messages(path)) for path in MODULES)) == []


def test_texts_of_pages_are_plain() -> None:
    scripts = sorted(ROOT.rglob("*.js"))
    assert find_dialect(MESSAGE_DIALECT, ((path, web_messages(path)) for path in scripts)) == []
