"""Every way to keep what was read, at several budgets, for one model and texts of one length."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from polyhead.cache.base import CacheShape
from polyhead.cache.make import make_cache
from polyhead.errors import UserError
from polyhead.registry import Choice

HALVES = (Fraction(1, 2), Fraction(1, 4), Fraction(1, 8))
FIFTH = Fraction(1, 5)  # what H2O says is enough
RANKS = (Fraction(3, 5), *HALVES)  # the first: what Eigen Attention says is enough
SINK = 4  # first tokens that StreamingLLM keeps

EXACT = ("static", "growing", "paged")


class Policy(NamedTuple):
    """A cache, the family it belongs to, and which share of the length or width it keeps; 1 is all."""

    family: str
    share: Fraction
    choice: Choice

    @property
    def name(self) -> str:
        return self.family if self.share == 1 else f"{self.family} {self.share}"


def policies(shape: CacheShape, length: int, projection: Path | None) -> tuple[list[Policy], dict[str, str]]:
    """Those that serve this model with texts of ``length`` tokens, and why others do not; the plain one comes first."""
    if not shape.keyed:
        return [Policy("state", Fraction(1), Choice("state"))], {}
    group = 32 if length >= 128 else max(2, length // 8 * 2)
    found = [
        *(Policy(name, Fraction(1), Choice(name)) for name in EXACT),
        *(
            Policy(f"{bits} bits", Fraction(1), Choice("quantized", bits=bits, group=group))
            for bits in (8, 4)
        ),
        *(Policy("window+sink", share, window(part(length, share), True)) for share in HALVES),
        *(Policy("window", share, window(part(length, share), False)) for share in HALVES),
        *(
            Policy("h2o", share, heavy(part(length, share)))
            for share in sorted((*HALVES, FIFTH), reverse=True)
        ),
        *(Policy("subgen", share, Choice("subgen", budget=part(length, share))) for share in HALVES),
    ]
    if projection is not None:
        ranks = [(share, max(1, round(shape.head_dim * share))) for share in RANKS]
        found += [
            Policy("low rank", share, Choice("low_rank", rank=rank, projection=str(projection)))
            for share, rank in ranks
        ]
    kept, refused = [], dict[str, str]()
    for policy in found:
        try:
            make_cache(policy.choice, shape, 1, length)
        except UserError as error:
            refused[policy.name] = str(error)
        else:
            kept.append(policy)
    return kept, refused


def part(length: int, share: Fraction) -> int:
    """That share of a length in tokens, two at least."""
    return max(2, round(length * share))


def window(budget: int, sink: bool) -> Choice:
    """A window that keeps so many tokens; with a sink the first four are among them, of a small budget a quarter."""
    first = min(SINK, budget // 4) if sink else 0
    return Choice("window", window=budget - first, sink=first)


def heavy(budget: int) -> Choice:
    """H2O of so many tokens: half of them the newest, and no sink, as in the paper."""
    return Choice("h2o", budget=budget, recent=budget // 2, sink=0)
