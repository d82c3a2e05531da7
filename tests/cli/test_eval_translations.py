"""`polyhead eval` of a translator: what it reads, and what it leaves where it is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyhead.cli import main
from polyhead.cli.measures import translations

PAIRS = [("ein hund bellt .", "a dog barks ."), ("zwei hunde bellen .", "two dogs bark .")]


@pytest.fixture
def sides(tmp_path: Path) -> list[str]:
    for name, side in zip(("de", "en"), zip(*PAIRS, strict=True), strict=True):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in side))
    return [str(tmp_path / "de"), str(tmp_path / "en")]


def test_translations_that_are_made_are_kept_where_a_later_measure_is_interrupted(
    tiny: Path, sides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    assert main(["eval", str(tiny), *sides, "--output", str(tmp_path / "whole")]) == 0
    monkeypatch.setattr(translations, "show_perplexity", interrupted)
    assert main(["eval", str(tiny), *sides, "--output", str(tmp_path / "kept")]) == 130
    assert (tmp_path / "kept").read_bytes() == (tmp_path / "whole").read_bytes()
