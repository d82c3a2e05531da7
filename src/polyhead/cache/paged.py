"""Paged KV cache: the tensor operations for the block tables of ``BlockManager``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np
import torch
from torch import Tensor

from polyhead.cache.block_manager import BlockManager, BlockStats, OutOfBlocksError, WriteSpan
from polyhead.cache.paged_layer import PagedLayer, PagedStepLayout, gather_pages
from polyhead.cache.row_cache import check_cache_len, check_tensor, check_tensor_names, read_lengths
from polyhead.core.array_types import Bools, Ints
from polyhead.core.errors import UserError
from polyhead.core.option_types import PositiveInt
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheMemory, CacheShape
from polyhead.nn.device import move_tensor
from polyhead.nn.kv import KV, visible

# default block size: large blocks waste slots at the end of a row, small ones need larger tables
MAX_WASTE = 0.04  # maximum share of wasted slots for the default block size
BLOCK_SIZES = (32, 16, 8, 4, 2)


@CACHE.register("paged")
class PagedCache:
    """Store keys and values in pages (blocks) of a few tokens, shared between rows and copied on write.

    Storage grows by pages as rows grow, so short rows do not pay for long ones. Beams and parallel samples
    store their common tokens once, and reordering them changes block tables, not keys. A packed model attends
    to the pages in place; any other model gathers them at every step. Decoding step by step gives the results
    of the full forward pass.

    Paper: Kwon et al., 2023, sec. 4
    When: beam search, parallel samples and serving, where memory is the limit; static is a little faster
    Recipe: generation: {cache: paged}
    Options:
      block_size: block size in tokens; default: the largest of 32, 16, 8, 4, 2 that wastes less than 4 % of
        the slots
      expected_len: expected tokens per row, for the default block size; default: half of the maximum length
      max_blocks: maximum number of pages; default: what all rows need at the maximum length
    """

    name = "paged"
    lossless, rewinds = True, True

    def __init__(
        self,
        shape: CacheShape,
        n_rows: int,
        max_len: int,
        *,
        block_size: PositiveInt | None = None,
        expected_len: PositiveInt | None = None,
        max_blocks: PositiveInt | None = None,
    ) -> None:
        if any(shape.states):
            raise UserError(
                "cache 'paged' stores keys and values in pages, but this model has a recurrent state: use "
                "cache 'state'"
            )
        self.max_len, self.max_blocks, self.device = max_len, max_blocks, shape.device
        self.block_size = block_size or choose_block_size(
            max(1, max_len // 2) if expected_len is None else expected_len
        )
        self.block_manager = BlockManager(self.block_size)
        self._seq_counter = count()
        self.seq_ids = [self._new_seq() for _ in range(n_rows)]  # the sequence id of each row
        # pages with non-finite numbers; layers refer to this set and not to the cache, to avoid a reference
        # cycle
        self._nonfinite_pages: set[int] = set()
        self._last_page_index: tuple[tuple[object, ...], tuple[Ints, Tensor, Tensor]] | None = None
        self.layers = [
            PagedLayer(self.block_size, shape, self._nonfinite_pages) for _ in range(shape.n_layers)
        ]

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    @property
    def num_rows(self) -> int:
        return len(self.seq_ids)

    def memory_usage(self) -> CacheMemory:
        """Bytes of all layers: used counts a shared token once, shared is what sharing saves."""
        usage, page_bytes = self.block_manager.block_stats(), sum(layer.page_bytes for layer in self.layers)
        used_bytes = usage.n_tokens * page_bytes // self.block_size
        shared_bytes = (usage.unshared_blocks - usage.used_blocks) * page_bytes
        return CacheMemory(self.nbytes, used_bytes, self.nbytes, shared_bytes)

    def block_stats(self) -> BlockStats:
        """Numbers of used, shared and wasted blocks, and the peak."""
        return self.block_manager.block_stats()

    def block_limit(self, n_rows: int) -> int:
        """Maximum number of pages for ``n_rows`` rows."""
        return n_rows * -(-self.max_len // self.block_size) if self.max_blocks is None else self.max_blocks

    def prepare_step(self, rows: Sequence[int], pos: Tensor) -> None:
        rows, host, pos = list(rows), pos.cpu().numpy(), move_tensor(pos, self.device)
        assert len(set(rows)) == len(host), f"{len(host)} rows of positions for rows {rows}"
        spans = self._write_spans(rows, host)
        n_needed = self.block_manager.blocks_needed(spans)
        n_missing = n_needed - self.block_manager.n_available
        # prefix blocks are evicted only when the page limit is reached
        if self.max_blocks is not None:
            n_missing = max(
                n_missing,
                min(n_needed - self.block_manager.n_free, self.max_blocks - self.block_manager.n_blocks),
            )
        if n_missing > 0:
            self._grow(n_missing)
        allocation = self.block_manager.allocate(spans, n_needed)
        dirty_pages = [
            page
            for page in allocation.new_blocks
            if page in self._nonfinite_pages or self.device.type != "cpu"
        ]
        self._nonfinite_pages -= {*dirty_pages, *(dst for _, dst in allocation.copies)}
        self._nonfinite_pages |= {dst for src, dst in allocation.copies if src in self._nonfinite_pages}
        for layer in self.layers if allocation.copies or dirty_pages else ():
            layer.copy_pages(allocation.copies)
            layer.clear_pages(dirty_pages)
        step = self._build_layout(rows, pos, host)
        for layer in self.layers:
            layer.step = step

    def free_tokens(self, extra_rows: int = 0) -> int:
        """Free pages in tokens, up to the page limit; free slots of partly filled pages are not counted."""
        rows = len(self.seq_ids) + extra_rows
        n_used = self.block_manager.n_blocks - self.block_manager.n_available
        return (
            max(0, min(self.block_limit(rows), rows * -(-self.max_len // self.block_size)) - n_used)
            * self.block_size
        )

    def append_rows(self, n: int) -> None:
        self.seq_ids += [self._new_seq() for _ in range(n)]

    def fork(self, src: int, dst: int) -> None:
        if src != dst:
            self.block_manager.release(self.seq_ids[dst])
            self.seq_ids[dst] = self._fork_seq(self.seq_ids[src])

    def release(self, row: int) -> None:
        self.block_manager.release(self.seq_ids[row])
        self.seq_ids[row] = self._new_seq()

    def select(self, rows: Sequence[int]) -> None:
        old_seq_ids, used_rows = self.seq_ids, set[int]()
        self.seq_ids = []
        for row in map(int, rows):  # the first use of a row keeps its sequence, further ones fork it
            self.seq_ids.append(self._fork_seq(old_seq_ids[row]) if row in used_rows else old_seq_ids[row])
            used_rows.add(row)
        for row, seq in enumerate(old_seq_ids):
            if row not in used_rows:
                self.block_manager.release(seq)

    def export_rows(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """The slots of each row in order, (rows, K, longest, D); rows that share pages have a copy each."""
        row_ids = [int(row) for row in rows]
        lengths = torch.tensor([self.block_manager.lengths[self.seq_ids[row]] for row in row_ids]).long()
        longest = max(lengths.tolist(), default=0)
        is_empty = (torch.arange(longest) >= lengths[:, None])[:, None, :, None].to(self.device)
        tensors = {"lengths": lengths}
        for i, layer in enumerate(self.layers):
            for name, x in (("k", layer.k), ("v", layer.v)):
                slots = x[:0, :, :0]
                if row_ids:
                    slots = gather_pages(self._index_pages(row_ids)[2], len(row_ids), x)[:, :, :longest]
                tensors[f"layers.{i}.{name}"] = slots.masked_fill(is_empty, 0)
        return tensors

    @torch.no_grad()
    def import_rows(self, tensors: Mapping[str, Tensor]) -> None:
        lengths = read_lengths(self.name, tensors, self.max_len)
        names = [(f"layers.{i}.k", f"layers.{i}.v") for i in range(len(self.layers))]
        check_tensor_names(self.name, tensors, {"lengths", *(name for pair in names for name in pair)})
        for layer, pair in zip(self.layers, names, strict=True):
            for name, x in zip(pair, (layer.k, layer.v), strict=True):
                expected = x.new_empty(0, x.size(1), max(lengths, default=0), x.size(3))
                check_tensor(self.name, name, tensors[name], expected, len(lengths))
        n_old = self.num_rows
        self.append_rows(len(lengths))
        if not any(lengths):
            return
        slots = torch.arange(max(lengths))
        pos = torch.where(slots < torch.tensor(lengths)[:, None], slots, -1).to(self.device)
        try:
            self.prepare_step(range(n_old, n_old + len(lengths)), pos)
        except OutOfBlocksError:
            self.select(range(n_old))
            raise
        for layer, (k, v) in zip(self.layers, names, strict=True):
            layer.update(KV(tensors[k].to(self.device), tensors[v].to(self.device)))

    def match_prefix(self, row: int, tokens: Sequence[int]) -> int:
        """Fill an empty row with cached pages of this token prefix; return the number of tokens matched."""
        return self.block_manager.admit(self.seq_ids[row], tokens)

    def insert_prefix(self, row: int, tokens: Sequence[int]) -> None:
        """Register the tokens of a row for ``match_prefix``, after the step that wrote them.

        Only valid if keys and values depend on these tokens alone: not in the decoder of an encoder-decoder.
        """
        self.block_manager.insert_prefix(self.seq_ids[row], tokens)

    def _new_seq(self) -> int:
        seq = next(self._seq_counter)
        self.block_manager.admit(seq)
        return seq

    def _fork_seq(self, src: int) -> int:
        seq = next(self._seq_counter)
        self.block_manager.fork(src, seq)
        return seq

    def _write_spans(self, rows: list[int], host_pos: Ints) -> list[WriteSpan]:
        """Positions that each row writes: they must be consecutive; padding may be anywhere."""
        spans = []
        for row, row_pos in zip(rows, host_pos.tolist(), strict=True):
            token_pos = [p for p in row_pos if p >= 0]
            start, end = (min(token_pos), max(token_pos) + 1) if token_pos else (0, 0)
            assert end - start == len(token_pos), (
                f"{len(token_pos)} positions from {start} to {end - 1} of row {row}"
            )
            check_cache_len(end, self.max_len)
            spans.append(WriteSpan(self.seq_ids[row], start, end))
        return spans

    def _grow(self, n: int) -> None:
        """Add n pages, or an eighth of the present number if that is more;
        OutOfBlocksError above the limit.
        """
        limit = self.block_limit(len(self.seq_ids))
        n_free = limit - self.block_manager.n_blocks
        if n > n_free:
            raise OutOfBlocksError(
                f"the step needs {n - n_free} pages of {self.block_size} tokens more than the {limit} of "
                "this cache: use more blocks, or decode fewer rows at once"
            )
        n = min(max(n, self.block_manager.n_blocks // 8), n_free)
        self.block_manager.grow(n)
        for layer in self.layers:
            layer.grow(n)

    def _build_layout(self, rows: list[int], pos: Tensor, host_pos: Ints) -> PagedStepLayout:
        """Slots of the new tokens, pages to read, positions. Padding is written to page 0 of the storage."""
        table, pages, read_pages = self._index_pages(rows)
        is_padding, K = host_pos < 0, self.layers[0].k.size(1)
        page, slot = np.divmod(np.where(is_padding, 0, host_pos), self.block_size)
        heads = table[np.arange(len(host_pos))[:, None], page][:, None] * K + np.arange(K)[:, None]
        write_slots = np.where(is_padding[:, None], 0, heads * self.block_size + slot[:, None])
        lengths = np.array([self.block_manager.lengths[self.seq_ids[row]] for row in rows])[:, None]
        slots = np.arange(table.shape[1] * self.block_size)
        slot_pos = self._to_device(np.where(slots < lengths, slots, -1)[:, None])
        padding = self._to_device(is_padding[:, None, :, None]) if is_padding.any() else None
        return PagedStepLayout(
            self._to_device(write_slots.ravel()),
            read_pages,
            pages,
            slot_pos,
            visible(pos, slot_pos, True),
            padding,
        )

    def _index_pages(self, rows: list[int]) -> tuple[Ints, Tensor, Tensor]:
        """Block table (B, n) of the rows on host and device, and page indices for the gather.

        The result of the last step is reused unless a block table changed.
        """
        key = (self.block_manager.version, self.block_manager.n_blocks, *(self.seq_ids[row] for row in rows))
        if self._last_page_index is None or self._last_page_index[0] != key:
            tables = [self.block_manager.block_tables[self.seq_ids[row]] for row in rows]
            n = max(1, *map(len, tables), 1)
            pages = np.array([[page + 1 for page in t] + [0] * (n - len(t)) for t in tables])
            K = self.layers[0].k.size(1)
            read_pages = (pages[:, None] * K + np.arange(K)[:, None]).ravel()
            self._last_page_index = key, (pages, self._to_device(pages), self._to_device(read_pages))
        return self._last_page_index[1]

    def _to_device(self, x: Ints | Bools) -> Tensor:
        return torch.from_numpy(x).to(self.device)


def estimate_waste(block_size: int, length: float) -> float:
    """Expected share of empty slots: half a block less half a slot at the end of each row, on average."""
    return (block_size - 1) / 2 / (length + (block_size - 1) / 2)


def choose_block_size(length: float) -> int:
    """The largest block size that wastes less than 4 % of the slots for rows of ``length`` tokens."""
    return next((block for block in BLOCK_SIZES if estimate_waste(block, length) < MAX_WASTE), 1)
