"""Files of the wrong side are reported by eval, translate, score and init, others are not."""

from pathlib import Path

import pytest
from tests.cli.cli_helpers import save_run
from tests.cli.swapped_sides_helpers import CHINESE, ENGLISH, GERMAN, TEXTS, recipe_of
from tests.cli.swapped_sides_helpers import workdir as workdir

from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelSpec
from polyhead.run.run_examples import write_examples

SIZES = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 64}


def save_translator(source, target, has_examples, **data):
    """Save an untrained run whose recipe has train.SOURCE and train.TARGET, perhaps with examples of them."""
    files = {"train": [f"train.{source}", f"train.{target}"], "valid_fraction": 0.1, "valid": None}
    recipe = recipe_of(**files | data).model_copy(update={"model": ModelSpec(**SIZES)})
    generation = GenerationConfig(beam_size=1, max_length_ratio=0.1, max_length_extra=1)
    save_run("run", TEXTS[source] + TEXTS[target], generation=generation, recipe=recipe, **SIZES)
    if has_examples:
        write_examples(Path("run"), zip(TEXTS[source] * 9, TEXTS[target] * 9, strict=True))


SWAP = "did you swap the files?"
HAN = f"the text is in Han script; this model translates en to zh: {SWAP}"
LATIN = f"the reference is in Latin script; this model translates en to zh: {SWAP}"
SCRIPTS = f"the text is in Han script; this model translates Latin script to Han script: {SWAP}"
WORDS = f"the text has the frequent words of the other side; this model translates en to de: {SWAP}"
ZH, DE = ({"source_lang": "en", "target_lang": code} for code in ("zh", "de"))


@pytest.mark.parametrize(
    ("languages", "data", "command", "warning"),
    [
        ("en zh", ZH, "translate run test.zh", HAN),
        ("en zh", ZH, "translate run test.zh --read-batch 1", HAN),
        ("en zh", ZH, "eval run test.zh test.en", HAN),
        ("en zh", ZH, "score run test.zh test.en", HAN),
        ("en zh", ZH | {"has_examples": False}, "translate run test.zh", HAN),  # by the codes alone
        ("en zh", {}, "translate run test.zh", SCRIPTS),
        ("en zh", ZH, "eval run test.en test.en", LATIN),
        ("en de", DE, "translate run test.de", WORDS),
        ("en de", DE, "eval run test.de test.en", WORDS),
        ("en zh", ZH, "translate run test.en", ""),
        ("en zh", ZH, "eval run test.en test.zh", ""),
        ("en zh", ZH, "score run test.en test.zh", ""),
        ("en de", {}, "eval run test.en test.de", ""),
        ("en de", {"has_examples": False}, "translate run test.de", ""),  # not known
    ],
)
def test_text_of_the_wrong_side_warns_once(languages, data, command, warning, workdir, cli):
    save_translator(*languages.split(), **{"has_examples": True} | data)
    warnings = [line for line in cli(*command.split()).err.splitlines() if SWAP in line]
    assert warnings == ([f"polyhead: {warning}"] if warning else [])


def syllables(first, second):
    return [a + b for a in first.split() for b in second.split()]


A = syllables("ba be bi bo bu da de di do du", "na ne ni no nu ra re ri ro ru")
B = syllables("ka ke ki ko ku ta te ti to tu", "sa se si so su la le li lo lu")


@pytest.mark.parametrize(
    ("source", "target", "is_error"),
    [
        (ENGLISH, CHINESE, True),
        (A, B, True),
        (A, A[::-1], False),
        (ENGLISH, GERMAN, False),  # too few words to decide
    ],
)
def test_two_languages_of_unequal_lengths_are_refused(source, target, is_error, workdir, cli):
    (workdir / "a.txt").write_text("\n".join(source * 20) + "\n", encoding="utf-8")
    (workdir / "b.txt").write_text("\n".join(target * 21) + "\n", encoding="utf-8")
    if is_error:
        count = f"a.txt has {20 * len(source):,} lines and b.txt {21 * len(target):,}, in different languages"
        assert cli.error("init", "a.txt", "b.txt").startswith(f"{count}: line n of the target must translate")
    else:
        assert "task: language-model" in cli("init", "a.txt", "b.txt").out
