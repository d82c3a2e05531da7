"""Keys and values in pages: what a page table says, done with tensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polyhead.cache.base import CacheShape, Memory
from polyhead.cache.page_size import block_for
from polyhead.cache.paged_layer import PagedLayer, Step
from polyhead.cache.pages import NoRoom, PageTable, Span, Usage
from polyhead.cache.rows import check_fits
from polyhead.errors import UserError
from polyhead.nn.kv import visible
from polyhead.registry import CACHE

Ints = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]


@CACHE.register("paged")
class PagedCache:
    """Keys and values in pages of a few tokens, which rows share until one of them writes (copy on write).

    Storage is taken a page at a time as rows grow, so short rows do not pay for long ones; beams and parallel samples
    hold what they have in common once, and reordering them moves numbers of pages, no keys. A packed model reads the pages
    where they lie; any other has them gathered at every step. Stepping gives what the whole forward gives.

    Paper: Kwon et al., 2023, sec. 4
    When: beams, parallel samples, a service: where memory counts; static is a little faster
    Recipe: generation: {cache: paged}
    Options:
      block: tokens of a page; if not given, the largest of 32, 16, 8, 4, 2 that wastes less than 4 % of the slots
      expected: tokens expected in a row, for choosing the block; half of the greatest length if not given
      blocks: pages that may be taken; if not given, as many as all rows at the greatest length need
    """

    lossless, rewinds = True, True

    def __init__(
        self,
        shape: CacheShape,
        n_rows: int,
        max_len: int,
        *,
        block: int | None = None,
        expected: int | None = None,
        blocks: int | None = None,
    ) -> None:
        if any(shape.states):
            raise UserError(
                "cache 'paged' keeps keys and values in pages; this model keeps a state of constant size, which has no "
                "tokens to page: use cache 'state'"
            )
        for name, value in (("block", block), ("expected", expected), ("blocks", blocks)):
            if value is not None and value < 1:
                raise UserError(f"cache 'paged': {name} is {value}, wanted at least 1")
        self.max_len, self.blocks, self.device = max_len, blocks, shape.device
        self.block = block or block_for(max(1, max_len // 2) if expected is None else expected)
        self.table = PageTable(self.block)
        self._names = count()
        self.rows = [self._empty() for _ in range(n_rows)]  # the sequence of each row
        # pages with numbers that are not finite; layers know it and not the cache, lest a cache outlive its use in a circle
        self._dirty: set[int] = set()
        self._index: tuple[tuple[object, ...], tuple[Ints, Tensor, Tensor]] | None = None
        self.layers = [PagedLayer(self.block, shape, self._dirty) for _ in range(shape.n_layers)]

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def memory(self) -> Memory:
        """A shared token is held once; shared is what sharing saves."""
        usage, page = self.table.usage(), sum(layer.page_bytes for layer in self.layers)
        used, shared = usage.tokens * page // self.block, (usage.unshared - usage.used) * page
        return Memory(self.nbytes, used, self.nbytes, shared)

    def usage(self) -> Usage:
        """Pages held, shared and wasted, now and at the most."""
        return self.table.usage()

    def limit(self, rows: int) -> int:
        """Pages that there may be for so many rows."""
        return rows * -(-self.max_len // self.block) if self.blocks is None else self.blocks

    def begin(self, rows: Sequence[int], pos: Tensor) -> None:
        rows, host = list(rows), pos.cpu().numpy()
        assert len(set(rows)) == len(host), f"{len(host)} rows of positions for rows {rows}"
        spans = self._spans(rows, host)
        wanted = self.table.wanted(spans)
        more = wanted - self.table.available
        if self.blocks is not None:  # known beginnings stay as long as the pages that were granted allow it
            more = max(more, min(wanted - self.table.free, self.blocks - self.table.blocks))
        if more > 0:
            self._grow(more)
        granted = self.table.write(spans, wanted)
        dirty = [page for page in granted.fresh if page in self._dirty or self.device.type != "cpu"]
        self._dirty -= {*dirty, *(dst for _, dst in granted.copies)}
        self._dirty |= {dst for src, dst in granted.copies if src in self._dirty}
        for layer in self.layers:
            layer.copy(granted.copies)
            layer.clear(dirty)
        step = self._step(rows, pos, host)
        for layer in self.layers:
            layer.step = step

    @property
    def grain(self) -> int:
        return self.block

    def room(self, more: int = 0) -> int:
        """Whole pages that can still be taken, in tokens; what is left of pages begun is not counted."""
        rows = len(self.rows) + more
        held = self.table.blocks - self.table.available
        return max(0, min(self.limit(rows), rows * -(-self.max_len // self.block)) - held) * self.block

    def add(self, n: int) -> None:
        self.rows += [self._empty() for _ in range(n)]

    def fork(self, src: int, dst: int) -> None:
        if src != dst:
            self.table.release(self.rows[dst])
            self.rows[dst] = self._copy(self.rows[src])

    def release(self, row: int) -> None:
        self.table.release(self.rows[row])
        self.rows[row] = self._empty()

    def select(self, rows: Sequence[int]) -> None:
        held, taken = self.rows, set[int]()
        self.rows = []
        for row in map(int, rows):  # the first to ask for a row goes on with it, the others share its pages
            self.rows.append(self._copy(held[row]) if row in taken else held[row])
            taken.add(row)
        for row, seq in enumerate(held):
            if row not in taken:
                self.table.release(seq)

    def reuse(self, row: int, tokens: Sequence[int]) -> int:
        """Begin an empty row with pages whose tokens are known to be these; how many need not be fed comes back."""
        seq = self.rows[row]
        assert not self.table.lengths[seq], f"row {row} is not empty"
        self.table.release(seq)
        return self.table.admit(seq, tokens)

    def publish(self, row: int, tokens: Sequence[int]) -> None:
        """Tell the tokens of a row, after the step that wrote them, for ``reuse`` by others.

        Only where keys and values depend on these tokens alone: not in the decoder of an encoder-decoder.
        """
        self.table.publish(self.rows[row], tokens)

    def _empty(self) -> int:
        seq = next(self._names)
        self.table.admit(seq)
        return seq

    def _copy(self, src: int) -> int:
        seq = next(self._names)
        self.table.fork(src, seq)
        return seq

    def _spans(self, rows: list[int], host: Ints) -> list[Span]:
        """What each row writes; positions follow each other, padding may stand anywhere."""
        spans = []
        for row, at in zip(rows, host.tolist(), strict=True):
            real = [place for place in at if place >= 0]
            first, end = (min(real), max(real) + 1) if real else (0, 0)
            assert end - first == len(real), f"{len(real)} positions from {first} to {end - 1} of row {row}"
            check_fits(end, self.max_len)
            spans.append(Span(self.rows[row], first, end))
        return spans

    def _grow(self, more: int) -> None:
        """So many pages more, or an eighth of what there is: what does not fit the limit is refused."""
        limit = self.limit(len(self.rows))
        free = limit - self.table.blocks
        if more > free:
            raise NoRoom(
                f"the step needs {more - free} pages of {self.block} tokens more than the {limit} of this cache: give it more "
                "blocks, or decode fewer rows at once"
            )
        more = min(max(more, self.table.blocks // 8), free)
        self.table.grow(more)
        for layer in self.layers:
            layer.grow(more)

    def _step(self, rows: list[int], pos: Tensor, host: Ints) -> Step:
        """Slots of the new tokens, pages to read, positions. Page 0 of the storage swallows padding."""
        table, pages, read = self._pages(rows)
        empty, K = host < 0, self.layers[0].k.size(1)
        page, slot = np.divmod(np.where(empty, 0, host), self.block)
        heads = table[np.arange(len(host))[:, None], page][:, None] * K + np.arange(K)[:, None]
        write = np.where(empty[:, None], 0, heads * self.block + slot[:, None])
        lengths = np.array([self.table.lengths[self.rows[row]] for row in rows])[:, None]
        slots = np.arange(table.shape[1] * self.block)
        held = self._there(np.where(slots < lengths, slots, -1)[:, None])
        padding = self._there(empty[:, None, :, None]) if empty.any() else None
        return Step(self._there(write.ravel()), read, pages, held, visible(pos, held, True), padding)

    def _pages(self, rows: list[int]) -> tuple[Ints, Tensor, Tensor]:
        """The pages of rows (B, n), and how to read them; the same as in the last step unless a table changed."""
        key = (self.table.changes, self.table.blocks, *(self.rows[row] for row in rows))
        if self._index is None or self._index[0] != key:
            tables = [self.table.tables[self.rows[row]] for row in rows]
            n = max(1, *map(len, tables), 1)
            pages = np.array([[page + 1 for page in t] + [0] * (n - len(t)) for t in tables])
            K = self.layers[0].k.size(1)
            read = (pages[:, None] * K + np.arange(K)[:, None]).ravel()
            self._index = key, (pages, self._there(pages), self._there(read))
        return self._index[1]

    def _there(self, x: Ints | Truths) -> Tensor:
        """On the device."""
        return torch.from_numpy(x).to(self.device)
