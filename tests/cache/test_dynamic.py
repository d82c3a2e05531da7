import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.cache.cache_helpers import ROWS, SHAPE, basic_actions, move_rows, row

from polyhead.core.choice import Choice
from polyhead.core.registry import CACHE
from polyhead.nn.kv import KV

MAX_LEN = 30
TOKEN = 8 + 2 * 2 * (3 + 5) * 4  # a position, and keys and values of two heads in two layers


def feed(cache, rows, pos):
    cache.prepare_step(rows, pos)
    shapes = [(len(pos), 2, pos.size(1), d) for d in (3, 5)]
    new = [KV(*(torch.randn(shape) for shape in shapes)) for _ in cache.layers]
    return [layer.update(kv) for layer, kv in zip(cache.layers, new, strict=True)], new


@given(st.lists(st.one_of(*basic_actions, st.tuples(st.just("again"), row)), max_size=12))
def test_any_history_equals_lists(history):
    """A list of (position, its keys and values) for each row; a position that comes again is replaced."""
    torch.manual_seed(0)
    cache, lists = CACHE.build(Choice("growing"), SHAPE, ROWS, MAX_LEN), [[] for _ in range(ROWS)]
    for name, argument in history:
        if name in ("select", "fork", "release"):
            lists = move_rows(cache, lists, name, argument)
        else:
            new = argument if name == "step" else [(argument, 2)]
            new = [(row, n) for row, n in new if row < len(lists)] or [(0, 1)]
            overlap = int(name == "again")  # the first token rewrites the last position, if there is one
            firsts = [max(0, max([-1, *(p for p, *_ in lists[i])]) + 1 - overlap) for i, _ in new]
            pos = torch.full((len(new), 3), -1)
            for i, ((_, n), first) in enumerate(zip(new, firsts, strict=True)):
                pos[i, :n] = torch.arange(first, first + n)
            outputs, inputs = feed(cache, [i for i, _ in new], pos)
            for i, (row_id, n) in enumerate(new):
                positions = pos[i, :n].tolist()
                entries = [entry for entry in lists[row_id] if entry[0] not in positions]
                for t, p in enumerate(positions):
                    entries.append((p, *((kv.k[i, :, t], kv.v[i, :, t]) for kv in inputs)))
                lists[row_id] = entries
                for depth, kv in enumerate(outputs, 1):
                    slots = (kv.pos[i, 0] >= 0).nonzero()[:, 0]
                    assert kv.pos[i, 0, slots].tolist() == [entry[0] for entry in entries]
                    for slot, entry in zip(slots.tolist(), entries, strict=True):
                        assert torch.equal(kv.k[i, :, slot], entry[depth][0])
                        assert torch.equal(kv.v[i, :, slot], entry[depth][1])
        assert cache.memory_usage().used_bytes == TOKEN * sum(map(len, lists))


def test_storage_is_as_long_as_the_longest_row():
    cache = CACHE.build(Choice("growing"), SHAPE, 2, MAX_LEN)
    assert cache.nbytes == 0
    feed(cache, [0, 1], torch.tensor([[0, 1, 2], [0, -1, -1]]))
    assert cache.nbytes == 2 * 3 * TOKEN and cache.memory_usage()[:2] == (2 * 3 * TOKEN, 4 * TOKEN)
    feed(cache, [1], torch.tensor([[1]]))
    assert cache.nbytes == 2 * 3 * TOKEN
    cache.select([1, 1, 1])
    assert cache.memory_usage()[:2] == (3 * 3 * TOKEN, 6 * TOKEN)
    assert cache.free_tokens() == 3 * (MAX_LEN - 2)
