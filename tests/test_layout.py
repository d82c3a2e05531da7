"""Tests mirror the packages: ``tests/a/b/test_c.py`` has the tests of ``polyhead/a/b/c.py``.

Those of ``polyhead_lab`` are in ``tests/lab``.
"""

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

import yaml
from tests.source_files import ALL_MODULES, LAB, ROOT, TESTS, parse_file


def has_tests(path):
    if not path.is_file():
        return False
    body = parse_file(path).body
    return any(
        (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"))
        or (isinstance(node, ast.ClassDef) and node.name.startswith("Test"))
        for node in body
    )


def test_nine_of_ten_modules_have_test_files():
    modules = [
        "lab" / path.relative_to(LAB) if LAB in path.parents else path.relative_to(ROOT)
        for path in ALL_MODULES
        if path.name != "__init__.py"
    ]
    lacking = [str(path) for path in modules if not has_tests(TESTS / path.parent / f"test_{path.name}")]
    assert len(lacking) <= len(modules) // 10, f"no test file: {lacking}"


LAYOUT_TOKENS = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def count_tokens(text):
    """The tokens of Python code, without comments and layout."""
    found = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type not in LAYOUT_TOKENS for token in found)


def test_packages_do_not_grow_unnoticed():
    """A package that became smaller gets its new size; one that needs to be larger says so in its commit."""
    ceilings = yaml.safe_load(Path(__file__).with_name("package_tokens.yaml").read_text())
    sizes = Counter()
    for path in ALL_MODULES:
        name = LAB.name if LAB in path.parents else path.relative_to(ROOT).parts[0]
        sizes[name.removesuffix(".py")] += count_tokens(path.read_text(encoding="utf-8"))
    assert {name: size for name, size in sizes.items() if size > ceilings[name]} == {}
