"""Tests of cli/export.py and import_.py on a directory that is not empty; `mistakes.txt` has the messages."""

import shutil

import pytest


@pytest.mark.parametrize("verb", ["import", "export"])
def test_existing_run_is_not_overwritten(verb, tiny, tmp_path, cli):
    shutil.copytree(tiny, tmp_path / "run")
    message = cli.error(verb, tmp_path / "run", tmp_path / "run")
    assert "is not empty; choose another directory" in message
