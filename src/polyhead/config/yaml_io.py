"""Read and write YAML, and apply overrides from the command line.

The schema is YAML 1.2: ``no`` is a string and not false, ``1e-3`` is a number, and duplicate keys are errors.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from polyhead.core.atomic_io import read_linked_file
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, did_you_mean, format_value
from polyhead.core.json_io import MAX_NESTING, parse_int
from polyhead.core.messages import alias_hint, section_type
from polyhead.core.output_paths import did_you_mean_path

MAX_RECIPE_BYTES = 1 << 18  # of a recipe, usually a few KB; PyYAML reads about 60 KB per second
_MAX_NODES = 1_000_000  # more than any file without aliases has
YamlTree = dict[str, Any]


class _Loader(yaml.SafeLoader):
    """The safe loader with YAML 1.2 scalars, rejecting duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            mark = key.start_mark
            if not isinstance(key, yaml.ScalarNode):
                raise UserError(
                    f"line {mark.line + 1}, column {mark.column + 1}: a key must be a single word"
                )
            if key.value in keys and key.tag != "tag:yaml.org,2002:merge":
                raise UserError(f"line {mark.line + 1}: key {key.value!r} is defined twice")
            keys[str(key.value)] = key
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
_Loader.add_constructor(
    "tag:yaml.org,2002:int", lambda _, node: parse_int(node.value)
)  # 010 is ten, not eight


class _Dumper(yaml.SafeDumper):
    """The safe dumper, which also quotes strings that only our loader would read as numbers."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(f"^(?:{_NUMBERS['float'][0]})$"), list(_NUMBERS["float"][1])
)


# PyYAML's message, a clearer one, and whether the mistake is at its context mark instead of its problem mark
_YAML_MISTAKES = (
    (r"found character '\\t' .*", "a tab; YAML requires spaces for indentation: use two spaces for each tab",
        False),
    (r"mapping values are not allowed here", "an unexpected colon: a key above has none, or a text that "
                                             "contains ': ' must be quoted", False),
    (r"could not find expected ':'", "a key without a value; write 'key: value', with a space after the "
                                     "colon", True),
    (r"found unexpected end of stream", "unclosed quote", True),
    (r"expected <block end>, but found .*", "indented differently from the lines above; all keys of a "
                                            "section must start in the same column", False),
    (r"expected ',' or '([\]}])', but got .*", "unclosed bracket: \\1 is missing", True),
)  # fmt: skip


def _format_yaml_error(error: yaml.MarkedYAMLError) -> str:
    """Position and cause of a YAML error, in one line."""
    problem, mark = error.problem or "not YAML", error.problem_mark
    for pattern, plain, at_context in _YAML_MISTAKES:
        if match := re.fullmatch(pattern, problem):
            problem, mark = match.expand(plain), (error.context_mark if at_context else None) or mark
            break
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{where}{problem}"


def parse_yaml(text: str) -> Any:
    """Parse YAML to a value; every mistake is a one-line UserError."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        _count_nodes(node, {})
        return None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise UserError(_format_yaml_error(error)) from None
    except yaml.YAMLError as error:
        raise UserError(f"not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise UserError("nested too deeply") from None
    except UserError:
        raise
    except UnicodeEncodeError:
        raise UserError("half of a surrogate pair is not valid Unicode") from None
    except (ValueError, LookupError):  # from PyYAML's constructors, which do not validate values
        raise UserError("a value does not match its tag, or a number has too many digits") from None


def _count_nodes(node: yaml.Node | None, counts: dict[int, int], depth: int = 1) -> int:
    """The number of nodes with each alias written out; a UserError beyond the limits.

    Ten aliases of ten aliases, and so on ten times, fill the memory with 10^10 values.
    """
    if depth > MAX_NESTING:
        raise RecursionError
    if isinstance(node, yaml.ScalarNode):
        node.value.encode()  # an error for the escape of half a surrogate pair
    children = (
        [child for item in node.value for child in item]
        if isinstance(node, yaml.MappingNode)
        else (node.value if isinstance(node, yaml.SequenceNode) else [])
    )
    if id(node) not in counts:
        counts[id(node)] = _MAX_NODES  # while it is counted: an alias inside its own anchor is endless
        counts[id(node)] = 1 + sum(_count_nodes(child, counts, depth + 1) for child in children)
    if counts[id(node)] > _MAX_NODES:
        raise UserError(f"its aliases (*name) expand to more than {_MAX_NODES:,} values")
    return counts[id(node)]


_OPTION_COMMA = re.compile(r"""(?<=[=,:\[{\s])('(?:[^']|'')*'|"(?:[^"\\]|\\.)*")|,(?=\s*\w+\s*=)""")


def parse_part(text: str) -> Any:
    """Parse a part from the command line: ``h2o,budget=256`` is short for ``{name: h2o, budget: 256}``.

    A comma that is not followed by ``option=`` belongs to the value, as does any comma in quotes:
    ``choice,choices=[red, 'a, b=c']``.
    """
    name, comma, options = text.partition(",")
    if not comma or text.lstrip().startswith("{"):
        return parse_yaml(text)
    part = {"name": name.strip()}
    cuts = [match.start() for match in _OPTION_COMMA.finditer(options) if match[1] is None]
    for start, end in zip([-1, *cuts], [*cuts, len(options)], strict=True):
        option = options[start + 1 : end]
        key, equals, value = option.partition("=")
        if not equals or not key.strip():
            raise UserError(
                f"{format_value(text)}: expected name,option=value, e.g. window,window=256,sink=4"
            )
        prefix, bare = f"{part['name']},{key.strip()}=", value.strip().strip("'\"")
        try:
            part[key.strip()] = parse_yaml(value)
        except UserError as error:
            hint = f"""to pass it as one text, quote it: "{prefix}'{bare}'" """.rstrip()
            raise UserError(f"{prefix}{value}: {error}; {hint}") from None
    return part


def dump_yaml(tree: YamlTree) -> str:
    """The tree as YAML, keys in order, one per line."""
    return str(yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))


def dump_yaml_value(value: Any) -> str:
    """A value as YAML on one line, as it is written after its key."""
    flow = yaml.dump(
        [value],
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=float("inf"),
        default_flow_style=True,
    )
    return str(flow).strip()[1:-1]


def read_yaml(path: Path) -> YamlTree:
    """Read a YAML file whose root is a mapping."""
    if path.is_dir():
        recipes = [path / "recipe.yaml"] if (path / "recipe.yaml").is_file() else sorted(path.glob("*.y*ml"))
        hint = f"; did you mean {str(recipes[0])!r}?" if len(recipes) == 1 else ""
        raise UserError(f"{path}: a directory, not a recipe{hint}")
    if "\n" in str(path):
        raise UserError(f"{format_value(str(path))}: expected the path of a recipe, not its text")
    if not path.is_file():
        raise UserError(f"{path}: no such file{did_you_mean_path(path, '*.y*ml', [Path('recipes')])}")
    return decode_yaml(read_linked_file(path, 1 << 30), path)


def decode_yaml(raw: bytes, path: Path) -> YamlTree:
    """Parse the content of a YAML file; ``path`` names it in errors."""
    if len(raw) > MAX_RECIPE_BYTES:
        raise UserError(
            f"{path}: {len(raw):,} bytes are too large for a recipe; the maximum is {MAX_RECIPE_BYTES:,}"
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from None
    if "\0" in text:
        raise UserError(f"{path}: a binary file, not YAML")
    try:
        tree = parse_yaml(text)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if tree is None:
        raise UserError(f"{path}: the file is empty")
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected keys such as 'data:' and 'model:', got {format_value(tree)}")
    return tree


def parse_overrides(overrides: Iterable[str], root: type[BaseModel]) -> list[tuple[list[str], Any]]:
    """Parse overrides: ``model.position.theta=5e5`` -> (["model", "position", "theta"], 500000.0).

    A part's name is sorted before its options, since a new part drops the options of the old one.
    """
    if isinstance(overrides, str):
        raise UserError(f"expected a list of overrides, got one string; write [{overrides!r}]")
    parsed = []
    overrides = list(overrides)
    for index, override in enumerate(overrides):
        if not isinstance(override, str):
            raise UserError(f"override {format_value(override)}: expected a text, e.g. 'model.d_model=256'")
        key, equals, text = override.partition("=")
        keys = key.strip().split(".")
        if not equals or not all(keys):
            meant = _join_override(overrides, index, root)
            hint = f"; did you mean {meant}?" if meant else ", e.g. model.d_model=256"
            raise UserError(f"override {override!r}: expected section.key=value{hint}")
        if keys[0] not in root.model_fields:
            raise UserError(
                f"{key}: unknown key{alias_hint(keys[0], root) or did_you_mean(keys[0], root.model_fields)}"
            )
        try:
            parsed.append((keys, parse_yaml(text)))
        except UserError as error:
            raise UserError(f"override {override!r}: {error}") from None
    return sorted(parsed, key=lambda item: (len(item[0]), item[0][-1] != "name"))


def _join_override(overrides: list[str], index: int, root: type[BaseModel]) -> str:
    """``model.d_model=128`` for a key and value separated by a blank or colon; empty for an unknown key."""
    key, _, value = overrides[index].partition(":")
    rest = [value.strip()] if value.strip() else [word for word in overrides[index + 1 :] if word != "="][:1]
    if key.split(".")[0] not in root.model_fields or not rest or "=" in rest[0].strip("="):
        return ""
    return f"{key}={rest[0].strip('=')}"


def assign(tree: YamlTree, keys: list[str], value: Any, root: type[BaseModel]) -> None:
    """Set a value in the tree, creating sections and expanding parts to mappings on the way."""
    model: type[BaseModel] | None = root
    for depth, key in enumerate(keys[:-1], 1):
        field = model.model_fields.get(key) if model else None
        if field is not None and Choice in (field.annotation, *typing.get_args(field.annotation)):
            part = Choice.from_config(tree.get(key) or field.default)
            keep = {} if keys[depth] == "name" else part.options
            tree[key] = {"name": part.name, **keep}
        inner, model = tree.get(key), section_type(field.annotation) if field else None
        if isinstance(inner, str) and (word := getattr(model, "shorthand", None)):
            inner = tree[key] = {word: inner}
        if inner is None:
            inner = tree[key] = {}
        mapping = field is not None and typing.get_origin(field.annotation) is dict
        if not isinstance(inner, dict) or (field and not model and not mapping and "name" not in inner):
            raise UserError(f"{'.'.join(keys)}: {'.'.join(keys[:depth])} is a value and has no keys")
        tree = inner
    tree[keys[-1]] = value
