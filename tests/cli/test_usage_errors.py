"""Tests of cli/usage_errors.py."""

from polyhead.cli.verbs import VERBS


def test_unknown_verb_names_the_nearest(cli):
    """`mistakes.txt` has the other messages."""
    assert cli.error("trian") == "unknown verb 'trian'; did you mean 'train'?"
    assert cli.error("xyzzy") == f"unknown verb 'xyzzy'; known: {', '.join(VERBS)}"
