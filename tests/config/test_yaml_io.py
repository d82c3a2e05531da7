import pytest
from tests.config.recipe_helpers import TEXT, error_of, write

from polyhead.config.yaml_io import dump_yaml, dump_yaml_value, parse_part, parse_yaml
from polyhead.core.errors import UserError
from polyhead.run.recipe import load_recipe

SCHEMA = {"type": "object", "required": ["a"]}
INVALID_VALUE = "a value does not match its tag, or a number has too many digits"
KEYS = "expected keys such as 'data:' and 'model:', got"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        (b"\x7fELF\x02\x01\x01\x00\xff", "not UTF-8 text (byte 8)"),
        (b"a: b\x00c", "a binary file, not YAML"),
        ("just words", f"{KEYS} 'just words'"),
        ("data: {train: a.tsv\n", "line 1, column 7: unclosed bracket: } is missing"),
        ("a: 1\nb: 2\na: 3\n", "line 3: key 'a' is defined twice"),
        ("a: &x [1]\nb: *y\n", "line 2, column 4: found undefined alias 'y'"),
        ("\tdata: 3", "line 1, column 1: a tab; YAML requires spaces for indentation: use two spaces for ea"),
        ("a: \x07", "not YAML: unacceptable character #x0007: special characters are not allowed"),
        ("? [a, b]\n: 1\n", "line 1, column 3: a key must be a single word"),
        ("[" * 5000, "nested too deeply"),
        ("a: !!int abc", INVALID_VALUE),
        ("a: " + "1" * 5000, INVALID_VALUE),
        ("a: " + "x" * 262_142, "262,145 bytes are too large for a recipe; the maximum is 262,144"),
    ],
)
def test_file_that_is_no_recipe_is_refused(tmp_path, content, message):
    path = write(tmp_path / "bad.yaml", content)
    assert error_of(path).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("choice,among=[yes,no]", {"name": "choice", "among": ["yes", "no"]}),
        ('choice,among=["a, b", c]', {"name": "choice", "among": ["a, b", "c"]}),
        ('regex,pattern="[0-9]{2,3}"', {"name": "regex", "pattern": "[0-9]{2,3}"}),
        ("regex,pattern=a,b", {"name": "regex", "pattern": "a,b"}),
        ("json,schema={type: object, required: [a]}", {"name": "json", "schema": SCHEMA}),
        ("choice,among=[red, 'b, c=d']", {"name": "choice", "among": ["red", "b, c=d"]}),
        ("choice,among=['it''s, a=b', \"\\\", c=d\"]", {"name": "choice", "among": ["it's, a=b", '", c=d']}),
        ("regex,pattern='a, b=c',flags=2", {"name": "regex", "pattern": "a, b=c", "flags": 2}),
        ("draft,run=it's,tokens=2", {"name": "draft", "run": "it's", "tokens": 2}),
        ("h2o,budget=256, recent=4", {"name": "h2o", "budget": 256, "recent": 4}),
    ],
)
def test_commas_within_values_are_part_of_them(text, expected):
    assert parse_part(text) == expected


def test_limits_and_syntax_of_values_and_files(tmp_path):
    with pytest.raises(UserError, match=r"^regex,pattern=\[0-9\]\{2\}: line 1, column 6: expected"):
        parse_part("regex,pattern=[0-9]{2}")
    expected = {"a": {"b": 1}, "c": [{"b": 1}] * 2, "d": {"b": 1, "e": 2}}
    assert parse_yaml("a: &a {b: 1}\nc: [*a, *a]\nd: {<<: *a, e: 2}") == expected
    assert parse_yaml("9" * 300) == int("9" * 300) and parse_yaml("[" * 90 + "]" * 90)
    for text, message in (("9" * 301, "too many digits"), ("[" * 101 + "]" * 101, "nested too deeply")):
        with pytest.raises(UserError, match=message):
            parse_yaml(text)
    path = write(tmp_path / "small.yaml", b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert load_recipe(path).train.steps == 100
    path = write(tmp_path / "bomb.yaml", nested_aliases(False) + TEXT)
    assert all(len(line) < 300 for line in error_of(path).splitlines())


def nested_aliases(is_merge):
    lines = ["a0: &a0 {k: 1}"]
    for i in range(1, 12):
        aliases = f"[{', '.join([f'*a{i - 1}'] * 10)}]"
        lines.append(f"a{i}: &a{i}\n  <<: {aliases}" if is_merge else f"a{i}: &a{i} {aliases}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text", [nested_aliases(False), nested_aliases(True), "a: &a [*a]", "a: &a {<<: *a}"]
)
def test_aliases_that_expand_too_much_are_refused(text):
    with pytest.raises(UserError, match=r"^its aliases \(\*name\) expand to more than 1,000,000 values$"):
        parse_yaml(text)


def test_dump_keeps_order_and_letters():
    tree = {"name": "Bär", "b": [1, 2], "a": {"z": None, "c": "x" * 120}}
    assert dump_yaml({"name": "Bär", "b": 1, "a": 2}) == "name: Bär\nb: 1\na: 2\n"
    text = dump_yaml_value(tree)
    assert text == "{name: Bär, b: [1, 2], a: {z: null, c: " + "x" * 120 + "}}"
    assert parse_yaml(text) == tree
