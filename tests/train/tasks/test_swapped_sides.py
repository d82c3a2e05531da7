import pytest
from tests.cli.swapped_sides_helpers import recipe_of
from tests.cli.swapped_sides_helpers import workdir as workdir

from polyhead.core.errors import UserError
from polyhead.train.tasks.swapped_sides import check_sides
from polyhead.train.tasks.translation import TranslationTask, open_split_corpus


@pytest.mark.usefixtures("workdir")
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"valid": ["valid.zh", "valid.en"]},
            "data.valid: the sides are swapped: valid.zh is the source and has the language of the "
            "training target train.zh (Han script), valid.en that of the training source train.en (Latin "
            "script); write data.valid=[valid.en,valid.zh]",
        ),
        (
            {"test": ["test.zh", "test.en"]},
            "data.test: the sides are swapped: test.zh is the source and has the language of the "
            "training target train.zh (Han script), test.en that of the training source train.en (Latin "
            "script); write data.test=[test.en,test.zh]",
        ),
        (
            {"train": ["train.en", "train.de"], "valid": ["valid.de", "valid.en"]},
            "data.valid: the sides are swapped: valid.de is the source and has the language of the "
            "training target train.de (frequent words), valid.en that of the training source train.en "
            "(frequent words); write data.valid=[valid.en,valid.de]",
        ),
        (
            {"train": ["train.tsv"], "valid": ["valid.tsv"]},
            "data.valid: the sides are swapped: column 0 is the source and has the language of the "
            "training target column 1 (Han script), column 1 that of the training source column 0 (Latin "
            "script)",
        ),
        (
            {"source_lang": "zh", "target_lang": "en"},
            "data.source_lang is zh and data.target_lang is en, but train.en, the source, is in Latin "
            "script and train.zh in Han script: swap the two codes, or the sides in data.train",
        ),
    ],
)
def test_swapped_sides_are_refused(data, message):
    with pytest.raises(UserError) as error:
        TranslationTask.check(recipe_of(**data))
    assert str(error.value) == message


@pytest.mark.usefixtures("workdir")
@pytest.mark.parametrize(
    ("data", "warnings"),
    [
        ({}, []),
        (
            {
                "train": ["train.en", "train.de"],
                "valid": ["valid.en", "valid.de"],
                "source_lang": "en",
                "target_lang": "de",
            },
            [],
        ),
        ({"train": ["train.en", "train.en"], "valid": ["valid.en", "valid.en"]}, []),
        ({"source_lang": "en", "target_lang": "zh-CN"}, []),
        ({"source_lang": "src", "target_lang": "tgt"}, []),
        (
            {"valid": ["valid.zh", "valid.zh"]},
            [
                "data.valid: its source, valid.zh, has the language of the training target (Han script); "
                "is it the right file?"
            ],
        ),
        (
            {"train": ["train.en", "train.de"], "valid": ["valid.en", "valid.de"], "source_lang": "zh"},
            ["data.source_lang is zh, which is written in Han script; train.en is in Latin script"],
        ),
    ],
)
def test_uncertain_sides_are_at_most_a_warning(data, warnings):
    recipe = recipe_of(**data)
    splits = {split: open_split_corpus(recipe, split) for split in recipe.data.splits}
    assert check_sides(recipe.data, splits) == warnings
