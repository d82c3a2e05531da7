import gzip
from pathlib import Path

import pytest
from tests.cli.swapped_sides_helpers import recipe_of
from tests.cli.swapped_sides_helpers import workdir as workdir

from polyhead.core.errors import UserError
from polyhead.train.tasks.swapped_sides import check_sides
from polyhead.train.tasks.translation import TranslationTask, open_split_corpus

pytestmark = pytest.mark.usefixtures("workdir")
EN_DE = {"train": ["train.en", "train.de"], "valid": ["valid.en", "valid.de"]}
TABLES = {"train": ["train.tsv"], "valid": ["valid.tsv"]}
SWAPPED_MESSAGE = (
    "data.{}: the sides are swapped: {} is the source and has the language of the training target {}, "
    "{} that of the training source {}"
)
ADVICE = "; write data.{}=[{},{}]"


@pytest.mark.parametrize(
    ("data", "split", "source", "train_target", "target", "train_source"),
    [
        ({}, "valid", "valid.zh", "train.zh (Han script)", "valid.en", "train.en (Latin script)"),
        ({}, "test", "test.zh", "train.zh (Han script)", "test.en", "train.en (Latin script)"),
        (EN_DE, "valid", "valid.de", "train.de (frequent words)", "valid.en", "train.en (frequent words)"),
        (TABLES, "valid", "column 0", "column 1 (Han script)", "column 1", "column 0 (Latin script)"),
    ],
)
def test_swapped_sides_are_refused(data, split, source, train_target, target, train_source):
    message = SWAPPED_MESSAGE.format(split, source, train_target, target, train_source)
    if data is not TABLES:
        data, message = data | {split: [source, target]}, message + ADVICE.format(split, target, source)
    with pytest.raises(UserError) as error:
        TranslationTask.check(recipe_of(**data))
    assert str(error.value) == message


def test_swapped_languages_are_refused():
    message = (
        "data.source_lang is zh and data.target_lang is en, but train.en, the source, is in Latin script "
    )
    message += "and train.zh in Han script: swap the two codes, or the sides in data.train"
    with pytest.raises(UserError, match=message):
        TranslationTask.check(recipe_of(source_lang="zh", target_lang="en"))


@pytest.mark.parametrize(
    ("train", "finding"),
    [
        (["train.en", "train.de"], "train.en, the source, has the words of en and train.de those of de"),
        (["a.txt", "b.txt"], "a.txt, the source, has the words of en and b.txt those of de"),
        (["short.en", "short.de"], "short.en, the source, is named en and short.de de"),
    ],
)
def test_swapped_languages_of_one_script_are_refused(train, finding, workdir):
    for name, code in (("a", "en"), ("b", "de")):
        (workdir / f"{name}.txt").write_text((workdir / f"train.{code}").read_text("utf-8"), "utf-8")
        (workdir / f"short.{code}").write_text("Berlin 1\nMain 2\n")
    codes = {"source_lang": "de", "target_lang": "en"}
    message = f"data.source_lang is de and data.target_lang is en, but {finding}: swap the two codes"
    with pytest.raises(UserError, match=message):
        TranslationTask.check(recipe_of(train=train, **codes))
    TranslationTask.check(recipe_of(train=train[::-1], **codes))


@pytest.mark.parametrize("data", [{"train": ["train.en", "./train.en"]}, {"valid": ["valid.zh"] * 2}])
def test_one_file_on_both_sides_is_refused(data):
    ((split, (name, _)),) = data.items()
    Path("copy.gz").write_bytes(gzip.compress(Path("train.en").read_bytes()))
    with pytest.raises(UserError, match=rf"data.{split}: train.en \(the text of copy.gz\) is both source"):
        TranslationTask.check(recipe_of(**{split: ["train.en", "copy.gz"]}))
    with pytest.raises(UserError, match=f"data.{split}: {name} is both source and target"):
        TranslationTask.check(recipe_of(**data))


@pytest.mark.parametrize(
    ("data", "warning"),
    [
        ({}, ""),
        (EN_DE | {"source_lang": "en", "target_lang": "de"}, ""),
        ({"source_lang": "en", "target_lang": "zh-CN"}, ""),
        ({"source_lang": "src", "target_lang": "tgt"}, ""),
        (
            {"valid": ["valid.zh", "test.zh"]},
            "data.valid: its source, valid.zh, has the language of the training target (Han script); is it "
            "the right file?",
        ),
        (
            EN_DE | {"source_lang": "zh"},
            "data.source_lang is zh, which is written in Han script; train.en is in Latin script",
        ),
    ],
)
def test_uncertain_sides_are_at_most_a_warning(data, warning):
    recipe = recipe_of(**data)
    splits = {split: open_split_corpus(recipe, split) for split in recipe.data.splits}
    assert check_sides(recipe.data, splits) == ([warning] if warning else [])
