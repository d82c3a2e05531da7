import copy
import io
import json
import os
import resource
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NamedTuple

MEMORY = 6 << 30  # bytes of address space; a bomb needs more
SECONDS = 60  # of processor time, after which the kernel kills the process
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
PATTERNS = [r"(a+)+$", r"(a|a)*b", r"(.*)*x", r"(\w+\s?)*$", r"a*a*a*a*b", "((abc)+)*$", "(?<n>a\\g<n>?)b"]
PATTERNS += ["(" * 5000, "[", r"\p{Nope}", "(?x) a b", "(?:a{1,999}){1,999}c", "x" * 30_000, "(?i:(a|A)+)+$"]
PATTERNS += ["", "|", "(a*)*", r"\1"]


class Hostile(NamedTuple):
    name: str
    files: dict[str, bytes]
    text: bytes = b"ein hund bellt . aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!\nab\n"


def dump(value):
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(value).encode()
    finally:
        sys.set_int_max_str_digits(4300)


def mutate(rng, value):
    """The value with one of its parts replaced by one that is too large, of another type or absent."""
    value = copy.deepcopy(value)
    slots = []
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


def bad_bytes(rng, content):
    """The content damaged as bytes: cut, nested, with half a surrogate pair, a long number or a BOM."""
    digits = b"9" * rng.choice([350, 4_000, 5_000])
    flipped = bytearray(content)
    for _ in range(rng.choice([1, 5, 50])):
        flipped[rng.randrange(len(flipped))] = rng.randrange(256)
    return rng.choice(
        [
            content[: rng.randrange(len(content))],
            rng.choice([b"[", b'{"a":', b'[{"x":']) * rng.choice([150, 900, 50_000]),
            content.replace(b"{", b'{"\\ud800": "\\udfff", ', 1),
            content.replace(b"{", b'{"n": ' + digits + b", ", 1),
            rng.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\0"]) + content,
            bytes(flipped),
        ]
    )


def hostile_tokenizer(rng, rules):
    rules = copy.deepcopy(rules)
    pattern = {rng.choice(["Regex", "Regex", "String"]): rng.choice(PATTERNS)}
    bomb = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * rng.choice([2, 10, 1000])}
    steps = [bomb] * rng.choice([4, 12, 40])
    match rng.randrange(12):
        case 0:
            rules["model"]["vocab"][rng.choice(sorted(rules["model"]["vocab"]))] = rng.choice(BIG)
        case 1:
            rules["normalizer"] = {"type": "Sequence", "normalizers": steps}
        case 2:
            rules["decoder"] = {"type": "Sequence", "decoders": steps}
        case 3:
            split = {"type": "Split", "pattern": pattern, "behavior": "Isolated"}
            rules["pre_tokenizer"] = split | {"invert": rng.random() < 0.5}
        case 4:
            replacement = {"type": "Replace", "pattern": pattern, "content": rng.choice(["", "b", "ab" * 99])}
            rules[rng.choice(["normalizer", "decoder"])] = replacement
        case 5:
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), True)
            content = rng.choice(["", " ", "a", "x" * 99_999, "</s>"])
            rules["added_tokens"].append({"id": rng.choice([*BIG, 7, 300]), "content": content, **flags})
        case 6:
            sequence, special = {"id": "A", "type_id": 0}, {"id": "q", "type_id": 9}
            part, n = (
                rng.choice([{"Sequence": sequence}, {"SpecialToken": special}]),
                rng.choice([0, 1, 2, 5_000]),
            )
            tokens = {"q": {"id": "q", "ids": [rng.choice([*BIG, 5])], "tokens": ["q"]}}
            template = {"type": "TemplateProcessing", "single": [part] * n, "pair": [part] * n}
            rules["post_processor"] = template | {"special_tokens": tokens}
        case 7:
            strip = {"type": "Strip", "content": "a", "start": rng.choice(BIG), "stop": rng.choice(BIG)}
            bpe = {"type": "BPEDecoder", "suffix": ""}
            ctc = {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True}
            wordpiece = {"type": "WordPiece", "prefix": "", "cleanup": True}
            sequence = {"type": "Sequence", "decoders": [bpe] * 40}
            rules["decoder"] = rng.choice([strip, ctc, bpe, wordpiece, sequence])
        case 8:
            charsmap = rng.choice(["", "AAAA", "/////w==", "BAAAAP////9h", 7])
            long = {"type": "Prepend", "prepend": "a" * rng.choice([2_000, 10**6])}
            forms = [{"type": "NFKD"}, *[bomb, {"type": "NFKC"}] * 9]
            sequence = {"type": "Sequence", "normalizers": forms}
            charsmap = {"type": "Precompiled", "precompiled_charsmap": charsmap}
            rules["normalizer"] = rng.choice([charsmap, long, sequence])
        case 9:
            rules["model"]["continuing_subword_prefix"] = rng.choice(["##", "é" * 9, "\0"])
        case 10:
            rules["model"]["merges"] += rng.choice([[["a", "\0"]], ["ab"], [[]], [["a"]], [["", ""]], [7]])
        case _:
            rules["pre_tokenizer"] = {"type": "FixedLength", "length": rng.choice(BIG)}
    return rules


def hostile_config(rng, config):
    if rng.random() < 0.5:
        return dict(mutate(rng, config))
    sizes = [key for key, value in config.items() if type(value) is int]
    return config | {rng.choice(sizes): rng.choice([*BIG, 10**9, 10**6, 7])}


def hostile_weights(rng, content):
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    kind = rng.randrange(4)
    if kind == 0:
        wrong_size = rng.choice([2**63, 2**31, size + 1, size - 1, 0, 99_999_999])
        return wrong_size.to_bytes(8, "little") + content[8:]
    if kind == 1:
        text = bad_bytes(rng, json.dumps(header).encode())
    elif kind == 2:
        entry = header[rng.choice([name for name in header if name != "__metadata__"])]
        values = ["F8", "I64", [2**40, 2**40], [0, 2**63], [-1], [], [8, 0], [0, 0], None]
        entry[rng.choice(sorted(entry))] = rng.choice(values)
        text = dump(header)
    else:
        text = dump(mutate(rng, header))
    return len(text).to_bytes(8, "little") + text + data


def hostile_recipe(rng, content):
    aliases = (f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(aliases)
    lines = content.decode().splitlines()
    match rng.randrange(5):
        case 0:
            return rng.choice([bomb, "a: &a [*a]\n", "&a *a", "a: !!python/object:os.system x\n"]).encode()
        case 1:
            return bad_bytes(rng, content)
        case 2:
            return content + f"\nx: {'[' * rng.choice([90, 500, 5_000])}\n".encode()
        case 3:
            number, value = rng.randrange(len(lines)), rng.choice(["9" * 5_000, "1e999", ".nan", "{}"])
            lines[number] = f"{lines[number].partition(':')[0]}: {value}"
        case _:
            line = rng.choice(["<<: 7", "\t- a", "? [a]", "\u202e: 1", "--- !x"])
            lines.insert(rng.randrange(len(lines)), line)
    return "\n".join(lines).encode()


def hostile_text(rng):
    texts = ["\u202e\u2066abc\u2069", "e" + "\u0301" * 5_000, "\u200b\u200d\ufeff", "\ufdfa" * 3_000]
    texts += [
        "\U0010ffff\ufffe",
        "\u2028\u2029\x85\x0b\x0c",
        "👨‍👩‍👧‍👦" * 500,
        "<s></s><pad>",
        "\x1b]0;x\x07\x1b[2J",
    ]
    lines = [
        b"\0" * 50,
        b"\xed\xa0\x80",
        b"\xff\xfe\xfd",
        b"a" * 300_000,
        b"\r",
        b"",
        b" " * 100_000,
        b"\x80" * 9,
    ]
    return b"\n".join(rng.sample([*lines, *(text.encode() for text in texts)], rng.randrange(1, 4))) + b"\n"


TEMPLATES = [
    "{% for i in range(10**9) %}{{ i }}{% endfor %}",
    "{{ messages[0]['content'].__init__.__globals__ }}",
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    '{# polyhead: {"name": "os:system"} #}',
    "{# polyhead: " + "[" * 5_000 + " #}",
    *("{{ ''.__class__.__mro__ }}", "{{ 'a' * 10**10 }}", "{{", "{% include '/etc/passwd' %}"),
    *("\0", 7, ["x"], "<|im_start|>" * 20_000, {"a": "b"}, [{"name": "default", "template": None}]),
]


JSON_FILES = {
    "roles": ("tokenizer_config.json", mutate, 0.5),
    "config": ("config.json", hostile_config, 0.8),
    "published": ("config.json", hostile_config, 0.8),
    "generation": ("generation_config.json", hostile_config, 1.0),
}


def generate(rng, kind, count, directory):
    def read(name):
        return (directory / name).read_bytes()

    def damage(name, change, share):
        content = dump(change(rng, json.loads(read(name))))
        return content if rng.random() < share else bad_bytes(rng, read(name))

    for number in range(count):
        name, content, text = "", b"", Hostile("", {}).text
        match kind:
            case "tokenizer":
                change = hostile_tokenizer if rng.random() < 0.8 else mutate
                name, content = "tokenizer.json", damage("tokenizer.json", change, 0.9)
            case "roles" | "config" | "published" | "generation":
                name, change, share = JSON_FILES[kind]
                content = damage(name, change, share)
            case "weights":
                name, content = "model.safetensors", hostile_weights(rng, read("model.safetensors"))
            case "recipe":
                name, content = "recipe.yaml", hostile_recipe(rng, read("recipe.yaml"))
            case "template":
                name, template = "tokenizer_config.json", TEMPLATES[number % len(TEMPLATES)]
                content = dump(json.loads(read(name)) | {"chat_template": template})
            case _:
                text = hostile_text(rng)
        yield Hostile(f"{kind} {number}", {name: content} if content else {}, text)


class Outcome(NamedTuple):
    code: int  # negative: the signal that ended it
    output: str
    errors: str


def run_apart(command, directory, hostile):
    """Run a verb in a child of this process, which has imported everything already, with limited memory."""
    with tempfile.TemporaryDirectory() as parent:
        run_dir = Path(shutil.copytree(directory, Path(parent) / "run"))
        for name, content in hostile.files.items():
            (run_dir / name).write_bytes(content)
        files = [Path(parent) / name for name in ("in", "out", "err")]
        files[0].write_bytes(hostile.text)
        if not (pid := os.fork()):
            _run_child([word.replace("RUN", str(run_dir)) for word in command], files)
        status = os.waitpid(pid, 0)[1]
        output, errors = (file.read_text(errors="replace") for file in files[1:])
        return Outcome(os.waitstatus_to_exitcode(status), output, errors)


def _run_child(arguments, files):
    code = 70
    try:
        for number, file in enumerate(files):
            os.dup2(os.open(file, os.O_RDONLY if not number else os.O_WRONLY | os.O_CREAT), number)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
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
