"""Cache policies at several budgets, for one model and texts of one length."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from polyhead.cache.factory import make_cache
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.nn.cache import CacheShape

_HALVING_SHARES = (Fraction(1, 2), Fraction(1, 4), Fraction(1, 8))
H2O_SHARE = Fraction(1, 5)  # sufficient according to H2O
_RANK_SHARES = (Fraction(3, 5), *_HALVING_SHARES)  # the first is sufficient according to Eigen Attention
_SINK_TOKENS = 4  # attention sink tokens of StreamingLLM

EXACT_FAMILIES = ("static", "growing", "paged")


class Policy(NamedTuple):
    """A cache, its family, and the share of the length or width that it keeps; 1 is all."""

    family: str
    share: Fraction
    choice: Choice

    @property
    def name(self) -> str:
        return self.family if self.share == 1 else f"{self.family} {self.share}"


def select_policies(
    shape: CacheShape, length: int, projection: Path | None
) -> tuple[list[Policy], dict[str, str]]:
    """Policies that support this model and texts of ``length`` tokens, and the errors of all others.

    The first one is the plain cache that others are compared with.
    """
    if not shape.kv_layers:
        return [Policy("state", Fraction(1), Choice("state"))], {}
    group = 32 if length >= 128 else max(2, length // 8 * 2)
    candidates = [
        *(Policy(name, Fraction(1), Choice(name)) for name in EXACT_FAMILIES),
        *(
            Policy(f"{bits} bits", Fraction(1), Choice("quantized", bits=bits, group=group))
            for bits in (8, 4)
        ),
        *(
            Policy("window+sink", share, make_window_choice(scale_budget(length, share), True))
            for share in _HALVING_SHARES
        ),
        *(
            Policy("window", share, make_window_choice(scale_budget(length, share), False))
            for share in _HALVING_SHARES
        ),
        *(
            Policy("h2o", share, make_h2o_choice(scale_budget(length, share)))
            for share in sorted((*_HALVING_SHARES, H2O_SHARE), reverse=True)
        ),
        *(
            Policy("subgen", share, Choice("subgen", budget=scale_budget(length, share)))
            for share in _HALVING_SHARES
        ),
        *(
            Policy(
                "subgen sampled",
                share,
                Choice("subgen", budget=max(4, scale_budget(length, share)), values="sampled"),
            )
            for share in _HALVING_SHARES
        ),
    ]
    if projection is not None:
        ranks = [(share, max(1, round(shape.head_dim * share))) for share in _RANK_SHARES]
        candidates += [
            Policy("low rank", share, Choice("low_rank", rank=rank, projection=str(projection)))
            for share, rank in ranks
        ]
    supported, refused = [], dict[str, str]()
    for policy in candidates:
        try:
            make_cache(policy.choice, shape, 1, length)
        except UserError as error:
            refused[policy.name] = str(error)
        else:
            supported.append(policy)
    return supported, refused


def scale_budget(length: int, share: Fraction) -> int:
    """``share`` of ``length`` in tokens, at least two."""
    return max(2, round(length * share))


def make_window_choice(budget: int, sink: bool) -> Choice:
    """Window cache of ``budget`` tokens; with ``sink`` they include the first four, or a quarter if fewer."""
    first = min(_SINK_TOKENS, budget // 4) if sink else 0
    return Choice("window", window=budget - first, sink=first)


def make_h2o_choice(budget: int) -> Choice:
    """H2O cache of ``budget`` tokens: half of them the newest, and no sink, as in the paper."""
    return Choice("h2o", budget=budget, recent=budget // 2, sink=0)
