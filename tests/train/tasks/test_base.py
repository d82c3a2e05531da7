import pytest
from tests.train.conftest import Notes, small_recipe, user_error, with_data

from polyhead.train.run_training import run_training


@pytest.mark.usefixtures("no_report")
def test_skipped_pairs_are_counted_and_reported(corpus_dir):
    def append_pairs(n, mode="a"):
        for side, word in (("de", "hund"), ("en", "dog")):
            with (corpus_dir / f"train.{side}").open(mode) as file:
                file.write(f"{f'{word} ' * 60}\n" * n)

    def train(out):
        notes, recipe = Notes(), small_recipe(corpus_dir, out, steps=1, max_tokens=400)  # max_len 32
        run_training(with_data(recipe, test=recipe.data.valid), report=notes)
        return notes.lines

    append_pairs(1)
    lines = train("one")
    assert "train: train.de + train.en: 40 of 41 pairs; skipped 1 overlong (first: line 41)" in lines
    message = "warning: {}: 1 of 6 texts are also in the training text (first: line 6)"
    learned = [message.format(split) for split in ("valid", "test")]
    assert [line for line in lines if line.startswith("warning")] == learned
    append_pairs(59)
    warning, *rest = [line for line in train("most") if line.startswith("warning")]
    message = (
        "warning: train.de + train.en: 40 of 100 are used, the others are skipped; 60 are longer than 32 "
    )
    assert warning.startswith(message + "tokens: raise model.max_len") and rest == learned
    append_pairs(60, mode="w")
    with user_error(r"no usable pair in train.de \+ train.en: 0 of 60 pairs; skipped 60"):
        train("none")
