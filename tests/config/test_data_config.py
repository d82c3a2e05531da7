import re

import pytest

from polyhead.config.data_config import DataConfig
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.estimate.inputs import find_missing_files

CONVERTED_REVISION = "refs/convert/parquet"
DATASET = "hf://datasets/owner/small"
INVALID_NAMES = ["hf://datasets/small/a.tsv", "hf://owner/small/a.tsv"]
INVALID_NAMES += [DATASET + path for path in ("/../../../x", "//data/test.tsv", "/data/", "/.")]


def make_data(root, *train):
    return DataConfig(root=root, train=list(train), valid_fraction=0.1)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    import huggingface_hub.constants as constants

    repository = tmp_path / "hub/datasets--owner--small"
    for revision, digest in (("main", 40 * "a"), (CONVERTED_REVISION, 40 * "b")):
        for name in ("data/train-0.tsv", "data/train-1.tsv", "data/test.tsv", "README.md"):
            path = repository / "snapshots" / digest / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{revision} {name}\n")
        (repository / "refs" / revision).parent.mkdir(parents=True, exist_ok=True)
        (repository / "refs" / revision).write_text(digest)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["b/*.txt"], ["b/1.txt", "b/2.txt"]),
        (["b", "a1.txt"], ["b/1.txt", "b/2.txt", "a1.txt"]),  # of a folder, its text files
        (["**/*.txt"], ["a1.txt", "a[1].txt", "b/1.txt", "b/2.txt", "b/c/3.txt"]),
        (["a[1].txt"], ["a[1].txt"]),  # the name of a file is no pattern
        (["b/2.txt", "b/1.txt"], ["b/2.txt", "b/1.txt"]),
    ],
)
def test_pattern_is_its_sorted_files(names, expected, tmp_path):
    for name in ("b/2.txt", "b/1.txt", "b/c/3.txt", "a[1].txt", "a1.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b/0.txt").mkdir()
    paths = make_data(tmp_path, *names).split_paths("train")
    assert [str(path.relative_to(tmp_path)) for path in paths] == expected
    message = r"^data\.train: no file 'b/4\*\.txt' in .*; did you mean 'b/2\.txt'\?$"
    with pytest.raises(UserError, match=message):
        make_data(tmp_path, "b/4*.txt").split_paths("train")
    root = tmp_path / "a[b]*"  # a root is no pattern
    root.mkdir()
    (root / "1.txt").touch()
    assert make_data(root, "*.txt").split_paths("train") == [root / "1.txt"]


ALL = ["main data/test.tsv", "main data/train-0.tsv", "main data/train-1.tsv"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/data/train-*.tsv", ALL[1:]),
        ("/data/test.tsv", ALL[:1]),
        ("/**/*.tsv", ALL),
        ("/data/**.tsv", ALL),
        ("/data/**", ALL),
        ("/**/*t*.tsv", ALL),
        (f"@{CONVERTED_REVISION}/data/test.tsv", [f"{CONVERTED_REVISION} data/test.tsv"]),
        (f"@{40 * 'b'}/data/test.tsv", [f"{CONVERTED_REVISION} data/test.tsv"]),
    ],
)
def test_dataset_files_are_of_their_revision(name, expected, cache):
    paths = make_data(cache, DATASET + name).split_paths("train")
    assert [path.read_text().strip() for path in paths] == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{DATASET}/data/trian-0.tsv", "dataset 'owner/small' has no file 'data/trian-0.tsv'; did you"),
        ("hf://datasets/owner/large/a.tsv", "dataset 'owner/large' cannot be downloaded from the hub:"),
        *((name, "expected hf://datasets/OWNER/NAME/PATH") for name in INVALID_NAMES),
    ],
)
def test_missing_or_invalid_dataset_file_is_refused(name, message, cache):
    with pytest.raises(UserError, match=f"^data\\.train: .*{re.escape(message)}"):
        make_data(cache, name).split_paths("train")


def test_only_local_files_are_missing_for_an_estimate(cache):
    names = ["hf://datasets/owner/large/a.txt", "here-*.txt", "gone-*.txt"]
    (cache / "here-1.txt").touch()
    data = make_data(cache, *names).model_dump()
    recipe = Recipe.model_validate({"task": "language-model", "data": data, "train": {"steps": 1}})
    assert find_missing_files(recipe) == [str(cache / "gone-*.txt")]
