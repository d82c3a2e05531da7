"""Tests of cli/options.py."""

import shutil


def test_missing_file_or_run_names_the_nearest(tiny, source, tmp_path, cli):
    assert cli.error("translate", tiny, source.with_name("inptu.txt")).endswith("did you mean 'input.txt'?")
    message = cli.error("translate", tiny.with_name("tny"), source)
    assert message.endswith(f"did you mean '{tiny}'?")
    message = f"{tmp_path} is not a run directory: it has no config.json"
    assert cli.error("translate", tmp_path) == f"{message}; polyhead train creates runs"
    for name in ("second", "first"):
        shutil.copytree(tiny, tmp_path / name)
    expected = f"{message}; subdirectories that have one: first, second"
    assert cli.error("translate", tmp_path) == expected
