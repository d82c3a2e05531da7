"""Hostile inputs by a seeded generator, and a process in which a verb meets each of them."""

from __future__ import annotations

import copy
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MEMORY = 6 << 30  # bytes of address space; a bomb needs more
SECONDS = 60
BIG = [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 10**18, 10**30, 10**400, -1, -(2**31), 0]
ODD = [
    None,
    True,
    False,
    "",
    "\0",
    "x" * 100_000,
    "\u202e",
    [],
    {},
    [[]],
    [None],
    {"a": None},
    1.5,
    1e308,
    -0.0,
]
PATTERNS = [
    r"(a+)+$",
    r"(a|a)*b",
    r"(.*)*x",
    r"(\w+\s?)*$",
    r"a*a*a*a*b",
    "((abc)+)*$",
    "(?<n>a\\g<n>?)b",
    "(" * 5000,
    "[",
    r"\p{Nope}",
    "(?x) a b",
    "(?:a{1,999}){1,999}c",
    "x" * 30_000,
    "(?i:(a|A)+)+$",
    "",
    "|",
    "(a*)*",
    r"\1",
]


class Hostile(NamedTuple):
    """One input: files of a run that are replaced, and the text of standard input."""

    name: str
    files: dict[str, bytes]
    text: bytes = b"ein hund bellt . aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!\nab\n"


def dump(value: Any) -> bytes:
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(value).encode()
    finally:
        sys.set_int_max_str_digits(4300)


def mutate(rng: random.Random, value: Any) -> Any:
    """The value with one of its parts replaced by one that is too large, of another type or absent."""
    value = copy.deepcopy(value)
    slots: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        item = stack.pop()
        for key, child in item.items() if isinstance(item, dict) else enumerate(item):
            slots.append((item, key))
            if isinstance(child, dict | list):
                stack.append(child)
    # a vocabulary has most slots: rng a depth of names first
    item, key = rng.choice(slots if rng.random() < 0.3 else slots[: 40 + len(slots) // 20])
    if isinstance(item, dict) and rng.random() < 0.15:
        del item[key]
    else:
        item[key] = copy.deepcopy(rng.choice(rng.choice([BIG, ODD, ["\ud800", "</s>", "a"]])))
    return value


def bad_bytes(rng: random.Random, content: bytes) -> bytes:
    """The content damaged as bytes: cut, nested, with half a surrogate pair, a long number or a BOM."""
    kind = rng.randrange(6)
    if kind == 0:
        return content[: rng.randrange(len(content))]
    if kind == 1:
        return rng.choice([b"[", b'{"a":', b'[{"x":']) * rng.choice([150, 900, 50_000])
    if kind == 2:
        return content.replace(b"{", b'{"\\ud800": "\\udfff", ', 1)
    if kind == 3:
        return content.replace(b"{", b'{"n": ' + b"9" * rng.choice([350, 4_000, 5_000]) + b", ", 1)
    if kind == 4:
        return rng.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\0"]) + content
    content_copy = bytearray(content)
    for _ in range(rng.choice([1, 5, 50])):
        content_copy[rng.randrange(len(content_copy))] = rng.randrange(256)
    return bytes(content_copy)


def hostile_tokenizer(rng: random.Random, rules: dict[str, Any]) -> dict[str, Any]:
    rules = copy.deepcopy(rules)
    pattern = {rng.choice(["Regex", "Regex", "String"]): rng.choice(PATTERNS)}
    bomb = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * rng.choice([2, 10, 1000])}
    steps = [bomb] * rng.choice([4, 12, 40])
    match rng.randrange(12):
        case 0:
            token = rng.choice(sorted(rules["model"]["vocab"]))
            rules["model"]["vocab"][token] = rng.choice(BIG)
        case 1:
            rules["normalizer"] = {"type": "Sequence", "normalizers": steps}
        case 2:
            rules["decoder"] = {"type": "Sequence", "decoders": steps}
        case 3:
            rules["pre_tokenizer"] = {
                "type": "Split",
                "pattern": pattern,
                "behavior": "Isolated",
                "invert": rng.random() < 0.5,
            }
        case 4:
            name = rng.choice(["normalizer", "decoder"])
            rules[name] = {"type": "Replace", "pattern": pattern, "content": rng.choice(["", "b", "ab" * 99])}
        case 5:
            rules["added_tokens"].append(
                {
                    "id": rng.choice([*BIG, 7, 300]),
                    "content": rng.choice(["", " ", "a", "x" * 99_999, "</s>"]),
                    "single_word": True,
                    "lstrip": True,
                    "rstrip": True,
                    "normalized": True,
                    "special": True,
                }
            )
        case 6:
            part = rng.choice(
                [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "q", "type_id": 9}}]
            )
            parts = [part] * rng.choice([0, 1, 2, 5_000])
            rules["post_processor"] = {
                "type": "TemplateProcessing",
                "single": parts,
                "pair": parts,
                "special_tokens": {"q": {"id": "q", "ids": [rng.choice([*BIG, 5])], "tokens": ["q"]}},
            }
        case 7:
            rules["decoder"] = rng.choice(
                [
                    {"type": "Strip", "content": "a", "start": rng.choice(BIG), "stop": rng.choice(BIG)},
                    {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
                    {"type": "BPEDecoder", "suffix": ""},
                    {"type": "WordPiece", "prefix": "", "cleanup": True},
                    {"type": "Sequence", "decoders": [{"type": "BPEDecoder", "suffix": ""}] * 40},
                ]
            )
        case 8:
            rules["normalizer"] = rng.choice(
                [
                    {
                        "type": "Precompiled",
                        "precompiled_charsmap": rng.choice(["", "AAAA", "/////w==", "BAAAAP////9h", 7]),
                    },
                    {"type": "Prepend", "prepend": "a" * rng.choice([2_000, 10**6])},
                    {"type": "Sequence", "normalizers": [{"type": "NFKD"}, *[bomb, {"type": "NFKC"}] * 9]},
                ]
            )
        case 9:
            rules["model"]["continuing_subword_prefix"] = rng.choice(["##", "é" * 9, "\0"])
        case 10:
            rules["model"]["merges"] += rng.choice([[["a", "\0"]], ["ab"], [[]], [["a"]], [["", ""]], [7]])
        case _:
            rules["pre_tokenizer"] = {"type": "FixedLength", "length": rng.choice(BIG)}
    return rules


def hostile_config(rng: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    """A config with a size that is far too large, or mutated."""
    if rng.random() < 0.5:
        return dict(mutate(rng, config))
    sizes = [key for key, value in config.items() if type(value) is int]
    return config | {rng.choice(sizes): rng.choice([*BIG, 10**9, 10**6, 7])}


def hostile_weights(rng: random.Random, content: bytes) -> bytes:
    """A safetensors file with a hostile header."""
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    match rng.randrange(4):
        case 0:
            return (
                rng.choice([2**63, 2**31, size + 1, size - 1, 0, 99_999_999]).to_bytes(8, "little")
                + content[8:]
            )
        case 1:
            content_copy = bad_bytes(rng, json.dumps(header).encode())
            return len(content_copy).to_bytes(8, "little") + content_copy + data
        case 2:
            name = rng.choice([name for name in header if name != "__metadata__"])
            entry = header[name]
            entry[rng.choice(sorted(entry))] = rng.choice(
                ["F8", "I64", [2**40, 2**40], [0, 2**63], [-1], [], [8, 0], [0, 0], None]
            )
        case _:
            header = mutate(rng, header)
    content_copy = dump(header)
    return len(content_copy).to_bytes(8, "little") + content_copy + data


def hostile_recipe(rng: random.Random, content: bytes) -> bytes:
    aliases = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
    )
    lines = content.decode().splitlines()
    match rng.randrange(5):
        case 0:
            return rng.choice([aliases, "a: &a [*a]\n", "&a *a", "a: !!python/object:os.system x\n"]).encode()
        case 1:
            return bad_bytes(rng, content)
        case 2:
            return content + f"\nx: {'[' * rng.choice([90, 500, 5_000])}\n".encode()
        case 3:
            number = rng.randrange(len(lines))
            lines[number] = (
                lines[number].partition(":")[0] + ": " + rng.choice(["9" * 5_000, "1e999", ".nan", "{}"])
            )
        case _:
            lines.insert(
                rng.randrange(len(lines)), rng.choice(["<<: 7", "\t- a", "? [a]", "\u202e: 1", "--- !x"])
            )
    return "\n".join(lines).encode()


def hostile_text(rng: random.Random) -> bytes:
    """Lines of a text: NULs, bytes that are no UTF-8, marks of direction, combining marks, one huge line."""
    pieces = [
        b"\0" * 50,
        b"\xed\xa0\x80",
        b"\xff\xfe\xfd",
        "\u202e\u2066abc\u2069".encode(),
        b"a" * 300_000,
        ("e" + "\u0301" * 5_000).encode(),
        "\u200b\u200d\ufeff".encode(),
        b"\x1b]0;x\x07\x1b[2J",
        b"\r",
        b"",
        "\ufdfa".encode() * 3_000,
        b" " * 100_000,
        "\U0010ffff\ufffe".encode(),
        b"<s></s><pad>",
        b"\x80" * 9,
        "\u2028\u2029\x85\x0b\x0c".encode(),
        "👨‍👩‍👧‍👦".encode() * 500,
    ]
    return b"\n".join(rng.sample(pieces, rng.randrange(1, 4))) + b"\n"


TEMPLATES = [
    "{% for i in range(10**9) %}{{ i }}{% endfor %}",
    "{{ ''.__class__.__mro__ }}",
    "{{ 'a' * 10**10 }}",
    "{{",
    "{# polyhead: " + "[" * 5_000 + " #}",
    '{# polyhead: {"name": "os:system"} #}',
    "\0",
    7,
    ["x"],
    "{% include '/etc/passwd' %}",
    "<|im_start|>" * 20_000,
    {"a": "b"},
    [{"name": "default", "template": None}],
    "{{ messages[0]['content'].__init__.__globals__ }}",
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
]


def generate(rng: random.Random, kind: str, count: int, directory: Path) -> Iterator[Hostile]:
    """Hostile inputs of one kind, made of the files of a run or of a published checkpoint."""
    names = [
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "model.safetensors",
        "recipe.yaml",
    ]
    files = [directory / name for name in [*names, "config.json"]]
    tokenizer, roles, generation, weights, recipe, config = (
        file.read_bytes() if file.exists() else b"" for file in files
    )
    for number in range(count):
        name, text = names[0], b""
        match kind:
            case "tokenizer":
                change = hostile_tokenizer if rng.random() < 0.8 else mutate
                content = dump(change(rng, json.loads(tokenizer)))
                content = content if rng.random() < 0.9 else bad_bytes(rng, tokenizer)
            case "roles":
                name, content = names[1], dump(mutate(rng, json.loads(roles)))
                content = content if rng.random() < 0.5 else bad_bytes(rng, roles)
            case "config" | "published":
                name, content = "config.json", dump(hostile_config(rng, json.loads(config)))
                content = content if rng.random() < 0.8 else bad_bytes(rng, config)
            case "generation":
                name, content = names[2], dump(hostile_config(rng, json.loads(generation)))
            case "weights":
                name, content = names[3], hostile_weights(rng, weights)
            case "recipe":
                name, content = names[4], hostile_recipe(rng, recipe)
            case "template":
                template = TEMPLATES[number % len(TEMPLATES)]
                name, content = names[1], dump(json.loads(roles) | {"chat_template": template})
            case _:
                content, text = b"", hostile_text(rng)
        content_copy = {name: content} if content else {}
        yield Hostile(f"{kind} {number}", content_copy, text or Hostile("", {}).text)


class Outcome(NamedTuple):
    """Exit code and output of a process."""

    code: int  # negative: the signal that ended it
    output: str
    errors: str


def run_apart(command: list[str], directory: Path, hostile: Hostile) -> Outcome:
    """Run a verb in a child of this process, which has imported everything already, with limited memory."""
    with tempfile.TemporaryDirectory() as parent:
        content_copy = Path(shutil.copytree(directory, Path(parent) / "run"))
        for name, content in hostile.files.items():
            (content_copy / name).write_bytes(content)
        files = [Path(parent) / name for name in ("in", "out", "err")]
        files[0].write_bytes(hostile.text)
        if not (pid := os.fork()):
            _run_child([word.replace("RUN", str(content_copy)) for word in command], files)
        deadline = time.monotonic() + SECONDS
        while not (status := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        output, errors = (file.read_text(errors="replace") for file in files[1:])
        return Outcome(os.waitstatus_to_exitcode(status[1]), output, errors)


def _run_child(arguments: list[str], files: list[Path]) -> None:
    code = 70
    try:
        for number, file in enumerate(files):
            os.dup2(os.open(file, os.O_RDONLY if not number else os.O_WRONLY | os.O_CREAT), number)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.stdin, sys.stdout, sys.stderr = (
            io.TextIOWrapper(os.fdopen(number, "rb" if not number else "wb"), errors="surrogateescape")
            for number in range(3)
        )
        from polyhead.cli import main

        code = main(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
