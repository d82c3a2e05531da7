"""Tests of cli/experiments.py."""

from __future__ import annotations

from tests.lab.run_helpers import toy as toy

from polyhead.cli import main
from polyhead.lab.registry import EXPERIMENTS


def test_without_a_name_they_are_listed_a_line_each(capsys):
    assert main(["experiments"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == EXPERIMENTS.names()
    assert all(len(line.split()) > 5 and len(line) < 120 for line in lines)


def test_an_unknown_name_is_answered_with_the_nearest(capsys):
    assert main(["experiments", "prenrom"]) == 2
    err = capsys.readouterr().err
    assert "did you mean 'prenorm'?" in err
    assert "all, " in err


def test_a_place_that_is_a_file_is_a_mistake(toy, tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    assert main(["experiments", "toy", "--out", str(tmp_path / "taken")]) == 2
    assert "is a file" in capsys.readouterr().err
    assert not toy  # and was found before anything was measured
