"""Tests of export/ct2_specs.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.export.conftest import made

import polyhead.export.ctranslate2 as writing
from polyhead.cli import main

LIKE = {
    "position": "rope",
    "norm": "rmsnorm",
    "norm_first": True,
    "feed_forward": "swiglu",
    "scale_embedding": False,
}


def test_what_is_written_is_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the wrong weights written, nothing would be."""
    run, other = made(**LIKE), made(seed=2, **LIKE)
    run.save(tmp_path / "run")
    honest = writing.build_spec
    monkeypatch.setattr(writing, "build_spec", lambda _: honest(other.model))
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "ctranslate2"]) == 2
    assert [x.name for x in tmp_path.iterdir()] == ["run"]
