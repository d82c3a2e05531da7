import re

import pytest

from polyhead.config.data_config import DataConfig
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.estimate.data_sample import find_missing_files

CONVERTED_REVISION = "refs/convert/parquet"
DATASET = "hf://datasets/owner/small"


def make_data(root, *train):
    return DataConfig(root=root, train=list(train), valid_fraction=0.1)


def train_paths(root, *names):
    return make_data(root, *names).split_paths("train")


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
    assert [str(path.relative_to(tmp_path)) for path in train_paths(tmp_path, *names)] == expected
    message = r"^data\.train: no file 'b/4\*\.txt' in .*; did you mean 'b/2\.txt'\?$"
    with pytest.raises(UserError, match=message):
        train_paths(tmp_path, "b/4*.txt")


def test_root_may_have_characters_of_patterns(tmp_path):
    root = tmp_path / "a[b]*"
    root.mkdir()
    (root / "1.txt").touch()
    assert train_paths(root, "*.txt") == [root / "1.txt"]


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
    assert [path.read_text().strip() for path in train_paths(cache, DATASET + name)] == expected


FORMAT = "expected hf://datasets/OWNER/NAME/PATH"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{DATASET}/data/trian-0.tsv", "dataset 'owner/small' has no file 'data/trian-0.tsv'; did you"),
        ("hf://datasets/owner/large/a.tsv", "dataset 'owner/large' cannot be downloaded from the hub:"),
        ("hf://datasets/small/a.tsv", FORMAT),
        (f"{DATASET}/../../../x", FORMAT),
        (f"{DATASET}//data/test.tsv", FORMAT),
        (f"{DATASET}/data/", FORMAT),
        (f"{DATASET}/.", FORMAT),
        ("hf://owner/small/a.tsv", FORMAT),
    ],
)
def test_missing_or_invalid_dataset_file_is_refused(name, message, cache):
    with pytest.raises(UserError, match=f"^data\\.train: .*{re.escape(message)}"):
        train_paths(cache, name)


def test_only_local_files_are_missing_for_an_estimate(cache):
    names = ["hf://datasets/owner/large/a.txt", "here-*.txt", "gone-*.txt"]
    (cache / "here-1.txt").touch()
    data = make_data(cache, *names).model_dump()
    recipe = Recipe.model_validate({"task": "language-model", "data": data, "train": {"steps": 1}})
    assert find_missing_files(recipe) == [str(cache / "gone-*.txt")]
