"""Tests of cli/verify.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.run.run_helpers import copy as copy
from tests.run.run_helpers import edited
from tests.run.run_helpers import saved as saved

from polyhead.cli import main
from polyhead.core.i18n import set_language


def test_verify_prints_a_line_per_file_and_fails_at_damage(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edited("generation_config.json", beam_size=3)(copy)
    assert main(["verify", str(copy)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ok       manifest.json",
        "ok       config.json",
        "changed  generation_config.json",
        "ok       tokenizer.json",
        "ok       tokenizer_config.json",
        "ok       model.safetensors",
    ]
    (copy / "tokenizer_config.json").unlink()
    (copy / "model.safetensors").write_bytes(b"")
    assert main(["verify", str(copy)]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines()[-2] == "missing  tokenizer_config.json"
    assert out.splitlines()[-1].startswith("damaged  model.safetensors: ")
    assert err == f"polyhead: {copy}: damaged or missing: tokenizer_config.json, model.safetensors\n"


def test_verify_tells_of_a_run_without_digests(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "manifest.json").unlink()
    assert main(["verify", str(copy)]) == 0
    assert capsys.readouterr().out == f"{copy} has no manifest.json: its weights have no digest\n"


def test_verify_in_chinese(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "model.safetensors").write_bytes(b"")
    assert main(["verify", str(copy), "--lang", "zh"]) == 2
    set_language(None)
    out, err = capsys.readouterr()
    assert "完好" in out and "已损坏" in out and "损坏或缺失" in err
