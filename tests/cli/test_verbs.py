"""Tests of cli/verbs.py."""

from __future__ import annotations

from importlib import import_module

import pytest

from polyhead.cli import main
from polyhead.cli.verbs import VERBS


@pytest.mark.parametrize("typed", [[], ["-h"], ["--help"], ["help"]])
def test_help_lists_every_verb(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {verb} " in out for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_all_its_options(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: polyhead {verb} ")
    said = import_module(f"polyhead.cli.{VERBS[verb][0]}").run.__doc__.splitlines()[0]
    assert said in " ".join(out.split())
