"""Tests of cli/import_.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.hf.conftest import gpt2 as gpt2
from tests.hf.load_helpers import pickled

import polyhead as ph
from polyhead.cli import main


def test_the_verb_says_it_in_one_line_too(
    gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pickled(gpt2)
    assert main(["import", str(gpt2), str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("polyhead: ")
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_an_imported_run_without_roles_is_read_again(gpt2: Path, tmp_path: Path) -> None:
    (gpt2 / "tokenizer_config.json").write_text("{}")
    assert main(["import", str(gpt2), str(tmp_path / "run")]) == 0
    again = ph.load(tmp_path / "run")
    assert again.tokenizer.role_ids == {"bos_token": 1, "eos_token": 2}
    described = json.loads((tmp_path / "run/config.json").read_text())
    assert "pad_token_id" not in described
    assert (described["eos_token_id"], described["decoder_start_token_id"]) == (2, 1)
