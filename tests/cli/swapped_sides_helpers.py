"""Shared by the tests of swapped sides."""

from pathlib import Path

import pytest

from polyhead.config.data_config import DataConfig
from polyhead.config.recipe import Recipe, TrainConfig

ENGLISH = [
    "a dog is in the house and it sleeps",
    "the cat and the man are in the street",
    "two men see the dog that barks at the cat",
]
GERMAN = [
    "ein Hund ist in dem Haus und er schläft",
    "die Katze und der Mann sind auf der Straße",
    "zwei Männer sehen den Hund, der die Katze anbellt",
]
CHINESE = ["一只狗在房子里睡觉", "猫和男人在街上", "两个男人看见了对着猫叫的狗"]
TEXTS = {"en": ENGLISH, "de": GERMAN, "zh": CHINESE}


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Text in three languages, and tables of which that for validation is swapped."""
    monkeypatch.chdir(tmp_path)
    for split in ("train", "valid", "test"):
        for code, lines in TEXTS.items():
            copies = lines * (20 if split == "train" else 2)
            (tmp_path / f"{split}.{code}").write_text("\n".join(copies) + "\n", encoding="utf-8")
    pairs = list(zip(ENGLISH * 9, CHINESE * 9, strict=True))
    for name, rows in (("train", pairs), ("valid", [pair[::-1] for pair in pairs])):
        text = "".join("\t".join(row) + "\n" for row in rows)
        (tmp_path / f"{name}.tsv").write_text(text, encoding="utf-8")
    return tmp_path


def recipe_of(**data: object) -> Recipe:
    section = {"train": ["train.en", "train.zh"], "valid": ["valid.en", "valid.zh"]} | data
    return Recipe(data=DataConfig.model_validate(section), train=TrainConfig(steps=1), out=Path("runs/x"))
