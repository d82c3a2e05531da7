"""Mistakes of newcomers, each typed as in ``mistakes.txt`` and answered as it says there: exit code 2, no
traceback.

The text files, recipes and runs that the commands name are made by ``place``.
"""

from __future__ import annotations

import json
import shlex
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.cli.verbs import VERBS
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.recipe import load_recipe
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

ENGLISH = ["a dog is in the house and it sleeps", "the cat and the man are in the street",
    "two men see the dog that barks at the cat", "a girl reads a book"]  # fmt: skip
CHINESE = ["一只狗在房子里睡觉", "猫和男人在街上", "两个男人看见了对着猫叫的狗", "女孩在看书"]
RECIPE = """data:
  train: [a.en, a.zh]
  valid_fraction: 0.2
  source_lang: en
  target_lang: zh
tokenizer: {vocab_size: 300}
model: {d_model: 16, n_heads: 2, n_layers: 1, d_ff: 32}
train: {steps: 2, device: cpu}
"""
YAML = {
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
    "elsewhere": RECIPE.replace("d_model: 16", "hidden_size: 16").replace("steps: 2",
        "learning_rate: 0.1, steps: 2"),
    "bare": "train: {steps: 2}\n",
}  # fmt: skip
MODEL: dict[str, Any] = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 64}


def write_texts() -> None:
    """Files of text, good and bad ones, in the working directory."""
    pairs = list(zip(ENGLISH * 5, CHINESE * 5, strict=True))
    labelled = [(text, "no" if i % 2 else "yes") for i, text in enumerate(ENGLISH * 5)]
    texts = {
        "a.en": "\n".join(ENGLISH * 5),
        "a.zh": "\n".join(CHINESE * 5),
        "b.zh": "\n".join([*CHINESE * 5, CHINESE[0]]),
        "short.zh": "\n".join(CHINESE),
        "plain.txt": "\n".join(ENGLISH * 10),
        "blank.txt": "\n\n",
        "labels.tsv": "\n".join("\t".join(row) for row in [("text", "label"), *labelled]),
        "table.csv": "\n".join(",".join(row) for row in [("text", "label"), *labelled]),
        "rows.jsonl": "\n".join(json.dumps({"en": a, "zh": b}) for a, b in pairs),
        "broken.jsonl": '{"en": "a"\n{oops',
    }
    files = {name: f"{text}\n".encode() for name, text in texts.items()} | {
        "empty.txt": b"",
        "latin1.txt": "café naïve\ndéjà vu\n".encode("latin1"),
        "utf16.txt": "hello\n".encode("utf-16"),
        "binary.bin": bytes(range(256)) * 20,
        "binary.yaml": bytes(range(256)),
        "book.xlsx": b"PK\x03\x04" + bytes(26) + b"[Content_Types].xml" + bytes(100),
    }
    Path("recipes").mkdir()
    Path("folder").mkdir()
    for name, content in (files | {f"{name}.yaml": text.encode() for name, text in YAML.items()}).items():
        Path(name).write_bytes(content)


def write_runs() -> None:
    """Untrained runs of every kind, and damaged ones."""
    tokenizer = train_tokenizer(ENGLISH + CHINESE, Choice("bpe"), 300)
    model = MODEL | {"vocab_size": tokenizer.vocab_size}
    kinds: dict[str, dict[str, Any]] = {
        "mt": {},
        "lm": {"kind": "decoder"},
        "cls": {"kind": "encoder", "labels": ("no", "yes"), "lm_head": False},
        "enc": {"kind": "encoder"},
    }
    for name, keys in kinds.items():
        recipe = load_recipe("mine.yaml") if name == "mt" else None
        run = Run(build(ModelConfig(**model, **keys)), tokenizer, GenerationConfig(beam_size=1), recipe)
        run.save(f"runs/{name}")
    for name in ("noweights", "cut", "badconfig", "notokenizer"):
        shutil.copytree("runs/mt", f"runs/{name}")
    Path("runs/noweights/model.safetensors").unlink()
    Path("runs/notokenizer/tokenizer.json").unlink()
    Path("runs/cut/model.safetensors").write_bytes(b"\xff" * 100)
    Path("runs/badconfig/config.json").write_text("{")
    Path("runs/begun/checkpoints/step-2").mkdir(parents=True)
    Path("runs/begun/recipe.yaml").write_text(RECIPE)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("newcomer")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        write_texts()
        write_runs()
    return place


@pytest.fixture(autouse=True)
def at_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


def read_table() -> list[tuple[str, str]]:
    """The commands and their answers, parted by blank lines."""
    table = Path(__file__).with_name("mistakes.txt").read_text(encoding="utf-8")
    entries = [entry.partition("\n") for entry in table.strip().split("\n\n")]
    return [(typed.removeprefix("$ polyhead").strip(), answer) for typed, _, answer in entries]


TABLE = read_table()


@pytest.mark.parametrize(("typed", "answer"), TABLE, ids=[typed for typed, _ in TABLE])
def test_a_mistake_is_answered_by_what_is_wrong_and_what_to_type(
    typed: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(shlex.split(typed))
    lines = capsys.readouterr().err.splitlines()
    said = [line.removeprefix("polyhead: ") for line in lines if line.startswith("polyhead: ")]
    assert (code, "\n".join(said)) == (2, answer)


def test_the_table_has_mistakes_of_every_verb_and_no_command_twice() -> None:
    typed = [command for command, _ in TABLE]
    assert len({*typed}) == len(typed) >= 74
    assert VERBS.keys() <= {command.split(" ")[0] for command in typed}


def test_no_answer_is_long_or_calls_it_a_defect() -> None:
    for typed, answer in TABLE:
        assert len(answer.splitlines()) <= 2, typed
        assert not any(sign in answer for sign in ("Traceback", "unexpected Error", "defect", "Errno")), typed


def test_a_port_in_use_is_answered_with_the_way_on(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "runs/lm", "--port", str(port)]) == 2
    answer = f"polyhead: port {port} is in use; choose another one, or 0 for any free port\n"
    assert capsys.readouterr().err == answer
