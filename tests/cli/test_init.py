"""Tests of cli/init.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.autoconfig.propose_recipe_helpers import plain as plain

from polyhead.cli import main

WORDS = "the cat a dog sees bites and loves no bird that sings here".split()  # noqa: SIM905

DRAWN = random.Random(1)

SENTENCES = [" ".join(DRAWN.choices(WORDS, k=6)) for _ in range(60)]


def test_what_is_given_stands_in_the_recipe_and_mistakes_are_told_before_anything_is_written(
    plain: Callable[..., list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    plain(a_txt=SENTENCES)
    assert (
        main(["init", "a.txt", "model.position=alibi", "tokenizer.kind=char", "data.document_separator=line"])
        == 0
    )
    told = capsys.readouterr().out
    assert (
        "  position: alibi\n" in told and "  kind: char\n" in told and "  document_separator: line\n" in told
    )
    assert told.startswith("# A language model: 60 documents, 1.6 kB of text (a.txt).\n")
    for typed, message in (
        (["a.txt", "model.positon=rope"], "model.positon: unknown key; did you mean 'position'?"),
        (["b.txt"], "no file 'b.txt' in '.'; did you mean 'a.txt'?"),
        (["task=chat"], "expected training files: polyhead init train.en train.de"),
        (["a.txt", "--output", "a.txt"], "--output a.txt is an input"),
        (["a.txt", "--output", "old.yaml"], "--output old.yaml already exists; choose another file"),
    ):
        Path("old.yaml").write_text("kept")
        assert main(["init", *typed]) == 2
        out, err = capsys.readouterr()
        assert (out, message in err, err.count("\n")) == ("", True, 1), err
    assert Path("old.yaml").read_text() == "kept"


def test_what_is_said_of_a_recipe_can_be_typed(
    plain: Callable[..., list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    plain(one_en=SENTENCES[:1], one_de=SENTENCES[:1])
    assert main(["init", "one.en", "one.de", "--output", "my own.yaml"]) == 0
    assert "train it: polyhead train 'my own.yaml'" in capsys.readouterr().err
    first, *more = Path("my own.yaml").read_text().splitlines()
    assert first == "# A translation model: 1 pair, 0.1 kB of text (one.en, one.de)."
    assert more[0].startswith("# exports: CTranslate2, ONNX; not Hugging Face: position is 'rope'")
    assert more[2] == "# polyhead train 'my own.yaml'"
