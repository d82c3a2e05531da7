"""Tests of cli/partial_file.py."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

import polyhead
from polyhead.cli import main
from polyhead.core.errors import UserError

LINES = ["ein hund bellt .", "zwei hunde", "", "hund hund hund", "  ", "a"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "input.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def translated(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[str]:
    assert main(["translate", *map(str, arguments)]) == 0
    out = capsys.readouterr().out
    assert out.endswith("\n") or not out
    return out.removesuffix("\n").split("\n") if out else []


def test_translations_made_before_an_end_are_kept(
    tiny: Path,
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether a person ends it, a line cannot be translated, or the disk is full (here: the largest file
    that may be).
    """
    wanted, out = translated(capsys, tiny, source), tmp_path / "out.txt"
    part, typed = tmp_path / "out.txt.part", ["translate", str(tiny), str(source), "--output", str(out)]
    whole, said = polyhead.run.run.Run.hypotheses, f"the translations of the first 4 texts are in {part}"

    def interrupted(self: polyhead.run.run.Run, texts: list[str], **changes: object) -> object:
        if texts == ["", LINES[-1]]:
            raise KeyboardInterrupt
        return whole(self, texts, **changes)

    monkeypatch.setattr(polyhead.run.run.Run, "hypotheses", interrupted)
    assert main([*typed, "--read-batch", "2"]) == 130
    assert said in capsys.readouterr().err
    assert part.read_text().split("\n") == [*wanted[:4], ""]
    assert not out.exists()
    monkeypatch.setattr(polyhead.run.run.Run, "hypotheses", whole)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (part.stat().st_size + 1, limits[1]))
    try:
        assert main([*typed, "--read-batch", "2"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    err = capsys.readouterr().err
    assert said in err
    assert f"polyhead: {part}: File too large" in err
    assert part.read_text().split("\n") == [*wanted[:4], ""]

    def failing(self: polyhead.run.run.Run, texts: list[str], **changes: object) -> object:
        if LINES[-1] in texts:
            raise UserError("these weights are damaged")
        return whole(self, texts, **changes)

    monkeypatch.setattr(polyhead.run.run.Run, "hypotheses", failing)
    assert main([*typed, "--read-batch", "2"]) == 2
    assert said in capsys.readouterr().err
    source.write_text(LINES[-1] + "\n")
    assert main(typed) == 2
    assert not out.exists()
    assert not part.exists()
