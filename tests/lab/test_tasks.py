import numpy as np
import pytest
import torch

from polyhead.nn.loss import IGNORE_INDEX
from polyhead_lab import tasks
from polyhead_lab.tasks import FIRST_SYMBOL, PAD, START

TASKS = {
    "copy": tasks.make_copy_task(),
    "padded copy": tasks.make_copy_task(shortest=2),
    "recall": tasks.make_recall_task(),
    "lookup": tasks.make_lookup_task(),
    "delay": tasks.make_delay_task(),
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
    batch = tasks.make_copy_task(7, 9, shortest=2).batch(3, 1, 40)
    lengths = set()
    for source, pos, target, labels in iter_rows(batch.source, batch.source_pos, batch.target, batch.labels):
        n = sum(token != PAD for token in source)
        lengths.add(n)
        assert pos == [*range(n), *[-1] * (7 - n)]
        assert labels == [*source[:n], *[IGNORE_INDEX] * (7 - n)]
        assert target[: n + 1] == [START, *labels[:n]][:7]  # teacher forcing
    assert lengths == {2, 3, 4, 5, 6, 7}


def test_recall_task_asks_keys_in_any_order():
    batch = tasks.make_recall_task(items=5, keys=9, values=4).batch(1, 2, 30)
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
        batch = tasks.make_lookup_task(6, 5).batch(number, number)
        for a, b, c in iter_rows(*(x.flatten() for x in (batch.source, batch.target, batch.labels))):
            assert table.setdefault((a, b), c) == c
    assert len(table) == 25


def test_delay_task_asks_earlier_token():
    batch = tasks.make_delay_task(9, 3).batch(1, 1, 8)
    assert bool((batch.labels[:, :3] == IGNORE_INDEX).all())
    assert torch.equal(batch.labels[:, 3:], batch.target[:, :6])
    assert np.unique(batch.source) == START
