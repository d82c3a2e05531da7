"""Files of the wrong side are reported by train, eval, translate and score; files of the right one are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.data_config import DataConfig
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelSpec
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.errors import UserError
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.tasks.swapped_sides import check_sides
from polyhead.train.tasks.translation import TranslationTask, open_split_corpus

ENGLISH = ["a dog is in the house and it sleeps", "the cat and the man are in the street", "two men see the dog that barks at the cat"]  # fmt: skip
GERMAN = ["ein Hund ist in dem Haus und er schläft", "die Katze und der Mann sind auf der Straße", "zwei Männer sehen den Hund, der die Katze anbellt"]  # fmt: skip
CHINESE = ["一只狗在房子里睡觉", "猫和男人在街上", "两个男人看见了对着猫叫的狗"]
TEXTS = {"en": ENGLISH, "de": GERMAN, "zh": CHINESE}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for split in ("train", "valid", "test"):
        for code, lines in TEXTS.items():
            repeated = lines * (20 if split == "train" else 2)
            (tmp_path / f"{split}.{code}").write_text("\n".join(repeated) + "\n", encoding="utf-8")
    rows = [f"{one}\t{other}" for one, other in zip(ENGLISH * 9, CHINESE * 9, strict=True)]
    (tmp_path / "train.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    turned = ["\t".join(reversed(row.split("\t"))) for row in rows]
    (tmp_path / "valid.tsv").write_text("\n".join(turned) + "\n", encoding="utf-8")
    return tmp_path


def recipe_of(**data: object) -> Recipe:
    section = {"train": ["train.en", "train.zh"], "valid": ["valid.en", "valid.zh"]} | data
    return Recipe(data=DataConfig.model_validate(section), train=TrainConfig(steps=1), out=Path("runs/x"))


def warnings(recipe: Recipe) -> list[str]:
    return check_sides(recipe.data, {split: open_split_corpus(recipe, split) for split in recipe.data.splits})


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"valid": ["valid.zh", "valid.en"]},
            "data.valid: the sides are swapped: valid.zh is the source and has the language of the training target train.zh "
            "(Han script), valid.en that of the training source train.en (Latin script); write data.valid=[valid.en,valid.zh]",
        ),
        (
            {"test": ["test.zh", "test.en"]},
            "data.test: the sides are swapped: test.zh is the source and has the language of the training target train.zh "
            "(Han script), test.en that of the training source train.en (Latin script); write data.test=[test.en,test.zh]",
        ),
        (
            {"train": ["train.en", "train.de"], "valid": ["valid.de", "valid.en"]},
            "data.valid: the sides are swapped: valid.de is the source and has the language of the training target train.de "
            "(frequent words), valid.en that of the training source train.en (frequent words); "
            "write data.valid=[valid.en,valid.de]",
        ),
        (
            {"train": ["train.tsv"], "valid": ["valid.tsv"]},
            "data.valid: the sides are swapped: column 0 is the source and has the language of the training target column 1 "
            "(Han script), column 1 that of the training source column 0 (Latin script)",
        ),
        (
            {"source_lang": "zh", "target_lang": "en"},
            "data.source_lang is zh and data.target_lang is en, but train.en, the source, is in Latin script and train.zh in "
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
        ({"train": ["train.en", "train.de"], "valid": ["valid.en", "valid.de"], "source_lang": "en", "target_lang": "de"}, []),
        ({"train": ["train.en", "train.en"], "valid": ["valid.en", "valid.en"]}, []),
        ({"source_lang": "en", "target_lang": "zh-CN"}, []),
        ({"source_lang": "src", "target_lang": "tgt"}, []),
        (
            {"valid": ["valid.zh", "valid.zh"]},
            ["data.valid: its source, valid.zh, has the language of the training target (Han script); is it the right file?"],
        ),
        (
            {"train": ["train.en", "train.de"], "valid": ["valid.en", "valid.de"], "source_lang": "zh"},
            ["data.source_lang is zh, which is written in Han script; train.en is in Latin script"],
        ),
    ],
)  # fmt: skip
def test_what_may_be_meant_is_at_most_a_warning(data: dict[str, object], said: list[str]) -> None:
    assert warnings(recipe_of(**data)) == said


def save_translator(source: str, target: str, **data: object) -> None:
    """An untrained run that has learned from train.SOURCE and train.TARGET."""
    tokenizer = train_tokenizer(TEXTS[source] + TEXTS[target], Choice("bpe"), 400)
    section = ModelSpec(d_model=16, n_heads=2, n_layers=1, max_len=64)
    config = ModelConfig(vocab_size=tokenizer.vocab_size, d_model=16, n_heads=2, n_layers=1, max_len=64)
    names = {"train": [f"train.{source}", f"train.{target}"], "valid_share": 0.1, "valid": None}
    recipe = recipe_of(**{**names, **data}).model_copy(update={"model": section})
    generation = GenerationConfig(beam_size=1, max_length_ratio=0.1, max_length_extra=1)
    Run(build(config), tokenizer, generation, recipe).save("run")


HAN = "the text is in Han script; this model translates en to zh: did you swap the files?"
WORDS = "the text has the frequent words of the other side; this model translates en to de: did you swap the files?"
CODES = {"source_lang": "en", "target_lang": "zh"}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("sides", "data", "typed", "said"),
    [
        ("en zh", CODES, "translate run test.zh", HAN),
        ("en zh", CODES, "translate run test.zh --chunk 1", HAN),
        ("en zh", CODES, "eval run test.zh test.en", HAN),
        ("en zh", CODES, "score run test.zh test.en", HAN),
        ("en zh", {**CODES, "train": ["gone.en", "gone.zh"]}, "translate run test.zh", HAN),  # by the codes alone
        (
            "en zh",
            {},
            "translate run test.zh",
            "the text is in Han script; this model translates Latin script to Han script: did you swap the files?",
        ),
        (
            "en zh",
            CODES,
            "eval run test.en test.en",
            "the reference is in Latin script; this model translates en to zh: did you swap the files?",
        ),
        ("en de", {"source_lang": "en", "target_lang": "de"}, "translate run test.de", WORDS),
        ("en de", {"source_lang": "en", "target_lang": "de"}, "eval run test.de test.en", WORDS),
        ("en zh", CODES, "translate run test.en", ""),
        ("en zh", CODES, "eval run test.en test.zh", ""),
        ("en zh", CODES, "score run test.en test.zh", ""),
        ("en de", {}, "eval run test.en test.de", ""),
        ("en de", {"train": ["gone.en", "gone.de"]}, "translate run test.de", ""),  # nobody can tell
    ],
)  # fmt: skip
def test_text_of_the_wrong_side_is_warned_of_once(
    sides: str, data: dict[str, object], typed: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_translator(*sides.split(), **data)
    assert main(typed.split()) == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if "did you swap" in line]
    assert warned == ([f"polyhead: {said}"] if said else [])


INVENTED = {
    "one": [a + b for a in ["ba", "be", "bi", "bo", "bu", "da", "de", "di", "do", "du"] for b in ["na", "ne", "ni", "no", "nu", "ra", "re", "ri", "ro", "ru"]],
    "other": [a + b for a in ["ka", "ke", "ki", "ko", "ku", "ta", "te", "ti", "to", "tu"] for b in ["sa", "se", "si", "so", "su", "la", "le", "li", "lo", "lu"]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "faulty"),
    [
        (ENGLISH, CHINESE, True),
        (INVENTED["one"], INVENTED["other"], True),
        (INVENTED["one"], INVENTED["one"][::-1], False),
        (ENGLISH, GERMAN, False),  # too few words to tell
    ],
)
def test_two_languages_of_unlike_lengths_are_a_faulty_translation(
    place: Path, one: list[str], other: list[str], faulty: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "one.txt").write_text("\n".join(one * 20) + "\n", encoding="utf-8")
    (place / "other.txt").write_text("\n".join(other * 21) + "\n", encoding="utf-8")
    assert main(["recipe", "one.txt", "other.txt"]) == (2 if faulty else 0)
    said = capsys.readouterr()
    if faulty:
        assert said.err == (
            f"polyhead: one.txt has {20 * len(one):,} lines and other.txt {21 * len(other):,}, and the two are of different "
            "languages: line n of a translation is that of line n of its source, so give files of as many lines; "
            "task=language-model learns from both as plain text\n"
        )
    else:
        assert "task: language-model" in said.out
