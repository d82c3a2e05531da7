import json
import os
import subprocess

import numpy as np
import pytest
from tests.data.stores.conftest import SOURCES

from polyhead import Choice
from polyhead.core.errors import UserError
from polyhead.data.stores import build_cache
from polyhead.tokenizers.train_tokenizer import train_tokenizer


@pytest.fixture
def builds(monkeypatch):
    directories, build = [], build_cache._build

    def note_directory(directory, *rest):
        directories.append(directory)
        return build(directory, *rest)

    monkeypatch.setattr(build_cache, "_build", note_directory)
    return directories


def test_only_changed_input_builds_another_store(corpus, open_store, builds, tokenizer):
    first, second = (open_store(corpus) for _ in range(2))
    assert len(builds) == 1 and first.report == second.report
    assert np.array_equal(first.source_ids, second.source_ids) and isinstance(second.source_ids, np.memmap)
    open_store(corpus, max_len=21)
    open_store(corpus, tokenizer=train_tokenizer(["b"], Choice("byte", lowercase=True), 261))
    corpus.files[0].write_text("\n".join([*SOURCES[:4], "5"]) + "\n")
    changed = open_store(corpus)
    assert len(set(builds)) == 4
    assert tokenizer.decode([changed.source_tokens(2)]) == ["5"]
    corpus.files[0].write_text("1\n2\n")
    with pytest.raises(UserError, match="from line 3 on"):
        open_store(corpus)
    assert {path.name for path in builds[0].parent.iterdir()} == {path.name for path in builds[:4]}


def flip_bit(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def replace_report(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"report": {"nothing": 1}}))


DAMAGE = {
    "flipped bit": lambda d: flip_bit(d / "source.npy"),
    "truncated file": lambda d: os.truncate(d / "target.npy", 130),
    "missing file": lambda d: (d / "lines.npy").unlink(),
    "missing manifest": lambda d: (d / "store.json").unlink(),
    "truncated manifest": lambda d: os.truncate(d / "store.json", 40),
    "manifest of another type": lambda d: (d / "store.json").write_text("[1]"),
    "report of another type": lambda d: replace_report(d / "store.json"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_store_is_rebuilt(damage, corpus, open_store, builds, tokenizer):
    open_store(corpus)
    DAMAGE[damage](builds[0])
    store = open_store(corpus)
    assert len(builds) == 2
    assert tokenizer.decode([store.source_tokens(i) for i in range(3)]) == ["one", "three 你好", "five"]


def test_leftovers_of_dead_processes_are_removed(corpus, open_store, builds):
    open_store(corpus)
    (builds[0] / "store.json").unlink()
    process = subprocess.Popen(["true"])
    process.wait()
    prefix = f".{builds[0].name}.tmp-"
    leftovers = [builds[0].with_name(f"{prefix}{pid}") for pid in (process.pid, os.getppid())]
    for directory in leftovers:
        directory.mkdir()
    open_store(corpus)
    assert [directory.exists() for directory in leftovers] == [False, True]  # the parent is alive
