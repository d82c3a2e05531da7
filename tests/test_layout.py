"""Tests mirror the package: ``tests/a/b/test_c.py`` has the tests of ``polyhead/a/b/c.py``."""

from __future__ import annotations

import ast
from pathlib import Path

import polyhead

ROOT, TESTS = Path(polyhead.__file__).parent, Path(__file__).parent
MODULES = [path.relative_to(ROOT) for path in sorted(ROOT.rglob("*.py")) if path.name != "__init__.py"]


def has_tests(path: Path) -> bool:
    """Whether a file defines a test function or a class of tests."""
    if not path.is_file():
        return False
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return any(
        (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"))
        or (isinstance(node, ast.ClassDef) and node.name.startswith("Test"))
        for node in body
    )


def test_a_file_of_helpers_has_no_tests(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    assert not has_tests(file)
    file.write_text("def helper():\n    def test_inner():\n        pass\n")
    assert not has_tests(file)
    file.write_text("def test_it():\n    pass\n")
    assert has_tests(file)
    file.write_text("class TestIt:\n    pass\n")
    assert has_tests(file)


def test_nine_of_ten_modules_have_a_test_file_of_their_own() -> None:
    lacking = [str(path) for path in MODULES if not has_tests(TESTS / path.parent / f"test_{path.name}")]
    assert len(lacking) <= len(MODULES) // 10, f"no test file: {lacking}"
