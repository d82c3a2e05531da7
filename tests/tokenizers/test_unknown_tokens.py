import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.train.conftest import Notes

import tokenizers
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.core.registry import TASK
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.tokenizers.unknown_tokens import UnknownTokens, count_unknown, count_unknown_ids
from tokenizers import models

TEXTS = ["abcab 狗", "cab ba 猫狗"]


def test_unknown_characters_are_counted():
    tokenizer = train_tokenizer(["abc abc"], Choice("char"), 50)
    n_unknown, n_chars = sum(c not in "abc " for text in TEXTS for c in text), sum(map(len, TEXTS))
    counts = count_unknown(TEXTS, tokenizer)
    assert counts == UnknownTokens(n_unknown, n_chars)
    ids = np.array([i for row in tokenizer.encode(TEXTS) for i in row])
    assert count_unknown_ids(ids, tokenizer) == counts
    assert counts.describe() == "3 of 16 tokens unknown (18.8 %)"
    assert count_unknown(["abc"], tokenizer).describe() == "0 of 3 tokens unknown (0 %)"
    tokenizer = train_tokenizer(["abc abc"] * 9, Choice("unigram", byte_fallback=True), 400)
    assert tokenizer.unknown_id is None and count_unknown(TEXTS, tokenizer).unknown == 0
    inner = tokenizers.Tokenizer(models.BPE({"<end>": 0, "a": 1}, [], unk_token="<end>"))
    assert Tokenizer(inner, {"eos_token": "<end>"}).unknown_id is None
    assert Tokenizer(inner, {"unk_token": "<end>"}).unknown_id == 0


@pytest.mark.parametrize("kind", ["bpe", "byte", "char", "unigram", "wordpiece"])
def test_kinds_with_unknown_tokens(kind):
    tokenizer = train_tokenizer(["abc abc"] * 9, Choice(kind), 400)
    assert tokenizer.unknown_id == (None if kind in ("bpe", "byte") else tokenizer.unk_id)
    assert (count_unknown(TEXTS, tokenizer).unknown > 0) == (tokenizer.unknown_id is not None)


DATA = {"translation": {"train": ["a.src", "a.tgt"]}, "language-model": {"train": ["a.src"]}}
DATA |= {"masked-lm": {"train": ["a.src"], "document_separator": "line"}}
DATA |= {"classification": {"train": ["a.tsv"], "text": "text"}, "chat": {"train": ["a.jsonl"]}}


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"ab{'abc' * (i % 3)} 狗{chr(0x4E00 + i)}" for i in range(40)]
    Path("a.src").write_text("".join(f"{line}\n" for line in lines))
    Path("a.tgt").write_text("".join(f"{line[::-1]}\n" for line in lines))
    rows = "".join(f"{line}\t{'xy'[i % 2]}\n" for i, line in enumerate(lines))
    Path("a.tsv").write_text(f"text\tlabel\n{rows}")
    chats = [[{"role": "user", "content": line}, {"role": "assistant", "content": "ab"}] for line in lines]
    Path("a.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    return tmp_path


@pytest.mark.parametrize("task", DATA)
def test_training_notes_share_of_unknown_tokens(task, workdir):
    data = {**DATA[task], "valid": DATA[task]["train"], "max_len": 64, "root": str(workdir)}
    keys = {"task": task, "data": data, "train": {"steps": 1}, "out": str(workdir / "run")}
    keys |= {"model": {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 64}}
    recipe = Recipe.model_validate(keys | ({"generation": {"chat": "plain"}} if task == "chat" else {}))
    notes, implementation = Notes(), TASK.get(task)
    tokenizer = train_tokenizer(["User: Assistant: abcxy 狗\n"], Choice("char"), 50)
    counts = implementation.open(recipe, tokenizer, notes).train.count_unknown(tokenizer)
    unknown = [len(set(line) - set("abc 狗\n")) for line in Path("a.src").read_text().splitlines()]
    assert counts.unknown == sum(unknown) * (2 if task == "translation" else 1) > 0
    for split in ("train", "valid"):
        (line,) = [note for note in notes.lines if note.startswith(f"{split}: ")]
        assert line.endswith(counts.describe())
    assert sum("the vocabulary does not fit" in note for note in notes.lines) == 2
    texts, notes = list(TASK.get(recipe.task.name).iter_texts(recipe)), Notes()
    implementation.open(recipe, train_tokenizer(texts, Choice("bpe"), 300), notes)
    assert "unknown" not in " ".join(notes.lines)


def test_init_warns_of_unknown_tokens(workdir, capsys):
    command = ["init", "a.src", "tokenizer.kind=char", "data.valid=a.src"]
    assert main([*command, "tokenizer.vocab_size=10"]) == 0
    out, err = capsys.readouterr()
    text = Path("a.src").read_text()
    vocabulary = sorted(set(text), key=lambda c: (-text.count(c), c))[:5]
    unknown = UnknownTokens(sum(c not in vocabulary for c in text), len(text))
    assert f"polyhead: training text: {unknown.describe()}" in err and "does not fit this text" in err
    assert yaml.safe_load(out)["tokenizer"]["vocab_size"] == 10
    larger = "tokenizer.vocab_size=300"
    for options in ([], [larger], ["tokenizer.kind=bpe", larger]):
        assert main([*command, *options]) == 0 and "unknown" not in capsys.readouterr().err
