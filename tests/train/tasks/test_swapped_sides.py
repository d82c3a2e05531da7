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
    ("data", "warning"),
    [
        ({}, ""),
        (EN_DE | {"source_lang": "en", "target_lang": "de"}, ""),
        ({"train": ["train.en", "train.en"], "valid": ["valid.en", "valid.en"]}, ""),
        ({"source_lang": "en", "target_lang": "zh-CN"}, ""),
        ({"source_lang": "src", "target_lang": "tgt"}, ""),
        (
            {"valid": ["valid.zh", "valid.zh"]},
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
