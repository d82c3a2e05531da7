import pytest
import torch
from tests.train.conftest import Notes, small_recipe, user_error, with_data

import polyhead as ph
from polyhead import Choice
from polyhead.config.recipe import Recipe
from polyhead.data.batching.collate import collate
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training
from polyhead.train.tasks.translation import TranslationTask


@pytest.fixture
def recipe(corpus_dir):
    recipe = small_recipe(corpus_dir, max_tokens=96)
    return recipe.model_copy(update={"task": Choice("translation", token_split=0.5)})


def drop_tokens(rows, *ids) -> list[list[int]]:
    return [[i for i in row if i not in ids] for row in rows.tolist()]


def test_batches_have_the_text_in_more_tokens(recipe):
    recipe = with_data(recipe, max_len=12)
    files = [path.read_text().split("\n")[:-1] for path in recipe.data.split_paths("train")]
    source, target = (train_tokenizer(lines, Choice("bpe"), 320) for lines in files)
    tokenizer = Tokenizer(source._inner, target_tokenizer=target)  # each side is split in its own tokens
    task = TranslationTask.open(recipe, tokenizer, Notes())
    torch.manual_seed(1)
    n_labels = n_unsplit = longest = 0
    for rows in [rows for epoch in (0, 1) for rows in task.epoch_batches(epoch)]:
        batch, lines = task.collate(rows), task.train.line_numbers[rows.rows] - 1
        inputs = drop_tokens(batch.source, tokenizer.pad_id, tokenizer.eos_id)
        labels = drop_tokens(batch.labels, IGNORE_INDEX, tokenizer.eos_id)
        assert source.decode(inputs) == [files[0][line] for line in lines]
        assert target.decode(labels) == [files[1][line] for line in lines]
        assert [[tokenizer.bos_id, *row] for row in labels] == drop_tokens(batch.target, tokenizer.pad_id)
        assert task.count_labels(batch) == sum(map(len, labels)) + len(rows.rows)
        longest = max(longest, *map(len, inputs + labels))
        n_labels += task.count_labels(batch)
        n_unsplit += sum(task.train.target_lengths[rows.rows])
    assert longest + 1 == 12  # with its end
    assert 1.1 * n_unsplit < n_labels < 1.5 * n_unsplit


def test_splits_follow_from_seed_and_only_in_training(recipe):
    tokenizer = train_tokenizer(TranslationTask.iter_texts(recipe), Choice("bpe"), 320)
    unsplit = recipe.model_copy(update={"task": Choice("translation", token_split=0.0)})
    task, plain = (TranslationTask.open(r, tokenizer, Notes()) for r in (recipe, unsplit))
    rows = task.epoch_batches(0)[0]
    torch.manual_seed(1)
    first, second = task.collate(rows), task.collate(rows)
    torch.manual_seed(1)
    assert first.source.tolist() == task.collate(rows).source.tolist() != second.source.tolist()
    assert plain.collate(rows).labels.tolist() == collate(plain.train, rows.rows, tokenizer).labels.tolist()
    model = ph.build(recipe.model.with_vocabulary(tokenizer.vocab_size), 1).eval()
    assert task.evaluate(model) == plain.evaluate(model)


def test_unsuitable_token_split_is_refused(corpus_dir):
    task = {"name": "translation", "token_split": 1.5}
    with pytest.raises(ValueError, match="token_split of task 'translation'"):
        Recipe.model_validate(small_recipe(corpus_dir).model_dump() | {"task": task})
    recipe = small_recipe(corpus_dir, tokenizer={"kind": "byte", "vocab_size": 261})
    message = "no token of this vocabulary consists of two others; remove token_split, or train a "
    with user_error(message):
        run_training(
            recipe.model_copy(update={"task": Choice("translation", token_split=0.1)}), report=Notes()
        )
    assert not (recipe.out / "model.safetensors").exists()
