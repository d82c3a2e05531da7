"""Shared by the tests of swapped_sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyhead.config.data_config import DataConfig
from polyhead.config.recipe import Recipe, TrainConfig

ENGLISH = ["a dog is in the house and it sleeps", "the cat and the man are in the street",
    "two men see the dog that barks at the cat"]  # fmt: skip

GERMAN = ["ein Hund ist in dem Haus und er schläft", "die Katze und der Mann sind auf der Straße",
    "zwei Männer sehen den Hund, der die Katze anbellt"]  # fmt: skip

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
