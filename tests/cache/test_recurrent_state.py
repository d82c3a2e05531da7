"""The cache of states against a dictionary of what each sequence has seen."""

from __future__ import annotations

import pytest
import torch

from polyhead.cache.recurrent_state import StateCache
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV

SIZES = ((2, 3), (4,))


def shape(state=SIZES, layers=2, dtype=torch.float32):
    return CacheShape(layers, 1, 1, 1, dtype, torch.device("cpu"), (state,) * layers)


class Sums:
    """A cache whose states are sums of what tokens add, and beside it the same sums of each sequence by
    hand.
    """

    def __init__(self, n_rows):
        torch.manual_seed(0)
        self.cache, self.seen = StateCache(shape(), n_rows, 99), [[] for _ in range(n_rows)]

    def step(self, rows, lengths):
        """Each of the rows gets so many tokens, padding on the right."""
        pos = torch.full((len(rows), max([1, *lengths])), -1)
        for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            pos[i, :length] = torch.arange(len(self.seen[row]), len(self.seen[row]) + length)
        self.cache.prepare_step(rows, pos)
        new = [[torch.randn(2, 3) for _ in range(length)] for length in lengths]
        for depth, layer in enumerate(self.cache.layers, 1):
            a, b = layer.state
            added = torch.stack([depth * sum(tokens, torch.zeros(2, 3)) for tokens in new])
            layer.state = a + added, b + torch.tensor(lengths, dtype=b.dtype)[:, None]
        for row, tokens in zip(rows, new, strict=True):
            self.seen[row] = self.seen[row] + tokens

    def check(self):
        rows = range(len(self.seen))
        self.cache.prepare_step(rows, torch.full((len(self.seen), 1), -1))
        for depth, layer in enumerate(self.cache.layers, 1):
            sums, counts = layer.state
            wanted = torch.stack([depth * sum(tokens, torch.zeros(2, 3)) for tokens in self.seen])
            torch.testing.assert_close(sums, wanted, rtol=0, atol=1e-5)
            assert counts[:, 0].tolist() == [len(tokens) for tokens in self.seen]


def test_each_row_keeps_what_it_has_seen_in_whatever_company():
    s = Sums(3)
    for rows, lengths in (
        ([0, 1, 2], [2, 0, 1]),
        ([2, 0], [1, 3]),
        ([1], [4]),
        ([0, 1, 2], [1, 1, 1]),
        ([2, 1, 0], [0, 2, 1]),
    ):
        s.step(rows, lengths)
        s.check()


def test_fork_copies_release_forgets_and_the_row_begins_anew():
    s = Sums(3)
    s.step([0, 1, 2], [2, 1, 3])
    s.cache.fork(0, 2)
    s.seen[2] = list(s.seen[0])
    s.check()
    s.step([2, 1], [1, 1])
    s.check()
    s.cache.release(0)
    s.seen[0] = []
    s.check()
    s.step([0], [2])
    s.check()


@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 0], [0], [0, 0, 1, 2, 2], [0, 1, 2], []], ids=str)
def test_select_reorders_copies_and_drops(rows):
    s = Sums(3)
    s.step([0, 1, 2], [2, 1, 3])
    s.cache.select(rows)
    s.seen = [list(s.seen[row]) for row in rows]
    if rows:
        s.check()
        s.step(list(range(len(rows))), [1] * len(rows))
        s.check()
    else:
        assert s.cache.nbytes == 0


def test_rows_that_were_copies_of_one_go_their_own_ways():
    s = Sums(1)
    s.step([0], [2])
    s.cache.select([0, 0])
    s.seen = [list(s.seen[0]), list(s.seen[0])]
    s.step([1], [1])
    s.cache.release(0)
    s.seen[0] = []
    s.check()


def test_bytes_depend_on_rows_and_layers_and_not_on_the_length():
    s = Sums(3)
    assert s.cache.nbytes == 2 * 3 * (2 * 3 + 4) * 4
    room = s.cache.free_tokens()
    for _ in range(200):
        s.step([0, 1, 2], [1, 1, 1])
    assert s.cache.nbytes == 2 * 3 * (2 * 3 + 4) * 4
    assert s.cache.free_tokens() == room > 10**12
    s.check()


@pytest.mark.parametrize(
    ("pos", "holds"), [([[2]], 1), ([[0]], 1), ([[1, 1]], 1), ([[2, 1]], 1), ([[1, 2, 4]], 1)], ids=str
)
def test_tokens_come_in_the_order_of_their_positions(pos, holds):
    s = Sums(1)
    s.step([0], [holds])
    with pytest.raises(AssertionError, match="row 0 holds 1 tokens; a recurrent state cannot take positions"):
        s.cache.prepare_step([0], torch.tensor(pos))
    s.check()
    s.cache.prepare_step([0], torch.tensor([[-1, 1, -1, 2]]))  # padding may stand anywhere


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_states_are_in_fp32_at_least(dtype, kept):
    cache = StateCache(shape(dtype=dtype), 2, 9)
    cache.prepare_step([0, 1], torch.zeros(2, 1, dtype=torch.int64))
    layer = cache.layers[0]
    assert all((x == 0).all() for x in layer.state)
    layer.state = tuple(torch.full_like(x, 1 / 3, dtype=dtype) for x in layer.state)
    assert all(x.dtype == kept for x in layer.state)
    cache.prepare_step([1], torch.ones(1, 1, dtype=torch.int64))
    layer.state = tuple(torch.full_like(x, 2 / 3, dtype=dtype) for x in layer.state)
    assert all(x.dtype == kept for x in layer.tensors)


def test_a_step_in_inference_mode_or_under_grad_leaves_a_cache_that_lives_on():
    """No graph is kept from step to step, and rows are moved in any mode."""
    cache = StateCache(shape(), 2, 9)
    weight = torch.ones(2, 3, requires_grad=True)
    for t, mode in enumerate((torch.inference_mode, torch.enable_grad, torch.no_grad)):
        with mode():
            cache.prepare_step([0, 1], torch.full((2, 1), t))
            for layer in cache.layers:
                a, b = layer.state
                layer.state = a + weight, b + 1
        assert not any(x.requires_grad for layer in cache.layers for x in layer.tensors)
        cache.release(1)
        cache.fork(0, 1)
    cache.release(1)
    cache.select([1, 0])
    for layer in cache.layers:
        assert (layer.tensors[0] == torch.tensor([0.0, 3.0])[:, None, None]).all()


def test_a_state_of_another_shape_is_a_bug():
    layer = StateCache(shape(), 2, 9).layers[0]
    with pytest.raises(AssertionError, match=r"a state of \(3, 2\) where \(2, 3\) was stored"):
        layer.state = torch.zeros(2, 3, 2), torch.zeros(2, 4)
    with pytest.raises(AssertionError, match="a recurrent state, not keys and values"):
        layer.update(KV(torch.zeros(2, 1, 1, 1), torch.zeros(2, 1, 1, 1)))
