"""Where something may be written: asked before the work, so that nobody waits for hours to read that it has no place."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from polyhead.errors import UserError
from polyhead.files import named, replace_file


def file_place(path: Path, option: str = "--out", inputs: Iterable[str | Path] = ()) -> Path:
    """A file may be written there. Its directory need not be there yet (``with_directory``).

    A UserError says that it is a directory, that it is one of the ``inputs``, which would be lost, or that no file can be
    made there.
    """
    if path.is_dir():
        raise UserError(f"{option} {path} is a directory; name a file in it".lstrip())
    if path.exists() and any(Path(one).exists() and path.samefile(one) for one in inputs):
        raise UserError(f"{option} {path} is what is read here, and would be written over; name another file")
    _check_above(path, option)
    if path.exists() and not os.access(path, os.W_OK):
        raise UserError(f"{option} {path} may not be written")
    return path


def nearest_path(path: Path, pattern: str, folders: Iterable[Path] = ()) -> str:
    """``; did you mean 'recipes/x.yaml'?``: what is called like a path that is not there, in its folder or in others.

    A file of the same name, or of the same but for its end, is nearer than one of a similar name.
    """
    there = [folder for folder in (path.parent, *folders) if folder.is_dir()]
    found = [one for folder in there for one in sorted(folder.glob(pattern))]
    near = get_close_matches(path.stem.lower(), [one.stem.lower() for one in found], n=1)
    alike = [one for one in found if path.name in (one.name, one.stem)]
    alike = alike or [one for one in found if one.stem.lower() in near]
    return f"; did you mean {str(alike[0])!r}?" if alike else ""


OWN = (".json", ".jsonl", ".safetensors", ".yaml", ".md", ".lock", ".model", ".spm")
NAMED = ("vocab.txt", "merges.txt")


def own_files(directory: str | Path) -> list[Path]:
    """The files of a run, or of a published checkpoint; pages and outputs that were put there may be written again."""
    return [one for one in Path(directory).glob("*") if one.suffix in OWN or one.name in NAMED]


def with_directory(path: Path) -> Path:
    """The same path, with its directory made: called when it is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """A file with these lines, whole or not at all."""
    put(path, "".join(f"{line}\n" for line in lines).encode())


def put(path: Path, content: bytes) -> None:
    """A file with this content, whole or not at all; its directory is made, and an OSError names it, also where the disk is full.

    A link stays one, and a device or a pipe takes the content as it comes.
    """
    with named(path):
        if with_directory(path).exists() and not path.is_file():
            path.write_bytes(content)
        else:
            replace_file(path.resolve(), content)


def directory_place(path: Path) -> Path:
    """Files may be written into this directory, which need not be there yet."""
    if path.exists() and not path.is_dir():
        raise UserError(f"--out {path} is a file; give a directory")
    _check_above(path / "any", "--out")
    return path


def new_directory(path: Path, what: str) -> Path:
    """A directory may be made there: nothing is there, or an empty one. ``what`` will stand there: "the new run"."""
    if path.is_file():
        raise UserError(f"{path} is a file; choose another place for {what}, a directory")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} is not empty; choose another place for {what}")
    _check_above(path, "")
    return path


def _check_above(path: Path, option: str) -> None:
    """The nearest thing above that is there is a directory in which something may be made, also what takes a file's place."""
    above = next(one for one in path.resolve().parents if one.exists())
    if not above.is_dir():
        raise UserError(f"{option} {path}: {above} is a file, no directory".lstrip())
    if (path.is_file() or not path.exists()) and not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"{option} {path}: nothing may be written in {above}".lstrip())
