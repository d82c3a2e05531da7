"""Reading and writing YAML that people type, and changing it from the command line.

The schema is YAML 1.2's: ``no`` is Norwegian and not false, ``1e-3`` is a number, and a key given twice is a mistake.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from polyhead.errors import UserError, called, nearest, section, show
from polyhead.registry import Choice

MAX_BYTES = 1_000_000
Tree = dict[str, Any]


class _Loader(yaml.SafeLoader):
    """The safe loader with the words and numbers of YAML 1.2, and no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            mark = key.start_mark
            if not isinstance(key, yaml.ScalarNode):
                raise UserError(f"line {mark.line + 1}, column {mark.column + 1}: a key must be one word")
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise UserError(f"line {mark.line + 1}: key {key.value!r} is given twice")
            seen[str(key.value)] = key
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


_NUMBERS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)|[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "int": (r"[-+]?[0-9]+", "-+0123456789"),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "merge": (r"<<", "<"),
}
_Loader.yaml_implicit_resolvers = {}
for _tag, (_pattern, _first) in _NUMBERS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))  # 010 is ten, not eight


class _Dumper(yaml.SafeDumper):
    """The safe dumper, which also quotes what only our loader takes for a number."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(f"^(?:{_NUMBERS['float'][0]})$"), list(_NUMBERS["float"][1])
)


def parse(text: str) -> Any:
    """The value of a piece of YAML; every mistake is a UserError of one line."""
    try:
        return _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise UserError(f"{where}{error.problem or 'not YAML'}") from None
    except yaml.YAMLError as error:
        raise UserError(f"not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise UserError("nested too deeply") from None
    except UserError:
        raise
    except (ValueError, LookupError):  # PyYAML makes the values and checks none
        raise UserError("a value is not what its tag says, or a number has too many digits") from None


_CUT = re.compile(r"""(?<=[=,:\[{\s])('(?:[^']|'')*'|"(?:[^"\\]|\\.)*")|,(?=\s*\w+\s*=)""")


def parse_part(text: str) -> Any:
    """A part as it is typed on a command line: ``h2o,budget=256`` is short for ``{name: h2o, budget: 256}``.

    A comma that no ``option=`` comes behind is part of a value, as in quotes any is: ``choice,among=[red, 'a, b=c']``.
    """
    name, comma, options = text.partition(",")
    if not comma or text.lstrip().startswith("{"):
        return parse(text)
    part = {"name": name.strip()}
    cuts = [found.start() for found in _CUT.finditer(options) if found[1] is None]
    for start, end in zip([-1, *cuts], [*cuts, len(options)], strict=True):
        option = options[start + 1 : end]
        key, equals, value = option.partition("=")
        if not equals or not key.strip():
            raise UserError(f"{show(text)}: expected name,option=value, e.g. window,window=256,sink=4")
        typed, bare = f"{part['name']},{key.strip()}=", value.strip().strip("'\"")
        try:
            part[key.strip()] = parse(value)
        except UserError as error:
            way = f"""if it is one text, quote it: "{typed}'{bare}'" """.rstrip()
            raise UserError(f"{typed}{value}: {error}; {way}") from None
    return part


def write(tree: Tree) -> str:
    """The tree as YAML, keys in their order, one on a line."""
    return str(yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))


def write_value(value: Any) -> str:
    """A value as it stands behind its key, on one line."""
    flow = yaml.dump(
        [value],
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=float("inf"),
        default_flow_style=True,
    )
    return str(flow).strip()[1:-1]


def read(path: Path) -> Tree:
    """The mapping in a YAML file."""
    if path.is_dir():
        raise UserError(f"{path}: a directory, not a recipe{_instead(path / 'recipe.yaml')}")
    if not path.is_file():
        there = [f.name for f in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise UserError(f"{path}: no such file{nearest(path.name, there)}")
    raw = path.read_bytes()
    if len(raw) > MAX_BYTES:
        raise UserError(f"{path}: {len(raw):,} bytes are too many for a recipe")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from None
    if "\0" in text:
        raise UserError(f"{path}: a binary file, not YAML")
    try:
        tree = parse(text)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if tree is None:
        raise UserError(f"{path}: the file is empty")
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected keys such as 'data:' and 'model:', got {show(tree)}")
    return tree


def parse_overrides(overrides: Iterable[str], root: type[BaseModel]) -> list[tuple[list[str], Any]]:
    """``model.position.theta=5e5`` -> (["model", "position", "theta"], 500000.0).

    A part's name comes before its options whatever the order typed, since a new part drops the old one's options.
    """
    if isinstance(overrides, str):
        raise UserError(f"changes are a list of texts, got one; write [{overrides!r}]")
    parsed = []
    for override in overrides:
        key, equals, text = override.partition("=")
        keys = key.strip().split(".")
        if not equals or not all(keys):
            raise UserError(f"override {override!r}: expected section.key=value, e.g. model.d_model=256")
        if keys[0] not in root.model_fields:
            raise UserError(
                f"{key}: unknown key{called(keys[0], root) or nearest(keys[0], root.model_fields)}"
            )
        try:
            parsed.append((keys, parse(text)))
        except UserError as error:
            raise UserError(f"override {override!r}: {error}") from None
    return sorted(parsed, key=lambda item: (len(item[0]), item[0][-1] != "name"))


def assign(tree: Tree, keys: list[str], value: Any, root: type[BaseModel]) -> None:
    """Set the value at that place of the tree, making sections and spelling parts out on the way."""
    model: type[BaseModel] | None = root
    for depth, key in enumerate(keys[:-1], 1):
        field = model.model_fields.get(key) if model else None
        if field is not None and Choice in (field.annotation, *typing.get_args(field.annotation)):
            part = Choice.read(tree.get(key) or field.default)
            keep = {} if keys[depth] == "name" else part.options
            tree[key] = {"name": part.name, **keep}
        inner, model = tree.get(key), section(field.annotation) if field else None
        if isinstance(inner, str) and (word := getattr(model, "shorthand", None)):
            inner = tree[key] = {word: inner}
        if inner is None:
            inner = tree[key] = {}
        mapping = field is not None and typing.get_origin(field.annotation) is dict
        if not isinstance(inner, dict) or (field and not model and not mapping and "name" not in inner):
            raise UserError(f"{'.'.join(keys)}: {'.'.join(keys[:depth])} is one value, it has no keys")
        tree = inner
    tree[keys[-1]] = value


def _instead(path: Path) -> str:
    return f"; did you mean {str(path)!r}?" if path.is_file() else ""
