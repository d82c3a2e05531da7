"""Requests that are decoded together: they join and leave at every step, and their rows fork, move and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from traceback import clear_frames
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyhead.cache.base import Cache, KnownBeginnings
from polyhead.generate.decoder import Decoder, Ints
from polyhead.generate.padding import following, pad
from polyhead.generate.request import Request
from polyhead.generate.shortlist import Narrow, Shortlist
from polyhead.nn.kv import Memory


class Member:
    """A request with rows in the cache. One row reads what all begin with, each reads its rest, then they go on."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.held = [0]  # tokens that each row holds, which is the position of the next
        self.due = [request.text(0)[: request.shared]]  # those that it must still read before it goes on
        self.parted = False  # whether all rows are there
        self.suggested: Ints = np.empty(0, np.int64)  # by its source, where nothing else shall be said

    @property
    def unread(self) -> int:
        """Tokens that are still to be read."""
        return sum(map(len, self.due))

    @property
    def ready(self) -> bool:
        """Whether every row holds all of its text but the newest token."""
        return self.parted and not self.unread

    def newest(self, row: int) -> int:
        """The last token of a row, which no row has read."""
        new = self.request.search.rows[row]
        return new[-1] if new else self.request.prompt[-1]


class Met(NamedTuple):
    """What requests bring into a batch: what the encoder made of their sources, and what these suggest."""

    memory: list[Memory]
    suggested: list[Ints]


class Batch:
    """A cache and the requests that have rows in it: those of one after those of the other."""

    def __init__(self, model: Decoder, cache: Cache, share: bool, shortlist: Shortlist | None = None) -> None:
        self.model, self.cache, self.device = model, cache, model.cache_shape.device
        self.shortlist = shortlist  # what sources suggest, if nothing else shall be said
        self.narrow: Narrow | None = None  # the head for the members that came last, and those before
        self.encode: Any = getattr(model, "encode", None)
        self.head: Any = getattr(model, "head", None)
        self.known = cache if share and self.encode is None and isinstance(cache, KnownBeginnings) else None
        self.members: list[Member] = []  # in the order they came
        self.memory: list[Memory] | None = None  # what the members read of their sources, a row each

    def meet(self, requests: Sequence[Request]) -> Met:
        """The sources of requests that will join, read together; nothing of the batch is touched."""
        if self.encode is None:
            return Met([], [])
        sources = [request.source or [] for request in requests]
        memory: list[Memory] = self.encode(*pad(sources, 0, self.device))
        if self.shortlist is None:
            return Met(memory, [])
        return Met(memory, [self.shortlist.of(one.source or [], one.search.forced) for one in requests])

    def join(self, requests: Sequence[Request], met: Met) -> None:
        """Requests that begin, or begin anew, whose sources were read."""
        first, new = len(self._rows()), [Member(request) for request in requests]
        self.members += new  # whatever fails from here on, they are among those that it concerns
        self.cache.add(len(new))
        for row, member in enumerate(new, first):
            if self.known is not None and member.unread:
                member.held = [self.known.reuse(row, member.due[0])]
                member.due = [member.due[0][member.held[0] :]]
                if member.request.reused is None:
                    member.request.reused = member.held[0]
        if self.encode is not None:
            pairs = zip(self.memory, met.memory, strict=True) if self.memory is not None else ()
            joined = [old.join(added) for old, added in pairs] or met.memory
            self.memory = [memory.kept() for memory in joined]
        if self.shortlist is not None:
            for member, suggested in zip(new, met.suggested, strict=True):
                member.suggested = suggested
            self.narrow = Narrow(self.head, {member: member.suggested for member in self.members})
        self._part()

    def leave(self, members: Sequence[Member]) -> None:
        """Members that have ended, or give way to others: their rows are free."""
        self._arrange({member: [] for member in members})

    def close(self, error: Exception) -> None:
        """Hold nothing any more, nor let the error: it knows the frames it went through, and lives as long as a request does."""
        clear_frames(error.__traceback__)
        self.members, self.memory, self.narrow = [], None, None
        del self.cache, self.known

    def drop(self, member: Member) -> None:
        """Give up the rows that its search has dropped."""
        if member.parted:
            self._arrange({member: member.request.search.origins})

    def read(self, budget: int) -> None:
        """So many known tokens more at most, shared out evenly: a long text does not keep short ones waiting."""
        due = [(row, member, i) for row, (member, i) in enumerate(self._rows()) if member.due[i]][:budget]
        if not due:
            return
        most = budget // len(due)
        chunks = [member.due[i][:most] for _, member, i in due]
        tokens, at = following(chunks, [member.held[i] for _, member, i in due], self.device)
        self.cache.begin([row for row, _, _ in due], at)
        self.model.read(tokens, at, self.cache, self._memory_of([member for _, member, _ in due]))
        for (_, member, i), chunk in zip(due, chunks, strict=True):
            member.held[i] += len(chunk)
            member.due[i] = member.due[i][len(chunk) :]
        self._part()

    def groups(self) -> list[list[Member]]:
        """Those that are ready, in groups that step together: all, or where sources are read, those of equal width."""
        ready = [member for member in self.members if member.ready]
        if self.encode is None:
            return [ready] if ready else []
        ready.sort(key=lambda member: len(member.held))
        return [list(group) for _, group in groupby(ready, key=lambda member: len(member.held))]

    def step(self, group: Sequence[Member]) -> list[Member]:
        """One token more for each row of a group; members that have ended by it are gone, and come back."""
        chosen = set(group)
        group = [member for member in self.members if member in chosen]
        rows = [(row, member, i) for row, (member, i) in enumerate(self._rows()) if member in chosen]
        newest, held = zip(*((member.newest(i), member.held[i]) for _, member, i in rows), strict=True)
        tokens, pos = torch.from_numpy(np.array([newest, held])[:, :, None]).to(self.device).unbind()
        self.cache.begin([row for row, _, _ in rows], pos)
        given = tokens, pos, self.cache, self._memory_of(group)
        if self.narrow is None:
            logits = self.model.decode(*given)[:, -1]
        else:
            logits = self.narrow.logits(self.model.read(*given)[:, -1], group)
        for row, member, i in rows:
            member.held[i] += 1
            if self.known is not None and member.held[i] % self.cache.grain == 0:
                self.known.publish(row, member.request.text(i))
        self._choose(group, logits)
        ended = [member for member in group if member.request.search.error or not member.request.search.rows]
        self._arrange({member: [] if member in ended else member.request.search.origins for member in group})
        return ended

    def _choose(self, group: Sequence[Member], logits: Tensor) -> None:
        """Show every rule the logits of its requests."""
        ends = list(accumulate(len(member.held) for member in group))
        rules = {member.request.search.rule: None for member in group}
        for rule in rules:
            own = [i for i, member in enumerate(group) if member.request.search.rule is rule]
            if len(rules) > 1:
                rows = [row for i in own for row in range(ends[i] - len(group[i].held), ends[i])]
                some = logits[torch.tensor(rows, device=self.device)]
                rule.advance([group[i].request.search for i in own], some, self.narrow)
            else:
                rule.advance([member.request.search for member in group], logits, self.narrow)

    def _part(self) -> None:
        """Where one row has read what all begin with, all rows go on from it."""
        parting: dict[Member, list[int]] = {}
        for row, (member, _) in enumerate(self._rows()):
            if not member.parted and not member.unread:
                if self.known is not None and member.held[0]:
                    self.known.publish(row, member.request.text(0)[: member.held[0]])
                member.parted = True
                parting[member] = [0 for _ in member.request.search.rows]
        self._arrange(parting)
        for member, rows in parting.items():
            member.due = [member.request.text(row)[member.held[row] : -1] for row in range(len(rows))]

    def _arrange(self, origins: Mapping[Member, Sequence[int]]) -> None:
        """Each of these members goes on with these of its rows, one maybe several times; without rows it is gone."""
        if all(list(kept) == list(range(len(member.held))) for member, kept in origins.items()):
            return
        rows: list[int] = []
        first = 0
        for member in self.members:
            kept, held = origins.get(member), member.held
            rows += [first + i for i in (range(len(held)) if kept is None else kept)]
            if kept is not None:
                member.held, member.due = [held[i] for i in kept], [member.due[i] for i in kept]
            first += len(held)
        if rows != list(range(first)):
            self.cache.select(rows)
        staying = [i for i, member in enumerate(self.members) if member.held]
        if len(staying) < len(self.members):
            if self.memory is not None:
                index = torch.tensor(staying, device=self.device)
                self.memory = [memory.select(index) for memory in self.memory] if staying else None
            self.members = [self.members[i] for i in staying]

    def _rows(self) -> list[tuple[Member, int]]:
        """Whose row each row of the cache is, and which of theirs."""
        return [(member, i) for member in self.members for i in range(len(member.held))]

    def _memory_of(self, members: Sequence[Member]) -> list[Memory] | None:
        """What these read of their sources, a row for each."""
        if self.memory is None or list(members) == self.members:
            return self.memory
        number = {member: i for i, member in enumerate(self.members)}
        index = torch.tensor([number[member] for member in members], device=self.device)
        return [memory.select(index) for memory in self.memory]
