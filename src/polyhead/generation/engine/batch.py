"""The running batch: requests join and leave at every step; their rows fork, move and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from traceback import clear_frames
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyhead.core.array_types import Ints
from polyhead.generation.engine.request import Decoder, Request, pad_rows, start_step
from polyhead.generation.shortlist.shortlist import Shortlist, ShortlistHead
from polyhead.nn.cache import Cache, PrefixCache
from polyhead.nn.kv import EncoderMemory

MAX_GREEDY_STEPS, MAX_GREEDY_TOKENS = 16, 256  # of one call, during which no request joins or is cancelled
MAX_SPECULATIVE_ROWS = 4  # with more rows each draft token costs more time than the accepted ones save


class SequenceGroup:
    """A request with rows in the cache: one reads the common prefix, each reads its rest, then all decode.

    What is read in chunks ends with the last token, so that its features give the next one. A single last
    token of one row is not worth a chunk: it is read by the decoding step.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.cached_lens = [0]  # cached tokens of each row, which is the position of the next token
        # tokens of each row that are read in chunks
        self.pending = [request.visible_tokens(0)[: request.common_prefix_len]]
        # features of the last token of each row that was read in chunks: the next needs no decoding step
        self.last_features: list[Tensor | None] = [None]
        self.forked = False  # whether all rows exist
        self.shortlist_ids: Ints = np.empty(
            0, np.int64
        )  # output tokens allowed by its source, with a shortlist

    def skip_cached_prefix(self, cached_len: int) -> None:
        """Start after a cached prefix; the last token is read with the rest if all rows have the same."""
        self.cached_lens, self.pending = [cached_len], [self.pending[0][cached_len:]]
        if self.request.has_equal_rows and (self.pending[0] or len(self.request.state.rows) > 1):
            self.pending[0].append(self.last_token(0))

    def split_pending(self) -> None:
        """After the fork: each row reads its own rest."""
        rest = [
            self.request.visible_tokens(row)[cached_len:] for row, cached_len in enumerate(self.cached_lens)
        ]
        self.pending = [tokens if len(tokens) > 1 else [] for tokens in rest]
        if any(rest):
            self.last_features = [None] * len(rest)

    def last_token(self, row: int) -> int:
        """The last token of a row."""
        new = self.request.state.rows[row]
        return new[-1] if new else self.request.prompt[-1]


class EncodedSources(NamedTuple):
    """What requests add to a batch: the encoder memory of their sources, and their shortlists."""

    memory: list[EncoderMemory]
    shortlist_ids: list[Ints]


BatchRow = tuple[int, SequenceGroup, int]  # row of the cache, its member, and its number within the member


class DecodingBatch:
    """A cache and the requests that have rows in it, one after the other."""

    def __init__(
        self,
        model: Decoder,
        cache: Cache,
        share_prefixes: bool,
        shortlist: Shortlist | None = None,
        max_len: int = 2**62,
    ) -> None:
        self.model, self.cache, self.device = model, cache, model.cache_shape.device
        self.max_len = max_len
        self.shortlist = shortlist  # output tokens by source; None allows all
        self.shortlist_head: ShortlistHead | None = None  # for the current members
        self.encode: Any = model.encode
        self.prefix_cache = (
            cache if share_prefixes and self.encode is None and isinstance(cache, PrefixCache) else None
        )
        self.members: list[SequenceGroup] = []  # in the order of admission
        self.memory: list[EncoderMemory] | None = None  # encoder memory of the members, one row each

    def encode_sources(self, requests: Sequence[Request]) -> EncodedSources:
        """Encode the sources of requests that will join; the batch does not change."""
        sources = [request.source or [] for request in requests]
        memory: list[EncoderMemory] = self.encode(*pad_rows(sources, 0, self.device))
        if self.shortlist is None:
            return EncodedSources(memory, [])
        return EncodedSources(
            memory,
            [
                self.shortlist.select_ids(request.source or [], request.state.forced_tokens)
                for request in requests
            ],
        )

    def add_requests(self, requests: Sequence[Request], encoded: EncodedSources) -> None:
        """Add requests that start or restart, with their encoded sources."""
        first_row = len(self._rows_of(self.members))
        new_members = [SequenceGroup(request) for request in requests]
        self.members += new_members  # first, so that they are members if anything below fails
        self.cache.append_rows(len(new_members))
        for row, member in enumerate(new_members, first_row):
            cached_len = 0
            if self.prefix_cache is not None and member.pending[0]:
                cached_len = self.prefix_cache.match_prefix(row, member.pending[0])
                if member.request.num_cached_tokens is None:
                    member.request.num_cached_tokens = cached_len
            member.skip_cached_prefix(cached_len)
        if self.encode is not None:
            pairs = zip(self.memory, encoded.memory, strict=True) if self.memory is not None else ()
            memories = [old.cat_rows(added) for old, added in pairs] or encoded.memory
            self.memory = [memory.contiguous_for_decoding() for memory in memories]
        if self.shortlist is not None:
            for member, ids in zip(new_members, encoded.shortlist_ids, strict=True):
                member.shortlist_ids = ids
            self.shortlist_head = ShortlistHead(
                self.model.head,  # type: ignore[arg-type]  # a shortlist is for one model, not an ensemble
                {member: member.shortlist_ids for member in self.members},
            )
        self._fork_sequences()

    def remove(self, members: Sequence[SequenceGroup]) -> None:
        """Free the rows of members that have ended or are preempted."""
        self._reorder_rows({member: [] for member in members})

    def close(self, error: Exception) -> None:
        """Release everything, also the frames of the error: it lives as long as its requests."""
        clear_frames(error.__traceback__)
        self.members, self.memory, self.shortlist_head = [], None, None
        del self.cache, self.prefix_cache

    def prune(self, member: SequenceGroup) -> None:
        """Free the rows that the state of a member has dropped."""
        if member.forked:
            self._reorder_rows({member: member.request.state.parent_rows})

    def prefill(self, budget: int) -> None:
        """Read up to ``budget`` pending tokens."""
        pending_rows = [item for item in self._rows_of(self.members) if item[1].pending[item[2]]]
        if not pending_rows:
            return
        chunk_lens = self._split_budget([len(member.pending[i]) for _, member, i in pending_rows], budget)
        pending_rows = pending_rows[: len(chunk_lens)]
        chunks = [
            member.pending[i][:chunk_len]
            for (_, member, i), chunk_len in zip(pending_rows, chunk_lens, strict=True)
        ]
        cached_lens = [member.cached_lens[i] for _, member, i in pending_rows]
        inputs = start_step(self.cache, [row for row, _, _ in pending_rows], chunks, cached_lens, self.device)
        memory = self._memory_of([member for _, member, _ in pending_rows])
        features = self.model.decode_features(*inputs, self.cache, memory)
        ends = torch.tensor([len(chunk) - 1 for chunk in chunks], device=self.device)
        last_features = features[torch.arange(len(chunks), device=self.device), ends]
        for (_, member, i), chunk, last in zip(pending_rows, chunks, last_features, strict=True):
            member.cached_lens[i] += len(chunk)
            member.pending[i] = member.pending[i][len(chunk) :]
            member.last_features[i] = last
        self._fork_sequences()

    def _split_budget(self, pending_lens: Sequence[int], budget: int) -> list[int]:
        """How many tokens the first rows read in this step.

        A lossless cache shares the budget evenly: a long prompt does not delay short ones. What another cache
        keeps depends on how a text is cut, which must not depend on the others: a row reads as much as fits
        into the budget or waits, and the rows of a step fit into it with their padding.
        """
        if self.cache.lossless:
            n_rows = min(len(pending_lens), budget)
            return [budget // n_rows] * n_rows
        chunk_lens = [min(n, budget) for n in pending_lens]
        longest = accumulate(chunk_lens, max)
        n_rows = sum(n * padded_len <= budget for n, padded_len in enumerate(longest, 1))
        return chunk_lens[:n_rows]

    def ready_groups(self) -> list[list[SequenceGroup]]:
        """Members that are decoding, in groups that step together; with an encoder, of equal width."""
        groups: dict[tuple[bool, int], list[SequenceGroup]] = {}
        for member in self.members:
            if member.forked and not any(member.pending):
                has_features = member.last_features[0] is not None
                kind = has_features, 0 if self.encode is None else len(member.cached_lens)
                groups.setdefault(kind, []).append(member)
        return list(groups.values())

    def step(self, group: Sequence[SequenceGroup]) -> list[SequenceGroup]:
        """Decode one token for each row of a group; remove and return the members that have ended.

        Where the rows only continue with their most likely tokens, several steps are one call.
        """
        selected = set(group)
        group = [member for member in self.members if member in selected]
        if group[0].last_features[0] is not None:  # the last tokens were read in chunks
            features = torch.stack([x for member in group for x in member.last_features if x is not None])
            for member in group:
                member.last_features = [None] * len(member.cached_lens)
        elif drafts := self._draft_tokens(group):
            return self._step_with_drafts(group, drafts)
        elif self.model.decode_greedy is not None and self._decode_greedy(group):
            return self._remove_ended(group)
        else:
            features = self._read_last_tokens(group)
        if self.shortlist_head is None:
            self._sample(group, self.model.head(features))
        else:
            self._sample(group, self.shortlist_head.compute_logits(features, group))
        return self._remove_ended(group)

    def _read_last_tokens(self, group: Sequence[SequenceGroup]) -> Tensor:
        """Read the last token of each row of a group; the features (N, E) after it."""
        rows = self._rows_of(group)
        texts = [[member.last_token(i)] for _, member, i in rows]
        cached_lens = [member.cached_lens[i] for _, member, i in rows]
        inputs = start_step(self.cache, [row for row, _, _ in rows], texts, cached_lens, self.device)
        features = self.model.decode_features(*inputs, self.cache, self._memory_of(group))[:, -1]
        self._add_cached_tokens(rows)
        return features

    def _add_cached_tokens(self, rows: Sequence[BatchRow]) -> None:
        """Count one more token in each row, and insert full blocks into the prefix cache."""
        for row, member, i in rows:
            member.cached_lens[i] += 1
            if self.prefix_cache is not None and member.cached_lens[i] % self.cache.block_size == 0:
                self.prefix_cache.insert_prefix(row, member.request.visible_tokens(i))

    def _decode_greedy(self, group: Sequence[SequenceGroup]) -> bool:
        """Decode several greedy tokens for each row of a group in one call; False if that is impossible."""
        strategy = group[0].request.state.strategy
        if not self.cache.rewinds or self.shortlist_head is not None:
            return False
        if not hasattr(self.cache.layers[0], "slot_mapping"):  # slots that the kernels can address
            return False
        states = [member.request.state for member in group]
        if any(state.strategy is not strategy or len(state.rows) > 1 for state in states):
            return False
        plan = strategy.plan_greedy(states)
        if plan is None:
            return False
        cached_lens = [member.cached_lens[0] for member in group]
        n_steps = min(
            plan.n_steps, self.max_len - max(cached_lens), MAX_GREEDY_STEPS, MAX_GREEDY_TOKENS // len(group)
        )
        if n_steps < 2:
            return False
        tokens = torch.tensor([member.last_token(0) for member in group])
        pos = torch.tensor(cached_lens)[:, None] + torch.arange(n_steps)
        rows = [row for row, _, _ in self._rows_of(group)]
        self.cache.prepare_step(rows, pos)
        result = self.model.decode_greedy(
            tokens, pos, self.cache, self._memory_of(group), plan.banned_ids, plan.eos_ids
        )
        if result is None:
            return False
        ids, log_probs = result
        for row, member, new_ids in zip(rows, group, ids.T.tolist(), strict=True):
            old_len = member.cached_lens[0]
            member.cached_lens[0] += len(new_ids)
            if self.prefix_cache is not None:
                block_size = self.cache.block_size
                if member.cached_lens[0] // block_size > old_len // block_size:
                    text = [*member.request.visible_tokens(0), *new_ids[:-1]]
                    self.prefix_cache.insert_prefix(row, text)
        strategy.extend_greedy(states, ids, log_probs)
        return True

    def _draft_tokens(self, group: Sequence[SequenceGroup]) -> dict[SequenceGroup, Sequence[int]]:
        """Draft tokens of the members that have a drafter, in a small batch."""
        drafts: dict[SequenceGroup, Sequence[int]] = {}
        drafters = [(member, drafter) for member in group if (drafter := member.request.drafter) is not None]
        if not drafters or sum(len(member.cached_lens) for member in self.members) > MAX_SPECULATIVE_ROWS:
            return drafts
        for member, drafter in drafters:
            rows = member.request.state.rows
            if len(rows) != 1:
                continue
            cached_len = member.cached_lens[0]
            if cached_len != len(member.request.visible_tokens(0)) - 1:  # its next token needs no step
                continue
            # the last token is not drafted, and the beginning of the text stays visible
            room = min(member.request.state.max_new_tokens - len(rows[0]), self.max_len - cached_len) - 1
            if tokens := drafter.propose(rows[0], room):
                drafts[member] = tokens
        return drafts

    def _step_with_drafts(
        self, group: Sequence[SequenceGroup], drafts: Mapping[SequenceGroup, Sequence[int]]
    ) -> list[SequenceGroup]:
        """As ``step``; a member continues in the same step as long as its new token is the drafted one."""
        rows = self._rows_of(group)
        texts = [[member.last_token(i), *drafts.get(member, ())] for _, member, i in rows]
        cached_lens = [member.cached_lens[i] for _, member, i in rows]
        inputs = start_step(self.cache, [row for row, _, _ in rows], texts, cached_lens, self.device)
        logits = self.model.decode(*inputs, self.cache, None)
        matching, num_accepted = list(group), 0
        while matching:
            indices = [k for k, (_, member, _) in enumerate(rows) if member in matching]
            self._add_cached_tokens([rows[k] for k in indices])
            self._sample(matching, logits[torch.tensor(indices, device=self.device), num_accepted])
            matching = [
                member
                for member in matching
                if not member.request.state.error
                and member.request.state.rows
                and num_accepted < len(drafts.get(member, ()))
                and member.last_token(0) == drafts[member][num_accepted]
            ]
            num_accepted += 1
        return self._remove_ended(group)

    def _remove_ended(self, group: Sequence[SequenceGroup]) -> list[SequenceGroup]:
        """Select the rows with which the members continue; remove and return those that have ended."""
        states = {member: member.request.state for member in group}
        ended_members = [member for member, state in states.items() if state.error or not state.rows]
        self._reorder_rows(
            {member: [] if member in ended_members else state.parent_rows for member, state in states.items()}
        )
        return ended_members

    def _sample(self, group: Sequence[SequenceGroup], logits: Tensor) -> None:
        """Pass the logits to the strategies of the requests, once per strategy."""
        row_ends = list(accumulate(len(member.cached_lens) for member in group))
        strategies = {member.request.state.strategy: None for member in group}
        for strategy in strategies:
            indices = [i for i, member in enumerate(group) if member.request.state.strategy is strategy]
            if len(strategies) > 1:
                rows = [
                    row
                    for i in indices
                    for row in range(row_ends[i] - len(group[i].cached_lens), row_ends[i])
                ]
                group_logits = logits[torch.tensor(rows, device=self.device)]
                strategy.advance([group[i].request.state for i in indices], group_logits, self.shortlist_head)
            else:
                strategy.advance([member.request.state for member in group], logits, self.shortlist_head)

    def _fork_sequences(self) -> None:
        """Fork the row that has read the common prefix into all rows of its request."""
        parent_rows: dict[SequenceGroup, list[int]] = {}
        for row, member, _ in self._rows_of(self.members):
            if not member.forked and not member.pending[0]:
                if self.prefix_cache is not None and member.cached_lens[0]:
                    self.prefix_cache.insert_prefix(
                        row, member.request.visible_tokens(0)[: member.cached_lens[0]]
                    )
                member.forked = True
                parent_rows[member] = [0 for _ in member.request.state.rows]
        self._reorder_rows(parent_rows)
        for member in parent_rows:
            member.split_pending()

    def _reorder_rows(self, parent_rows: Mapping[SequenceGroup, Sequence[int]]) -> None:
        """Select the rows of each of these members, repeats allowed; a member without rows is removed."""
        if all(
            list(selection) == list(range(len(member.cached_lens)))
            for member, selection in parent_rows.items()
        ):
            return
        rows: list[int] = []
        first_row = 0
        for member in self.members:
            selection, cached_lens = parent_rows.get(member), member.cached_lens
            rows += [first_row + i for i in (range(len(cached_lens)) if selection is None else selection)]
            if selection is not None:
                member.cached_lens = [cached_lens[i] for i in selection]
                member.pending = [member.pending[i] for i in selection]
                member.last_features = [member.last_features[i] for i in selection]
            first_row += len(cached_lens)
        if rows != list(range(first_row)):
            self.cache.select(rows)
        remaining = [i for i, member in enumerate(self.members) if member.cached_lens]
        if len(remaining) < len(self.members):
            if self.memory is not None:
                index = torch.tensor(remaining, device=self.device)
                self.memory = [memory.select(index) for memory in self.memory] if remaining else None
            self.members = [self.members[i] for i in remaining]

    def _rows_of(self, group: Sequence[SequenceGroup]) -> list[BatchRow]:
        """The rows of these members."""
        owners = ((member, i) for member in self.members for i in range(len(member.cached_lens)))
        selected = set(group)
        return [(row, member, i) for row, (member, i) in enumerate(owners) if member in selected]

    def _memory_of(self, members: Sequence[SequenceGroup]) -> list[EncoderMemory] | None:
        """The encoder memory of these members, one row each."""
        if self.memory is None or list(members) == self.members:
            return self.memory
        number = {member: i for i, member in enumerate(self.members)}
        index = torch.tensor([number[member] for member in members], device=self.device)
        return [memory.select(index) for memory in self.memory]
