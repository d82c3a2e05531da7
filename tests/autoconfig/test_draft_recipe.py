"""Tests of autoconfig/draft_recipe.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from polyhead.cli import main


@pytest.mark.parametrize("typed", [["a.en", "a.zh"], ["a.zh"]])
def test_a_tokenizer_of_characters_has_room_for_each_character_of_the_text(
    typed, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    ideographs = [chr(0x4E00 + i) for i in range(2500)]
    Path("a.zh").write_text("".join("".join(ideographs[i : i + 25]) + "\n" for i in range(0, 2500, 25)))
    Path("a.en").write_text("abcde\n" * 100)
    given = ["tokenizer.kind=char", f"data.valid=[{','.join(typed)}]"]
    assert main(["init", *typed, *given]) == 0
    characters = set("".join(Path(name).read_text().replace("\n", "") for name in typed))
    proposed = yaml.safe_load(capsys.readouterr().out)["tokenizer"]["vocab_size"]
    assert 0 < proposed - len(characters) <= 6, "the special tokens, and the end of a line"
    assert main(["init", *typed, *given, "tokenizer.vocab_size=700"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["tokenizer"]["vocab_size"] == 700
