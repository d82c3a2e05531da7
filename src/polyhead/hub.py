"""What lies on the hub, through huggingface_hub: its cache, its tokens, its HF_HUB_OFFLINE and HF_HOME. No code is run."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from polyhead.errors import UserError, at, nearest

NAME = r"[\w][\w.-]*/[\w][\w.-]*"
PREFIX = "hf://"
# of the branch that the hub writes itself, in Parquet, for any data set the name has strokes in it
FILES = re.compile(rf"hf://datasets/({NAME})(?:@(refs/convert/[\w.-]+|[^/@]+))?/(.+)")
SHOWN = 8  # names of what is there, where something else was asked for


def snapshot(
    name: str, patterns: Sequence[str], *, dataset: bool = False, revision: str | None = None
) -> Path:
    """The directory of a repository in the cache, with the files of these patterns, fetched if they are not there."""
    from huggingface_hub import snapshot_download

    kind = "dataset" if dataset else "model"
    try:
        return Path(snapshot_download(name, repo_type=kind, revision=revision, allow_patterns=list(patterns)))
    except Exception as error:  # of the hub's library, or of the one that it speaks HTTP with
        raise UserError(_why(error)) from None


def files_of(name: str) -> list[Path]:
    """The files that ``hf://datasets/OWNER/NAME/PATH`` stands for, in order; PATH may be a pattern, NAME end with ``@REVISION``."""
    found = FILES.fullmatch(name)
    if found is None or not {"", ".", ".."}.isdisjoint(found[3].split("/")):
        raise UserError(
            f"{name!r} names no file of a data set: wanted hf://datasets/OWNER/NAME/PATH, whose PATH may be a pattern, "
            "data/train-*.parquet"
        )
    owner, revision, path = found.groups()
    with at(f"the data set {owner!r} cannot be had from the hub"):
        # the hub's ** is one folder at least
        asked = dict.fromkeys([path, path.replace("**/", "")])
        folder = snapshot(owner, [*asked], dataset=True, revision=revision)
    names = glob.glob(path, root_dir=folder, recursive=True)
    paths = sorted(file for file in (folder / name for name in names) if file.is_file())
    if not paths:
        there = _names(owner, revision) or [
            str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()
        ]
        more = f" and {len(there) - SHOWN} more" if len(there) > SHOWN else ""
        hint = nearest(path, there) or ";"
        raise UserError(
            f"the data set {owner!r} has no file {path!r}{hint} there: {', '.join(sorted(there)[:SHOWN]) or 'nothing'}{more}"
        )
    return paths


def _names(owner: str, revision: str | None) -> list[str]:
    """All files of a data set, if the hub can be asked."""
    from huggingface_hub import HfApi

    with suppress(Exception):
        return list(HfApi().list_repo_files(owner, repo_type="dataset", revision=revision))
    return []


def _why(error: Exception) -> str:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return "ask for access on its page there; then give your token with `hf auth login` or HF_TOKEN"
    if isinstance(error, RepositoryNotFoundError):
        return (
            "it has none of that name, or a private one, which wants your token (`hf auth login` or HF_TOKEN)"
        )
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set, and it is not in the cache, or not all of it"
    return (str(error) or type(error).__name__).splitlines()[0]
