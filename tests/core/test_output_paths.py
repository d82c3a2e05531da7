import os
from pathlib import Path

import pytest

from polyhead.core.errors import UserError
from polyhead.core.output_paths import (
    check_new_directory,
    check_output_dir,
    check_output_file,
    ensure_parent,
    run_artifacts,
    write_lines,
)

INPUT = "is an input and would be overwritten; choose another file"


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "text.txt").write_text("a")
    (tmp_path / "folder").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/model.safetensors").write_text("w")
    (tmp_path / "full/draw.html").write_text("p")
    return tmp_path


def test_output_file_may_be_new_or_replace_pages(directory):
    for name in ("new.txt", "text.txt", "a/b/new.txt"):
        assert check_output_file(directory / name) == directory / name
    assert not (directory / "a").exists()
    ensure_parent(directory / "a/b/new.txt").write_text("x")
    assert (directory / "a/b/new.txt").read_text() == "x"
    run_dir = directory / "full"
    for name in ("draw.html", "test.out", "vectors.npy"):
        (run_dir / name).write_text("x")
        assert check_output_file(run_dir / name, inputs=run_artifacts(run_dir)) == run_dir / name
    names = ["model.safetensors", "config.json", "recipe.yaml", "metrics.jsonl", "README.md", "vocab.txt"]
    for name in [*names, "source.spm"]:
        (run_dir / name).write_text("x")
        with pytest.raises(UserError, match="would be overwritten"):
            check_output_file(run_dir / name, inputs=run_artifacts(run_dir))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "{0}/folder is a directory; expected a file in it"),
        ("text.txt", f"{{0}}/text.txt {INPUT}"),
        ("folder/../text.txt", f"{{0}}/folder/../text.txt {INPUT}"),
        ("text.txt/out", "{0}/text.txt/out: {0}/text.txt is a file, not a directory"),
        ("text.txt/a/b", "{0}/text.txt/a/b: {0}/text.txt is a file, not a directory"),
    ],
)
def test_directory_and_input_are_no_output_file(directory, name, message):
    with pytest.raises(UserError) as error:
        check_output_file(directory / name, "--output", [directory / "text.txt", "-", "no such file"])
    assert str(error.value) == f"--output {message.format(directory)}"


def test_output_without_permission_is_refused(directory, monkeypatch):
    def access(path, mode):
        return path.stat().st_mode >> 6 & mode == mode  # of an owner; root may write everywhere

    monkeypatch.setattr(os, "access", access)
    (directory / "folder").chmod(0o500)
    (directory / "full/draw.html").chmod(0o600)
    (directory / "full").chmod(0o500)
    (directory / "text.txt").chmod(0o400)
    for name, message in (
        ("folder/new.txt", "no permission to write to"),
        ("full/draw.html", "no permission to write to"),  # the new file is written next to the old one
        ("text.txt", "is not writable"),
    ):
        with pytest.raises(UserError, match=message):
            check_output_file(directory / name)


def test_output_directory_may_exist_or_must_be_empty(directory):
    for name in ("folder", "full", "new/deeper"):
        assert check_output_dir(directory / name) == directory / name
    for name in ("folder", "new"):
        assert check_new_directory(directory / name, "the run") == directory / name
    for check, message in (
        (lambda: check_output_dir(directory / "text.txt"), "is a file; give a directory"),
        (lambda: check_output_dir(directory / "text.txt/a"), "is a file, not a dir"),
        (lambda: check_new_directory(directory / "full", "the run"), "full is not empty; choose another dir"),
        (lambda: check_new_directory(directory / "text.txt", "a run"), "is a file; choose .* for a run"),
    ):
        with pytest.raises(UserError, match=message):
            check()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_lines_are_written_and_full_disk_is_named(tmp_path):
    write_lines(tmp_path / "new" / "out.txt", iter(["é", "", "b"]))
    assert (tmp_path / "new" / "out.txt").read_bytes() == "é\n\nb\n".encode()
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_lines(Path("/dev/full"), ["a"])
