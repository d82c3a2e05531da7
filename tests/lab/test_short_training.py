import math

import numpy as np
import pytest
import torch

from polyhead.models.build import build
from polyhead.nn.loss import IGNORE_INDEX
from polyhead_lab import short_training
from polyhead_lab.short_training import (
    FIRST_SYMBOL,
    PAD,
    START,
    SyntheticTask,
    evaluate_held_out,
    make_copy_task,
    make_small_config,
    run_short_training,
)

EASY = make_copy_task(3, 4)._replace(rows=16)
TINY = {"d_model": 16, "d_ff": 16}


def test_easy_task_is_learned():
    config = make_small_config(EASY, d_model=32, d_ff=32, n_layers=1)
    result = run_short_training(config, EASY, seed=1, steps=150, lr=5e-3)
    assert result.accuracy > 0.95
    assert result.loss < 0.3 < math.log(4) < result.curve[0][1]
    assert result.curve[-1][0] == 150
    assert not result.diverged
    tiny = make_small_config(EASY, **TINY)
    curves = [run_short_training(tiny, EASY, seed=seed, steps=5).curve for seed in (1, 1, 2)]
    assert curves[0] == curves[1] != curves[2]
    # a diverged one is a result
    config = make_small_config(EASY, **TINY, norm="none")
    result = run_short_training(config, EASY, seed=1, steps=40, lr=1e18, warmup=0, clip_norm=0.0)
    assert result.diverged
    assert math.isnan(result.accuracy)


def test_compared_designs_read_same_rows():
    def train(norm, seed):
        batches = []

        def draw(rng, rows):
            source, target, labels = EASY.draw(rng, rows)
            batches.append(tuple(source.flatten().tolist()))
            return source, target, labels

        config = make_small_config(EASY, norm=norm, **TINY)
        run_short_training(config, SyntheticTask(*EASY[:2], draw, 16), seed=seed, steps=4)
        return batches

    layernorm, rmsnorm, other_seed = train("layernorm", 3), train("rmsnorm", 3), train("rmsnorm", 4)
    assert layernorm == rmsnorm
    assert not set(rmsnorm[:5]) & set(other_seed[:5])  # another seed, other rows
    assert rmsnorm[5:] == other_seed[5:]  # evaluated on the same ones
    assert len(set(layernorm[:5])) == 4  # the memory check reads the first batch too


def test_evaluation_matches_cross_entropy_and_accuracy():
    model = build(make_small_config(EASY, **TINY), 1)
    result = evaluate_held_out(model, EASY, n_batches=2)
    nll, n_correct, n = 0.0, 0, 0
    for number in (1_000_000, 1_000_001):
        batch = EASY.batch(0, number)
        with torch.inference_mode():
            logits = model(batch.source, batch.target).double()
        for scores, label in zip(logits.flatten(0, 1), batch.labels.flatten().tolist(), strict=True):
            nll -= float(scores[label] - scores.logsumexp(0))
            n_correct += int(scores.argmax()) == label
            n += 1
    expected = {"loss": nll / n, "ppl": math.exp(nll / n), "accuracy": n_correct / n}
    assert result == pytest.approx(expected, rel=1e-5)


TASKS = {
    "copy": short_training.make_copy_task(),
    "padded copy": short_training.make_copy_task(shortest=2),
    "recall": short_training.make_recall_task(),
    "lookup": short_training.make_lookup_task(),
    "delay": short_training.make_delay_task(),
}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_batch_depends_on_seed_and_has_limits(task):
    batch, repeat = task.batch(1, 5), task.batch(1, 5)
    assert torch.equal(batch.target, repeat.target)
    assert torch.equal(batch.labels, repeat.labels)
    for other in (task.batch(1, 6), task.batch(2, 5)):
        assert not torch.equal(batch.target, other.target)
    mask = batch.labels != IGNORE_INDEX
    for x in (batch.source, batch.target, batch.labels[mask]):
        assert 0 <= int(x.min()) <= int(x.max()) < task.vocab_size
    assert max(batch.source.size(1), batch.target.size(1)) <= task.max_len
    assert batch.n_tokens == int(mask.sum())


def iter_rows(*tensors):
    return zip(*(x.tolist() for x in tensors), strict=True)


def test_copy_task_repeats_source():
    batch = short_training.make_copy_task(7, 9, shortest=2).batch(3, 1, 40)
    lengths = set()
    for source, pos, target, labels in iter_rows(batch.source, batch.source_pos, batch.target, batch.labels):
        n = sum(token != PAD for token in source)
        lengths.add(n)
        assert pos == [*range(n), *[-1] * (7 - n)]
        assert labels == [*source[:n], *[IGNORE_INDEX] * (7 - n)]
        assert target[: n + 1] == [START, *labels[:n]][:7]  # teacher forcing
    assert lengths == {2, 3, 4, 5, 6, 7}


def test_recall_task_asks_keys_in_any_order():
    batch = short_training.make_recall_task(items=5, keys=9, values=4).batch(1, 2, 30)
    first_key, first_value = FIRST_SYMBOL + 9 * 4, FIRST_SYMBOL + 9 * 4 + 9
    orders = set()
    for source, target, labels in iter_rows(batch.source, batch.target, batch.labels):
        items = (divmod(token - FIRST_SYMBOL, 4) for token in source)
        values = {first_key + key: first_value + value for key, value in items}
        assert len(values) == 5  # keys are distinct
        assert [values[key] for key in target] == labels
        orders.add(tuple(sorted(range(5), key=lambda i: target[i])))
    assert len(orders) > 10


def test_lookup_task_has_one_table():
    table = {}
    for number in range(20):
        batch = short_training.make_lookup_task(6, 5).batch(number, number)
        for a, b, c in iter_rows(*(x.flatten() for x in (batch.source, batch.target, batch.labels))):
            assert table.setdefault((a, b), c) == c
    assert len(table) == 25


def test_delay_task_asks_earlier_token():
    batch = short_training.make_delay_task(9, 3).batch(1, 1, 8)
    assert bool((batch.labels[:, :3] == IGNORE_INDEX).all())
    assert torch.equal(batch.labels[:, 3:], batch.target[:, :6])
    assert np.unique(batch.source) == START
