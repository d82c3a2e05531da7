"""Mistakes on the command line and the answers that `mistakes.txt` and `mistakes.zh.txt` record.

``python -m tests.cli.test_mistakes_table --update`` writes the present answers to both files.
"""

import contextlib
import io
import json
import os
import shlex
import shutil
import socket
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from tests.cli import swapped_sides_helpers

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.cli.verbs import VERBS
from polyhead.config.generation_config import GenerationConfig
from polyhead.core import i18n
from polyhead.run.recipe import load_recipe
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

ENGLISH = [*swapped_sides_helpers.ENGLISH, "a girl reads a book"]
CHINESE = [*swapped_sides_helpers.CHINESE, "女孩在看书"]
RECIPE = """data:
  train: [a.en, a.zh]
  valid_fraction: 0.2
  source_lang: en
  target_lang: zh
tokenizer: {vocab_size: 300}
model: {d_model: 16, n_heads: 2, n_layers: 1, d_ff: 32}
train: {steps: 2, device: cpu}
"""
RECIPES = {
    "mine": RECIPE,
    "recipes/other": RECIPE,
    "tab": "data:\n\ttrain: [a.en, a.zh]\n",
    "colon": "data\n  train: [a.en, a.zh]\n",
    "noblank": RECIPE.replace("source_lang: en", "source_lang:en"),
    "quote": RECIPE.replace("source_lang: en", 'source_lang: "en'),
    "twice": RECIPE + "train: {steps: 3}\n",
    "list": "- data\n- train\n",
    "word": "hello\n",
    "empty": "",
    "indent": RECIPE.replace("  valid_fraction", "   valid_fraction"),
    "bracket": RECIPE.replace("[a.en, a.zh]", "[a.en, a.zh"),
    "typo": RECIPE.replace("d_model", "d_modle"),
    "elsewhere": RECIPE.replace("d_model: 16", "hidden_size: 16").replace("steps: 2", "learning_rate: 0.1"),
    "bare": "train: {steps: 2}\n",
}


def write_texts():
    """Write text files and recipes, valid and invalid ones, to the working directory."""
    rows = [("text", "label"), *((text, "no" if i % 2 else "yes") for i, text in enumerate(ENGLISH * 5))]
    texts = {
        "a.en": ENGLISH * 5,
        "a.zh": CHINESE * 5,
        "b.zh": [*CHINESE * 5, CHINESE[0]],
        "short.zh": CHINESE,
        "few.txt": ENGLISH[:1],
        "plain.txt": ENGLISH * 10,
        "blank.txt": ["", ""],
        "labels.tsv": ["\t".join(row) for row in rows],
        "table.csv": [",".join(row) for row in rows],
        "rows.jsonl": [json.dumps({"en": a, "zh": b}) for a, b in zip(ENGLISH * 5, CHINESE * 5, strict=True)],
        "broken.jsonl": ['{"en": "a"', "{oops"],
        "broken.json": ["{"],
    }
    files = {name: "".join(f"{line}\n" for line in lines).encode() for name, lines in texts.items()} | {
        "empty.txt": b"",
        "latin1.txt": "café naïve\ndéjà vu\n".encode("latin1"),
        "utf16.txt": "hello\n".encode("utf-16"),
        "binary.bin": bytes(range(256)) * 20,
        "binary.yaml": bytes(range(256)),
        "book.xlsx": b"PK\x03\x04" + bytes(26) + b"[Content_Types].xml" + bytes(100),
    }
    Path("recipes").mkdir()
    Path("folder").mkdir()
    files |= {f"{name}.yaml": text.encode() for name, text in RECIPES.items()}
    for name, content in files.items():
        Path(name).write_bytes(content)


def write_runs():
    """Save untrained runs of every kind, and damage some."""
    tokenizer = train_tokenizer(ENGLISH + CHINESE, Choice("bpe"), 300)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 64}
    classes = {"kind": "encoder", "labels": ("no", "yes"), "lm_head": False}
    kinds = {"mt": {}, "norecipe": {}, "lm": {"kind": "decoder"}, "cls": classes, "enc": {"kind": "encoder"}}
    for name, keys in kinds.items():
        recipe = load_recipe("mine.yaml") if name == "mt" else None
        model = build(ModelConfig(vocab_size=tokenizer.vocab_size, **sizes, **keys))
        Run(model, tokenizer, GenerationConfig(beam_size=1), recipe).save(f"runs/{name}")
    for name in ("noweights", "cut", "badconfig", "notokenizer"):
        shutil.copytree("runs/mt", f"runs/{name}")
    Path("runs/noweights/model.safetensors").unlink()
    Path("runs/notokenizer/tokenizer.json").unlink()
    Path("runs/cut/model.safetensors").write_bytes(b"\xff" * 100)
    Path("runs/badconfig/config.json").write_text("{")
    Path("runs/begun/checkpoints/step-2").mkdir(parents=True)
    Path("runs/begun/recipe.yaml").write_text(RECIPE)


def table_path(language):
    return Path(__file__).with_name("mistakes.txt" if language == "en" else f"mistakes.{language}.txt")


def read_table(language):
    """The commands and their answers, which blank lines separate."""
    entries = table_path(language).read_text(encoding="utf-8").strip().split("\n\n")
    pairs = [entry.partition("\n")[::2] for entry in entries]
    return [(command.removeprefix("$ polyhead").strip(), answer) for command, answer in pairs]


def answer_of(command, language):
    """The exit code, the lines of the answer without their prefix, and the standard output."""
    options = [] if language == "en" else ["--lang", language]
    out, errors, stdin = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(b"a dog\n"))
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(out):
            code = main([*options, *shlex.split(command)])
    finally:
        sys.stdin = stdin
        i18n.set_language(None)
    prefix = "polyhead: "
    lines = [line for line in errors.getvalue().splitlines() if line.startswith(prefix)]
    return code, "\n".join(line.removeprefix(prefix) for line in lines), out.getvalue()


# they print before the mistake is found
PRINTING = ("verify runs/cut", "demo --target en", "translate runs/mt a.en --prefix plain.txt")
ROWS = [(language, *row) for language in ("en", "zh") for row in read_table(language)]


@pytest.fixture(scope="module")
def mistakes_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("newcomer")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        write_texts()
        write_runs()
    return directory


@pytest.fixture(autouse=True)
def workdir(mistakes_dir, monkeypatch):
    monkeypatch.chdir(mistakes_dir)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.whole
@pytest.mark.parametrize(("language", "command", "answer"), ROWS, ids=[f"{row[0]}-{row[1]}" for row in ROWS])
def test_answer_names_the_mistake_and_the_correction(language, command, answer):
    code, actual, out = answer_of(command, language)
    assert (code, actual) == (2, answer)
    assert out == "" or command in PRINTING


def test_table_covers_every_verb_with_short_answers():
    commands = [command for language, command, _ in ROWS if language == "en"]
    assert len({*commands}) == len(commands) >= 290
    assert VERBS.keys() <= {command.split(" ")[0] for command in commands}
    for _, command, answer in ROWS:
        assert len(answer.splitlines()) <= 2, command
        assert not any(sign in answer for sign in ("Traceback", "bug in Polyhead", "Errno")), command


def test_port_in_use_suggests_another():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        answer = f"port {port} is in use; choose another one, or 0 for any free port"
        assert answer_of(f"serve runs/lm --port {port}", "en") == (2, answer, "")


def update_tables():
    torch.cuda.device_count = lambda: 0
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        write_texts()
        write_runs()
        for language in ("en", "zh"):
            answers = {row[0]: answer_of(row[0], language)[1] for row in read_table(language)}
            entries = [f"$ polyhead {command}\n{answer}\n" for command, answer in answers.items()]
            table_path(language).write_text("\n".join(entries), encoding="utf-8")


if __name__ == "__main__" and sys.argv[1:] == ["--update"]:
    os.environ["POLYHEAD_LANG"] = "en"
    update_tables()
