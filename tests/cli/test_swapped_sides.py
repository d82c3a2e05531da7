"""Files of the wrong side are reported by train, eval, translate and score; files of the
right one are not.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.swapped_sides_helpers import TEXTS, recipe_of
from tests.cli.swapped_sides_helpers import place as place

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelSpec
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

ENGLISH = ["a dog is in the house and it sleeps", "the cat and the man are in the street",
    "two men see the dog that barks at the cat"]  # fmt: skip
GERMAN = ["ein Hund ist in dem Haus und er schläft", "die Katze und der Mann sind auf der Straße",
    "zwei Männer sehen den Hund, der die Katze anbellt"]  # fmt: skip
CHINESE = ["一只狗在房子里睡觉", "猫和男人在街上", "两个男人看见了对着猫叫的狗"]


def save_translator(source: str, target: str, **data: object) -> None:
    """An untrained run that has learned from train.SOURCE and train.TARGET."""
    tokenizer = train_tokenizer(TEXTS[source] + TEXTS[target], Choice("bpe"), 400)
    section = ModelSpec(d_model=16, n_heads=2, n_layers=1, max_len=64)
    config = ModelConfig(vocab_size=tokenizer.vocab_size, d_model=16, n_heads=2, n_layers=1, max_len=64)
    names = {"train": [f"train.{source}", f"train.{target}"], "valid_fraction": 0.1, "valid": None}
    recipe = recipe_of(**{**names, **data}).model_copy(update={"model": section})
    generation = GenerationConfig(beam_size=1, max_length_ratio=0.1, max_length_extra=1)
    Run(build(config), tokenizer, generation, recipe).save("run")


HAN = "the text is in Han script; this model translates en to zh: did you swap the files?"
WORDS = (
    "the text has the frequent words of the other side; this model translates en to de: did you swap "
    "the files?"
)
CODES = {"source_lang": "en", "target_lang": "zh"}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("sides", "data", "typed", "said"),
    [
        ("en zh", CODES, "translate run test.zh", HAN),
        ("en zh", CODES, "translate run test.zh --read-batch 1", HAN),
        ("en zh", CODES, "eval run test.zh test.en", HAN),
        ("en zh", CODES, "score run test.zh test.en", HAN),
        # by the codes alone
        ("en zh", {**CODES, "train": ["gone.en", "gone.zh"]}, "translate run test.zh", HAN),
        (
            "en zh",
            {},
            "translate run test.zh",
            "the text is in Han script; this model translates Latin script to Han script: did you swap the "
            "files?",
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
    "one": [a + b for a in ["ba", "be", "bi", "bo", "bu", "da", "de", "di", "do", "du"] for b in ["na", "ne",
        "ni", "no", "nu", "ra", "re", "ri", "ro", "ru"]],
    "other": [a + b for a in ["ka", "ke", "ki", "ko", "ku", "ta", "te", "ti", "to", "tu"] for b in ["sa",
        "se", "si", "so", "su", "la", "le", "li", "lo", "lu"]],
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
    assert main(["init", "one.txt", "other.txt"]) == (2 if faulty else 0)
    said = capsys.readouterr()
    if faulty:
        assert said.err == (
            f"polyhead: one.txt has {20 * len(one):,} lines and other.txt {21 * len(other):,}, in different "
            "languages: line n of the target must translate line n of the source, so both must have the "
            "same number of lines; task=language-model trains on both as plain text\n"
        )
    else:
        assert "task: language-model" in said.out
