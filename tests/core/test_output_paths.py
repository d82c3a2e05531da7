"""Where something may be written, and what is said before the work where it may not."""

from __future__ import annotations

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


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("a")
    (tmp_path / "folder").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/model.safetensors").write_text("w")
    (tmp_path / "full/draw.html").write_text("p")
    return tmp_path


def test_a_file_may_be_new_or_written_again_and_its_directory_comes_with_it(place: Path) -> None:
    for name in ("new.txt", "text.txt", "a/b/new.txt"):
        assert check_output_file(place / name) == place / name
    assert not (place / "a").exists()  # asking makes nothing
    ensure_parent(place / "a/b/new.txt").write_text("x")
    assert (place / "a/b/new.txt").read_text() == "x"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("folder", "--output {place}/folder is a directory; expected a file in it"),
        ("text.txt", "--output {place}/text.txt is an input and would be overwritten; choose another file"),
        ("folder/../text.txt", "--output {place}/folder/../text.txt is an input and would be overwritten; "
                               "choose another "
                "file"),
        ("text.txt/out", "--output {place}/text.txt/out: {place}/text.txt is a file, not a directory"),
        ("text.txt/a/b", "--output {place}/text.txt/a/b: {place}/text.txt is a file, not a directory"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_is_refused(place: Path, name: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        check_output_file(place / name, "--output", [place / "text.txt", "-", "no such file"])
    assert str(refused.value) == said.format(place=place)


def test_what_may_not_be_written_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def access(path: Path, mode: int) -> bool:
        return path.stat().st_mode >> 6 & mode == mode  # as an owner who is not root, who may write anywhere

    monkeypatch.setattr(os, "access", access)
    (place / "folder").chmod(0o500)
    with pytest.raises(UserError, match="no permission to write to"):
        check_output_file(place / "folder/new.txt")
    (place / "full/draw.html").chmod(0o600)
    (place / "full").chmod(0o500)
    with pytest.raises(UserError, match="no permission to write to"):  # where what is new is made beside it
        check_output_file(place / "full/draw.html")
    (place / "text.txt").chmod(0o400)
    with pytest.raises(UserError, match="is not writable"):
        check_output_file(place / "text.txt")


def test_a_directory_is_none_that_is_a_file(place: Path) -> None:
    for name in ("folder", "full", "new/deeper"):
        assert check_output_dir(place / name) == place / name
    for name, said in (
        ("text.txt", "is a file; give a directory"),
        ("text.txt/a", "is a file, not a directory"),
    ):
        with pytest.raises(UserError, match=said):
            check_output_dir(place / name)


def test_a_new_directory_holds_nothing_yet(place: Path) -> None:
    for name in ("folder", "new"):
        assert check_new_directory(place / name, "the run") == place / name
    for name, what in {"full": "is not empty; choose", "text.txt": "is a file; choose"}.items():
        with pytest.raises(UserError, match=f"{name} {what} another directory for the run"):
            check_new_directory(place / name, "the run")


def test_pages_of_a_run_may_be_written_again_and_its_weights_may_not(place: Path) -> None:
    run = place / "full"
    for name in ("draw.html", "test.out", "vectors.npy"):
        (run / name).write_text("x")
        assert check_output_file(run / name, inputs=run_artifacts(run)) == run / name
    for name in (
        "model.safetensors",
        "config.json",
        "recipe.yaml",
        "metrics.jsonl",
        "README.md",
        "vocab.txt",
        "source.spm",
    ):
        (run / name).write_text("x")
        with pytest.raises(UserError, match="would be overwritten"):
            check_output_file(run / name, inputs=run_artifacts(run))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_lines_are_written_and_a_full_disk_is_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "new" / "out.txt", iter(["é", "", "b"]))
    assert (tmp_path / "new" / "out.txt").read_bytes() == "é\n\nb\n".encode()
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_lines(Path("/dev/full"), ["a"])
