"""Tests of data/stores/build_cache.py."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.data.readers.parallel_corpus import ParallelFiles, open_corpus
from polyhead.data.stores import build_cache
from polyhead.data.stores.pair_store import PairStore
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

Write = Callable[[str, bytes | str], Path]

SOURCES = ["one", "", "three 你好", "x" * 40, "five"]

TARGETS = ["eins", "zwei", "drei", "vier", "fünf"]


@pytest.fixture
def corpus(write: Write) -> ParallelFiles:
    return open_corpus([write("a.en", "\n".join(SOURCES) + "\n"), write("a.de", "\n".join(TARGETS) + "\n")])


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories built, in order."""
    made: list[Path] = []
    build = build_cache._build
    monkeypatch.setattr(
        build_cache, "_build", lambda directory, *rest: made.append(directory) or build(directory, *rest)
    )
    return made


def test_a_second_opening_makes_nothing(
    corpus: ParallelFiles, tokenizer: Tokenizer, tmp_path: Path, builds: list[Path]
) -> None:
    first, second = (
        PairStore.open_or_build(corpus, tokenizer, tmp_path / "cache", max_len=20) for _ in range(2)
    )
    assert len(builds) == 1
    assert first.report == second.report
    assert np.array_equal(first.source_ids, second.source_ids)
    assert isinstance(second.source_ids, np.memmap)


def test_any_changed_input_makes_another_store(
    corpus: ParallelFiles, tokenizer: Tokenizer, tmp_path: Path, builds: list[Path]
) -> None:
    cache = tmp_path / "cache"
    PairStore.open_or_build(corpus, tokenizer, cache, max_len=20)
    PairStore.open_or_build(corpus, tokenizer, cache, max_len=21)
    PairStore.open_or_build(
        corpus, train_tokenizer(["b"], Choice("byte", lowercase=True), 261), cache, max_len=20
    )
    corpus.files[0].write_text("\n".join([*SOURCES[:4], "5"]) + "\n")
    changed = PairStore.open_or_build(corpus, tokenizer, cache, max_len=20)
    assert len(set(builds)) == 4
    assert tokenizer.decode([changed.source_tokens(2)]) == ["5"]


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped bit": lambda d: _flip(d / "source.npy"),
    "a file cut short": lambda d: os.truncate(d / "target.npy", 130),
    "a file missing": lambda d: (d / "lines.npy").unlink(),
    "no manifest": lambda d: (d / "store.json").unlink(),
    "half a manifest": lambda d: os.truncate(d / "store.json", 40),
    "a manifest of something else": lambda d: (d / "store.json").write_text("[1]"),
    "a report of something else": lambda d: _edit(d / "store.json"),
}


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def _edit(path: Path) -> None:
    body = json.loads(path.read_text())
    path.write_text(json.dumps(body | {"report": {"nothing": 1}}))


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_store_is_made_again(
    damage: str, corpus: ParallelFiles, tokenizer: Tokenizer, tmp_path: Path, builds: list[Path]
) -> None:
    PairStore.open_or_build(corpus, tokenizer, tmp_path / "cache", max_len=20)
    DAMAGE[damage](builds[0])
    store = PairStore.open_or_build(corpus, tokenizer, tmp_path / "cache", max_len=20)
    assert len(builds) == 2
    assert tokenizer.decode([store.source_tokens(i) for i in range(3)]) == ["one", "three 你好", "five"]


def test_a_failed_build_leaves_nothing(write: Write, tokenizer: Tokenizer, tmp_path: Path) -> None:
    corpus = open_corpus([write("a.en", "1\n2\n"), write("a.de", "1\n")])
    with pytest.raises(UserError, match="from line 2 on"):
        PairStore.open_or_build(corpus, tokenizer, tmp_path / "cache", max_len=20)
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_a_killed_build_left_is_removed_and_a_running_one_is_not(
    corpus: ParallelFiles, tokenizer: Tokenizer, tmp_path: Path, builds: list[Path]
) -> None:
    PairStore.open_or_build(corpus, tokenizer, tmp_path / "cache", max_len=20)
    (builds[0] / "store.json").unlink()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead, alive = (builds[0].with_name(f".{builds[0].name}.tmp-{pid}") for pid in (gone.pid, os.getppid()))
    dead.mkdir()
    alive.mkdir()
    PairStore.open_or_build(corpus, tokenizer, tmp_path / "cache", max_len=20)
    assert not dead.exists()
    assert alive.exists()
