"""The modules of the packages and of their tests, each parsed once for all the rules that read them."""

import ast
import functools
from pathlib import Path

import polyhead
import polyhead_lab

ROOT, TESTS = Path(polyhead.__file__).parent, Path(__file__).parent
LAB = Path(polyhead_lab.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
ALL_MODULES = MODULES + sorted(LAB.rglob("*.py"))
TEST_FILES = sorted(TESTS.rglob("*.py"))


@functools.cache
def parse_file(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def walk_file(path):
    return list(ast.walk(parse_file(path)))
