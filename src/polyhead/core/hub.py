"""Downloads from the Hugging Face hub with huggingface_hub: its cache, tokens, HF_HUB_OFFLINE and HF_HOME.

No downloaded code is run.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from polyhead.core.errors import UserError, did_you_mean, prefix_errors

REPO_NAME = r"[\w][\w.-]*/[\w][\w.-]*"
HUB_PREFIX = "hf://"
# the branch that the hub creates for its Parquet conversion, refs/convert/..., has slashes in its name
_DATASET_FILES = re.compile(rf"hf://datasets/({REPO_NAME})(?:@(refs/convert/[\w.-]+|[^/@]+))?/(.+)")
_MAX_SHOWN = 8  # file names listed in the error for an unknown file


def download_snapshot(
    name: str, patterns: Sequence[str], *, dataset: bool = False, revision: str | None = None
) -> Path:
    """The cache directory of a repository, with the files that match ``patterns``, downloaded if missing."""
    from huggingface_hub import snapshot_download

    kind = "dataset" if dataset else "model"
    try:
        return Path(snapshot_download(name, repo_type=kind, revision=revision, allow_patterns=list(patterns)))
    except Exception as error:  # raised by huggingface_hub or by its HTTP library
        raise UserError(_format_hub_error(error)) from None


def download_dataset_files(name: str) -> list[Path]:
    """The files of ``hf://datasets/OWNER/NAME/PATH``, in order.

    PATH may be a pattern, NAME may end with ``@REVISION``.
    """
    match = _DATASET_FILES.fullmatch(name)
    if match is None or not {"", ".", ".."}.isdisjoint(match[3].split("/")):
        raise UserError(
            f"{name!r} is not a file of a dataset: expected hf://datasets/OWNER/NAME/PATH; PATH may be a "
            "pattern, e.g. data/train-*.parquet"
        )
    owner, revision, path = match.groups()
    with prefix_errors(f"the dataset {owner!r} cannot be downloaded from the hub"):
        # on the hub, ** matches at least one folder
        patterns = dict.fromkeys([path, path.replace("**/", "")])
        folder = download_snapshot(owner, [*patterns], dataset=True, revision=revision)
    names = glob.glob(path, root_dir=folder, recursive=True)
    paths = sorted(file for file in (folder / name for name in names) if file.is_file())
    if not paths:
        available = _list_dataset_files(owner, revision) or [
            str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()
        ]
        remainder = f" and {len(available) - _MAX_SHOWN} more" if len(available) > _MAX_SHOWN else ""
        hint = did_you_mean(path, available) or ";"
        raise UserError(
            f"the dataset {owner!r} has no file {path!r}{hint} there: "
            f"{', '.join(sorted(available)[:_MAX_SHOWN]) or 'nothing'}{remainder}"
        )
    return paths


def _list_dataset_files(repo_id: str, revision: str | None) -> list[str]:
    """All files of a data set; empty if the hub cannot be reached."""
    from huggingface_hub import HfApi

    with suppress(Exception):
        return list(HfApi().list_repo_files(repo_id, repo_type="dataset", revision=revision))
    return []


def _format_hub_error(error: Exception) -> str:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return "request access on its page; then set your token with `hf auth login` or HF_TOKEN"
    if isinstance(error, RepositoryNotFoundError):
        return "it does not exist, or it is private and requires your token (`hf auth login` or HF_TOKEN)"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set, and the cache does not have all of it"
    return (str(error) or type(error).__name__).splitlines()[0]
