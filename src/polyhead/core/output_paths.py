"""Check that output paths are writable before the work starts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from polyhead.core.atomic_io import name_in_oserror, replace_file
from polyhead.core.errors import UserError, find_similar


def check_output_file(path: Path, option: str = "--output", inputs: Iterable[str | Path] = ()) -> Path:
    """Check that a file can be written to ``path``. Its directory need not exist yet (``ensure_parent``).

    A UserError if ``path`` is a directory, is one of the ``inputs`` (or of the texts of such a folder), which
    would be overwritten, or cannot be created.
    """
    if path.is_dir():
        raise UserError(f"{option} {path} is a directory; expected a file in it".lstrip())
    if path.exists() and any(source.exists() and path.samefile(source) for source in expand_folders(inputs)):
        raise UserError(f"{option} {path} is an input and would be overwritten; choose another file")
    _check_parent(path, option)
    if path.exists() and not os.access(path, os.W_OK):
        raise UserError(f"{option} {path} is not writable")
    return path


def expand_folders(paths: Iterable[str | Path]) -> list[Path]:
    """The paths, with its text files in place of a folder that has any."""
    return [file for path in map(Path, paths) for file in list_folder_texts(path) or [path]]


def list_folder_texts(path: Path) -> list[Path]:
    """The text files of a folder, by name; empty for other paths."""
    return sorted(filter(Path.is_file, (*path.glob("*.txt"), *path.glob("*.txt.gz"))))


def did_you_mean_path(
    path: Path, pattern: str = "*", folders: Iterable[Path] = (), root: Path | None = None
) -> str:
    """``; did you mean 'recipes/x.yaml'?``: a name like that of a missing path, in its folder or ``folders``.

    A file of the same name, or the same up to its suffix, is preferred to one of a similar name; it is also
    looked for one folder down. The answer is relative to ``root``.
    """
    directories = [folder for folder in (path.parent, *folders) if folder.is_dir()]
    candidates = [candidate for folder in directories for candidate in sorted(folder.glob(pattern))]
    similar_stem = find_similar(path.stem.lower(), (candidate.stem.lower() for candidate in candidates))
    below = (candidate for folder in directories for candidate in sorted(folder.glob(f"*/{pattern}")))
    named = [c for c in (*candidates, *below) if path.name in (c.name, c.stem)]
    matches = named or [c for c in candidates if c.stem.lower() == similar_stem]
    nearest = find_similar(path.name, (match.name for match in matches))
    matches.sort(key=lambda match: (match.suffix != path.suffix, match.name != nearest))
    return f"; did you mean {str(matches[0].relative_to(root) if root else matches[0])!r}?" if matches else ""


_RUN_SUFFIXES = (".json", ".jsonl", ".safetensors", ".yaml", ".md", ".lock", ".model", ".spm")
_VOCAB_FILES = ("vocab.txt", "merges.txt")


def run_artifacts(directory: str | Path) -> list[Path]:
    """The files of a run or a published checkpoint, which must not be overwritten; no pages or outputs."""
    return [
        file
        for file in Path(directory).glob("*")
        if file.suffix in _RUN_SUFFIXES or file.name in _VOCAB_FILES
    ]


def ensure_parent(path: Path) -> Path:
    """Create the directory of ``path`` and return ``path``; called just before writing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a file atomically."""
    write_atomic(path, "".join(f"{line}\n" for line in lines).encode())


def write_atomic(path: Path, content: bytes) -> None:
    """Write ``content`` to a file atomically, creating its directory.

    An OSError names the path, also on a full disk. A symlink stays a symlink; devices and pipes are written
    directly.
    """
    with name_in_oserror(path):
        if ensure_parent(path).exists() and not path.is_file():
            path.write_bytes(content)
        else:
            replace_file(path.resolve(), content)


def check_output_dir(path: Path, option: str = "--output") -> Path:
    """Check that files can be written into this directory, which need not exist yet."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{option} {path} is a file; give a directory")
    _check_parent(path / "any", option)
    return path


def check_new_directory(path: Path, purpose: str) -> Path:
    """Check that a directory can be created: the path does not exist or is an empty directory.

    ``purpose`` names what will be written there, such as "the new run".
    """
    if path.is_file():
        raise UserError(f"{path} is a file; choose another directory for {purpose}")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} is not empty; choose another directory for {purpose}")
    _check_parent(path, "")
    return path


def _check_parent(path: Path, option: str) -> None:
    """Check that the nearest existing parent is a writable directory, also for a file to be replaced."""
    existing_parent = next(parent for parent in path.resolve().parents if parent.exists())
    if not existing_parent.is_dir():
        raise UserError(f"{option} {path}: {existing_parent} is a file, not a directory".lstrip())
    if (path.is_file() or not path.exists()) and not os.access(existing_parent, os.W_OK | os.X_OK):
        raise UserError(f"{option} {path}: no permission to write to {existing_parent}".lstrip())
