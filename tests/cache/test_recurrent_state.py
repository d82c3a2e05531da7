import pytest
import torch

from polyhead.cache.recurrent_state import StateCache
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV


def make_cache(n_rows, max_len=9, dtype=torch.float32):
    states = (((2, 3), (4,)),) * 2
    return StateCache(CacheShape(2, 1, 1, 1, dtype, torch.device("cpu"), states), n_rows, max_len)


class Sums:
    def __init__(self, n_rows):
        torch.manual_seed(0)
        self.cache, self.tokens = make_cache(n_rows, 99), [[] for _ in range(n_rows)]

    def step(self, rows, lengths):
        pos = torch.full((len(rows), max([1, *lengths])), -1)
        for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            pos[i, :length] = torch.arange(len(self.tokens[row]), len(self.tokens[row]) + length)
        self.cache.prepare_step(rows, pos)
        new = [[torch.randn(2, 3) for _ in range(length)] for length in lengths]
        for depth, layer in enumerate(self.cache.layers, 1):
            a, b = layer.state
            increment = torch.stack([depth * sum(tokens, torch.zeros(2, 3)) for tokens in new])
            layer.state = a + increment, b + torch.tensor(lengths, dtype=b.dtype)[:, None]
        for row, tokens in zip(rows, new, strict=True):
            self.tokens[row] = self.tokens[row] + tokens
        self.check()

    def select(self, rows):
        self.cache.select(rows)
        self.tokens = [list(self.tokens[row]) for row in rows]

    def check(self):
        rows = range(len(self.tokens))
        self.cache.prepare_step(rows, torch.full((len(rows), 1), -1))
        for depth, layer in enumerate(self.cache.layers, 1):
            sums, counts = layer.state
            expected = torch.stack([depth * sum(tokens, torch.zeros(2, 3)) for tokens in self.tokens])
            torch.testing.assert_close(sums, expected, rtol=0, atol=1e-5)
            assert counts[:, 0].tolist() == [len(tokens) for tokens in self.tokens]


def test_rows_keep_their_states_in_any_batch():
    s = Sums(3)
    for rows, lengths in (
        ([0, 1, 2], [2, 0, 1]),
        ([2, 0], [1, 3]),
        ([1], [4]),
        ([0, 1, 2], [1, 1, 1]),
        ([2, 1, 0], [0, 2, 1]),
    ):
        s.step(rows, lengths)
    s.cache.fork(0, 2)
    s.tokens[2] = list(s.tokens[0])
    s.check()
    s.step([2, 1], [1, 1])
    s.cache.release(0)
    s.tokens[0] = []
    s.check()
    s.step([0], [2])


@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 0], [0], [0, 0, 1, 2, 2], [0, 1, 2]], ids=str)
def test_select_reorders_copies_and_drops(rows):
    s = Sums(3)
    s.step([0, 1, 2], [2, 1, 3])
    s.select(rows)
    s.check()
    s.step(list(range(len(rows))), [1] * len(rows))


@pytest.mark.parametrize("pos", [[2], [0], [1, 1], [2, 1], [1, 2, 4]], ids=str)
def test_positions_must_be_consecutive(pos):
    s = Sums(1)
    s.step([0], [1])
    with pytest.raises(AssertionError, match="row 0 holds 1 tokens; a recurrent state cannot take positions"):
        s.cache.prepare_step([0], torch.tensor([pos]))
    s.check()
    s.cache.prepare_step([0], torch.tensor([[-1, 1, -1, 2]]))  # padding may be anywhere


@pytest.mark.parametrize(
    ("dtype", "stored_dtype"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_states_are_in_fp32_at_least(dtype, stored_dtype):
    cache = make_cache(2, dtype=dtype)
    cache.prepare_step([0, 1], torch.zeros(2, 1, dtype=torch.int64))
    layer = cache.layers[0]
    assert all((x == 0).all() for x in layer.state)
    layer.state = tuple(torch.full_like(x, 1 / 3, dtype=dtype) for x in layer.state)
    assert all(x.dtype == stored_dtype for x in layer.state)
    cache.prepare_step([1], torch.ones(1, 1, dtype=torch.int64))
    layer.state = tuple(torch.full_like(x, 2 / 3, dtype=dtype) for x in layer.state)
    assert all(x.dtype == stored_dtype for x in layer.tensors)


def test_states_have_fixed_sizes_in_any_grad_mode():
    cache, weight = make_cache(2), torch.ones(2, 3, requires_grad=True)
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
    s = Sums(3)
    free_tokens = s.cache.free_tokens()
    for _ in range(50):
        s.step([0, 1, 2], [1, 1, 1])
        assert s.cache.nbytes == 2 * 3 * (2 * 3 + 4) * 4
    assert s.cache.free_tokens() == free_tokens > 10**12
    s.select([])
    assert s.cache.nbytes == 0
    layer = make_cache(2).layers[0]
    with pytest.raises(AssertionError, match=r"a state of \(3, 2\) where \(2, 3\) was stored"):
        layer.state = torch.zeros(2, 3, 2), torch.zeros(2, 4)
    with pytest.raises(AssertionError, match="a recurrent state, not keys and values"):
        layer.update(KV(torch.zeros(2, 1, 1, 1), torch.zeros(2, 1, 1, 1)))
