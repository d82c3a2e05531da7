"""Names and prose, by the rules of CONTRIBUTING.md.

A definition is no bare participle, pronoun, adverb or preposition; a public name is defined once; docstrings,
comments, help and messages use plain technical words.
"""

import ast
import functools
import re
import tokenize
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import yaml
from tests.source_files import ALL_MODULES, LAB, ROOT, TEST_FILES, TESTS, parse_file, walk_file

RULES = yaml.safe_load(Path(__file__).with_name("name_rules.yaml").read_text())
PARTICIPLES, OTHERS, NOUNS, TEST_DIALECT = (
    set(RULES[key].split()) for key in ("participles", "others", "nouns", "test_dialect")
)
EXCEPTIONS, TEST_EXCEPTIONS = RULES["exceptions"], RULES["test_exceptions"]


class Definition(NamedTuple):
    kind: str  # class, function, method, parameter, field or constant
    name: str
    place: str


def definitions(path):
    """All definitions of a module: classes, functions, parameters, fields and constants."""

    def walk(node, owner):
        for child in ast.iter_child_nodes(node):
            root = next(root for root in (TESTS, LAB, ROOT) if root in path.parents)
            place = f"{path.relative_to(root)}:{getattr(child, 'lineno', 0)}"
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
def package_definitions():
    return [definition for path in ALL_MODULES for definition in definitions(path)]


def is_bare(name):
    """Whether a name is one bare participle, pronoun, adverb or preposition."""
    if name.startswith("__"):
        return False
    word = name.strip("_").lower()
    if "_" in word or (name[:1].isupper() and not name.isupper()):  # several words, or a class
        return False
    return word in PARTICIPLES | OTHERS or (word.endswith("ed") and len(word) > 3 and word not in NOUNS)


def test_no_definition_is_a_bare_participle():
    assert is_bare("told") and is_bare("_kept") and not is_bare("packed_rows") and not is_bare("seed")
    bare = [d for d in package_definitions() if is_bare(d.name)]
    assert [d for d in bare if not {d.name.strip("_"), d.name.strip("_").lower()} & EXCEPTIONS.keys()] == []


def test_names_of_tests_are_plain_and_short():
    """At most eight words, none of them of the dialect; helpers and fixtures have names as in the package."""
    every = [definition for path in TEST_FILES for definition in definitions(path)]
    tests = [d for d in every if d.kind in ("function", "method") and d.name.startswith("test_")]
    assert [d for d in tests if len(d.name.split("_")) > 9 or TEST_DIALECT & {*d.name.split("_")}] == []
    bare = [d for d in every if is_bare(d.name)]
    assert [d for d in bare if d.name.lower().strip("_") not in EXCEPTIONS | TEST_EXCEPTIONS] == []


def test_exceptions_are_few_and_needed():
    assert len(EXCEPTIONS) <= 25
    names = {d.name.strip("_") for d in package_definitions()}
    assert set(EXCEPTIONS) <= names | {name.lower() for name in names}


def test_a_public_name_is_defined_once():
    """Constants of Hugging Face families (KEYS, TABLE, ...) are declarations; verbs of the command line are
    all ``run``.
    """
    exempt = {"log", "T", "run"}
    places = defaultdict(set)
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


def prose(path):
    """Docstrings, comments, and the help of options and fields."""
    text = path.read_text(encoding="utf-8")
    for node in walk_file(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        if isinstance(node, ast.Call):
            for word in node.keywords:
                if word.arg in ("help", "description"):
                    values = [getattr(part, "value", None) for part in ast.walk(word.value)]
                    yield from (value for value in values if isinstance(value, str))
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


def messages(path):
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


def web_messages(path):
    yield from re.findall(r'\bt\("((?:[^"\\\n]|\\.)*)"', path.read_text(encoding="utf-8"))


def find_dialect(pattern, texts):
    lines = [(path.name, line) for path, parts in texts for part in parts for line in part.splitlines()]
    return [line for line in lines if pattern.search(line[1])]


def test_prose_is_plain():
    assert find_dialect(DIALECT, ((path, prose(path)) for path in ALL_MODULES)) == []


def test_messages_are_plain():
    assert MESSAGE_DIALECT.search("n is 1.5; wanted a whole number")
    assert find_dialect(MESSAGE_DIALECT, ((path, messages(path)) for path in ALL_MODULES)) == []


def test_texts_of_pages_are_plain():
    scripts = sorted(ROOT.rglob("*.js"))
    assert find_dialect(MESSAGE_DIALECT, ((path, web_messages(path)) for path in scripts)) == []
