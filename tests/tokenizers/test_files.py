"""Tests of tokenizers/files.py."""

import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

import tokenizers
from polyhead.core.errors import UserError
from polyhead.tokenizers.files import _MAX_FILE_SIZE
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import models

Trained = Callable[[str], Tokenizer]


def test_what_was_saved_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary of hundreds of thousands of pieces takes seconds each time."""
    scores = [-(i * 0.6180339887498949 % 20.0) for i in range(1, 400)]
    pieces = [("<unk>", 0.0), *((f"p{i}", score) for i, score in enumerate(scores))]
    Tokenizer(tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0)), {}).save(tmp_path)
    read = tokenizers.Tokenizer.from_str
    counted = Mock(wraps=tokenizers.Tokenizer, from_str=Mock(side_effect=read))
    monkeypatch.setattr(tokenizers, "Tokenizer", counted)
    Tokenizer.load(tmp_path, {})
    assert counted.from_str.call_count == 1


def broken_directories(folder: Path) -> dict[str, Callable[[], object]]:
    whole, config = (folder / "tokenizer.json"), (folder / "tokenizer_config.json")
    good = json.loads(config.read_text())

    def oversized() -> None:
        with whole.open("r+b") as file:
            file.truncate(_MAX_FILE_SIZE + 1)

    return {
        "no tokenizer.json": whole.unlink,
        "no tokenizer_config.json": config.unlink,
        "tokenizer.json is not valid JSON": lambda: whole.write_text(whole.read_text()[:1000]),
        "tokenizer.json cannot be read": lambda: whole.write_text("[]"),
        "not UTF-8": lambda: whole.write_bytes(b"\xff\xfe\x00"),
        "the maximum for": oversized,
        "not valid JSON": lambda: config.write_text("{"),
        "nested too deeply": lambda: config.write_text("[" * 100_000),
        "must be a JSON object": lambda: config.write_text("[]"),
        "not in the vocabulary": lambda: config.write_text(json.dumps(good | {"eos_token": "<end>"})),
        "must differ": lambda: config.write_text(json.dumps(good | {"pad_token": "</s>"})),
    }


@pytest.mark.parametrize("said", range(11))
def test_a_damaged_directory_is_refused_in_one_line(said: int, trained: Trained, tmp_path: Path) -> None:
    trained("bpe").save(tmp_path)
    message, damage = list(broken_directories(tmp_path).items())[said]
    damage()
    with pytest.raises(UserError, match=message) as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path / "nowhere")
