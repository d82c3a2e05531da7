"""Files by name, by pattern, and of data sets on the hub, as it keeps them in its cache."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polyhead.config.data_config import DataConfig
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.estimate.data_sample import find_missing_files

CONVERTED = "refs/convert/parquet"


def data(root: Path, *train: str) -> DataConfig:
    return DataConfig(root=root, train=list(train), valid_fraction=0.1)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache as huggingface_hub keeps it, with two revisions of one data set; the hub itself is out of
    reach.
    """
    import huggingface_hub.constants as constants

    repository = tmp_path / "hub/datasets--owner--small"
    for revision, digest in (("main", 40 * "a"), (CONVERTED, 40 * "b")):
        for name in ("data/train-0.tsv", "data/train-1.tsv", "data/test.tsv", "README.md"):
            file = repository / "snapshots" / digest / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{revision} {name}\n")
        (repository / "refs" / revision).parent.mkdir(parents=True, exist_ok=True)
        (repository / "refs" / revision).write_text(digest)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def test_a_pattern_stands_for_its_files_in_order(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "b/c/3.txt", "a[1].txt", "a1.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b/0.txt").mkdir()

    def found(*names: str) -> list[str]:
        return [str(path.relative_to(tmp_path)) for path in data(tmp_path, *names).split_paths("train")]

    assert found("b/*.txt") == ["b/1.txt", "b/2.txt"]
    assert found("**/*.txt") == ["a1.txt", "a[1].txt", "b/1.txt", "b/2.txt", "b/c/3.txt"]
    assert found("a[1].txt") == ["a[1].txt"], "a file of just that name comes before a pattern"
    assert found("b/2.txt", "b/1.txt") == ["b/2.txt", "b/1.txt"]
    with pytest.raises(
        UserError, match=r"^data\.train: no file 'b/4\*\.txt' in .*; did you mean 'b/2\.txt'\?$"
    ):
        found("b/4*.txt")


def test_the_folder_of_a_pattern_may_have_any_name(tmp_path: Path) -> None:
    root = tmp_path / "a[b]*"
    root.mkdir()
    (root / "1.txt").touch()
    assert data(root, "*.txt").split_paths("train") == [root / "1.txt"]


def test_files_of_a_data_set_are_those_of_its_revision(cache: Path) -> None:
    def texts(name: str) -> list[str]:
        return [path.read_text().strip() for path in data(cache, name).split_paths("train")]

    stem = "hf://datasets/owner/small"
    assert texts(f"{stem}/data/train-*.tsv") == ["main data/train-0.tsv", "main data/train-1.tsv"]
    assert texts(f"{stem}/data/test.tsv") == ["main data/test.tsv"]
    every = ["main data/test.tsv", "main data/train-0.tsv", "main data/train-1.tsv"]
    for pattern in ("**/*.tsv", "data/**.tsv", "data/**", "**/*t*.tsv"):  # as of files that lie here
        assert texts(f"{stem}/{pattern}") == every
    assert texts(f"{stem}@{CONVERTED}/data/test.tsv") == [f"{CONVERTED} data/test.tsv"]
    assert texts(f"{stem}@{40 * 'b'}/data/test.tsv") == [f"{CONVERTED} data/test.tsv"]


def test_what_is_not_there_is_said(cache: Path) -> None:
    for name, said in (
        ("hf://datasets/owner/small/data/trian-0.tsv", "dataset 'owner/small' has no file "
            "'data/trian-0.tsv'; did you mean "
         "'data/train-0.tsv'? there: README.md, data/test.tsv, data/train-0.tsv, data/train-1.tsv"),
        ("hf://datasets/owner/large/a.tsv", "dataset 'owner/large' cannot be downloaded from the hub: "
                                            "HF_HUB_OFFLINE is set"),
        ("hf://datasets/small/a.tsv", "expected hf://datasets/OWNER/NAME/PATH"),
        ("hf://datasets/owner/small/../../../x", "expected hf://datasets/OWNER/NAME/PATH"),
        ("hf://datasets/owner/small//data/test.tsv", "expected hf://datasets/OWNER/NAME/PATH"),
        ("hf://datasets/owner/small/data/", "expected hf://datasets/OWNER/NAME/PATH"),
        ("hf://datasets/owner/small/.", "expected hf://datasets/OWNER/NAME/PATH"),
        ("hf://owner/small/a.tsv", "expected hf://datasets/OWNER/NAME/PATH"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=f"^data\\.train: .*{re.escape(said)}"):
            data(cache, name).split_paths("train")


def test_a_plan_misses_only_what_would_be_here(cache: Path) -> None:
    names = ["hf://datasets/owner/large/a.txt", "here-*.txt", "gone-*.txt"]
    (cache / "here-1.txt").touch()
    recipe = Recipe.model_validate(
        {"task": "language-model", "data": data(cache, *names).model_dump(), "train": {"steps": 1}}
    )
    assert find_missing_files(recipe) == [str(cache / "gone-*.txt")]
