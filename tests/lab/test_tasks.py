import numpy as np
import pytest
import torch

from polyhead.lab import tasks
from polyhead.lab.tasks import FIRST_SYMBOL, PAD, START
from polyhead.nn.loss import IGNORE_INDEX

ALL = {
    "copying": tasks.make_copy_task(),
    "copying, padded": tasks.make_copy_task(shortest=2),
    "recall": tasks.make_recall_task(),
    "combining": tasks.make_lookup_task(),
    "delaying": tasks.make_delay_task(),
}


@pytest.mark.parametrize("problem", ALL.values(), ids=ALL)
def test_a_batch_is_a_function_of_seed_and_number(problem):
    first, again, other = problem.batch(1, 5), problem.batch(1, 5), problem.batch(1, 6)
    assert torch.equal(first.target, again.target)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.target, other.target)
    assert not torch.equal(first.target, problem.batch(2, 5).target)


@pytest.mark.parametrize("problem", ALL.values(), ids=ALL)
def test_tokens_are_in_the_vocabulary_and_rows_within_the_length(problem):
    batch = problem.batch(1, 0)
    for x in (batch.source, batch.target, batch.labels[batch.labels != IGNORE_INDEX]):
        assert 0 <= int(x.min()) <= int(x.max()) < problem.vocab_size
    assert max(batch.source.size(1), batch.target.size(1)) <= problem.max_len
    assert batch.n_tokens == int((batch.labels != IGNORE_INDEX).sum())


def test_copying_says_the_source_again():
    batch = tasks.make_copy_task(7, 9, shortest=2).batch(3, 1, 40)
    lengths = set()
    for source, pos, target, labels in zip(
        *(x.tolist() for x in (batch.source, batch.source_pos, batch.target, batch.labels)), strict=True
    ):
        n = sum(token != PAD for token in source)
        lengths.add(n)
        assert pos == [*range(n), *[-1] * (7 - n)]
        assert labels == [*source[:n], *[IGNORE_INDEX] * (7 - n)]
        assert target[: n + 1] == [START, *labels[:n]][:7]  # the decoder reads what it said before
    assert lengths == {2, 3, 4, 5, 6, 7}


def test_recall_asks_for_keys_and_wants_their_values():
    batch = tasks.make_recall_task(items=5, keys=9, values=4).batch(1, 2, 30)
    orders = set()
    for source, target, labels in zip(
        batch.source.tolist(), batch.target.tolist(), batch.labels.tolist(), strict=True
    ):
        known = {
            FIRST_SYMBOL + 9 * 4 + (token - FIRST_SYMBOL) // 4: FIRST_SYMBOL
            + 9 * 4
            + 9
            + (token - FIRST_SYMBOL) % 4
            for token in source
        }
        assert len(known) == 5  # keys are distinct
        assert [known[key] for key in target] == labels
        orders.add(tuple(sorted(range(5), key=lambda i: target[i])))
    assert len(orders) > 10  # and asked for in no fixed order


def test_combining_is_one_table_for_all_batches():
    table = {}
    for number in range(20):
        batch = tasks.make_lookup_task(6, 5).batch(number, number)
        for a, b, c in zip(
            batch.source.flatten().tolist(),
            batch.target.flatten().tolist(),
            batch.labels.flatten().tolist(),
            strict=True,
        ):
            assert table.setdefault((a, b), c) == c
    assert len(table) == 25


def test_delaying_asks_for_what_was_read_so_many_tokens_before():
    batch = tasks.make_delay_task(9, 3).batch(1, 1, 8)
    assert bool((batch.labels[:, :3] == IGNORE_INDEX).all())
    assert torch.equal(batch.labels[:, 3:], batch.target[:, :6])
    assert np.unique(batch.source) == START
