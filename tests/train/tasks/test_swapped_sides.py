"""Tests of train/tasks/swapped_sides.py."""

from __future__ import annotations

import pytest
from tests.cli.swapped_sides_helpers import place as place
from tests.cli.swapped_sides_helpers import recipe_of

from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.train.tasks.swapped_sides import check_sides
from polyhead.train.tasks.translation import TranslationTask, open_split_corpus


def warnings(recipe: Recipe) -> list[str]:
    return check_sides(recipe.data, {split: open_split_corpus(recipe, split) for split in recipe.data.splits})


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"valid": ["valid.zh", "valid.en"]},
            "data.valid: the sides are swapped: valid.zh is the source and has the language of the training "
            "target train.zh "
            "(Han script), valid.en that of the training source train.en (Latin script); write "
            "data.valid=[valid.en,valid.zh]",
        ),
        (
            {"test": ["test.zh", "test.en"]},
            "data.test: the sides are swapped: test.zh is the source and has the language of the training "
            "target train.zh "
            "(Han script), test.en that of the training source train.en (Latin script); write "
            "data.test=[test.en,test.zh]",
        ),
        (
            {"train": ["train.en", "train.de"], "valid": ["valid.de", "valid.en"]},
            "data.valid: the sides are swapped: valid.de is the source and has the language of the training "
            "target train.de (frequent words), valid.en that of the training source train.en (frequent "
            "words); "
            "write data.valid=[valid.en,valid.de]",
        ),
        (
            {"train": ["train.tsv"], "valid": ["valid.tsv"]},
            "data.valid: the sides are swapped: column 0 is the source and has the language of the training "
            "target column 1 "
            "(Han script), column 1 that of the training source column 0 (Latin script)",
        ),
        (
            {"source_lang": "zh", "target_lang": "en"},
            "data.source_lang is zh and data.target_lang is en, but train.en, the source, is in Latin "
            "script and train.zh in "
            "Han script: swap the two codes, or the sides in data.train",
        ),
    ],
)  # fmt: skip
def test_swapped_sides_are_refused_before_training(data: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as error:
        TranslationTask.check(recipe_of(**data))
    assert str(error.value) == said


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, []),
        ({"train": ["train.en", "train.de"], "valid": ["valid.en", "valid.de"], "source_lang": "en",
            "target_lang": "de"}, []),
        ({"train": ["train.en", "train.en"], "valid": ["valid.en", "valid.en"]}, []),
        ({"source_lang": "en", "target_lang": "zh-CN"}, []),
        ({"source_lang": "src", "target_lang": "tgt"}, []),
        (
            {"valid": ["valid.zh", "valid.zh"]},
            ["data.valid: its source, valid.zh, has the language of the training target (Han script); is it "
             "the right file?"],
        ),
        (
            {"train": ["train.en", "train.de"], "valid": ["valid.en", "valid.de"], "source_lang": "zh"},
            ["data.source_lang is zh, which is written in Han script; train.en is in Latin script"],
        ),
    ],
)  # fmt: skip
def test_what_may_be_meant_is_at_most_a_warning(data: dict[str, object], said: list[str]) -> None:
    assert warnings(recipe_of(**data)) == said
