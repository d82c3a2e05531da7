"""Tests mirror the packages: ``tests/a/b/test_c.py`` has the tests of ``polyhead/a/b/c.py``.

Those of ``polyhead_lab`` are in ``tests/lab``.
"""

import ast

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
