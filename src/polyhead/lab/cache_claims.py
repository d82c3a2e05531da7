"""What the literature says of caches, held against what they did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from polyhead.lab.clock import ratios
from polyhead.lab.divergence import Found
from polyhead.lab.policies import EXACT, FIFTH, Policy
from polyhead.lab.result import Claim
from polyhead.lab.verdict import above, all_of, below, interval, less, said, within

ROUNDING = 1e-7  # nats a token
NEARLY = 0.01  # more perplexity that still is nearly none
EVICTING = ("window+sink", "window", "h2o", "subgen", "low rank")

Founds = Mapping[str, Found]


def claims(chosen: Sequence[Policy], found: Founds, plain: Found) -> list[Claim]:
    """All that can be said of the caches that this model took."""
    names = set(found)
    made = [exact(found, [policy.name for policy in chosen if policy.family in (*EXACT, "state")])]
    if "8 bits" in names:
        made += bits(chosen, found, plain)
    if "h2o 1/4" in names:
        made += hitters(found, plain)
    if {"window 1/4", "window+sink 1/4"} <= names:
        made += windows(found, plain)
    if "subgen 1/4" in names:
        made.append(clusters(found))
    if "low rank 3/5" in names:
        made.append(ranks(found, plain))
    if "h2o 1/8" in names and "static" in names:
        made += speed(found)
    return made


def exact(found: Founds, names: Sequence[str]) -> Claim:
    """Of the caches that keep everything."""
    worst = max(max(found[name].kl) for name in names)
    same = min(min(found[name].same) for name in names)
    return Claim(
        "A cache that keeps everything gives what the model gives without a cache, however it lays things out.",
        "Kwon et al., 2023, section 4, for pages; by construction for the others",
        f"{', '.join(names)}: the divergence of a text is {worst:.1g} nats a token at most (rounding: up to {ROUNDING:.0e}), the "
        f"likeliest token is the same in {100 * same:.2f} % of places at least.",
        worst <= ROUNDING,
    )


def bits(chosen: Sequence[Policy], found: Founds, plain: Found) -> list[Claim]:
    """Of numbers with fewer bits."""
    eight, four = (change(found[name], plain) for name in ("8 bits", "4 bits"))
    tenth = math.log1p(0.1 / plain.perplexity)
    size = found["4 bits"].memory
    assert size is not None
    rivals = {
        p.name: found[p.name] for p in chosen if p.family in EVICTING and peak(found[p.name]) >= size.peak
    }
    best = min(rivals, key=lambda name: fmean(rivals[name].kl), default=None)
    return [
        Claim(
            "Eight bits a number lose nothing that can be measured.",
            "taken for granted by Liu et al., 2024 (KIVI), and Hooper et al., 2024 (KVQuant), who go to 2 and 3 bits",
            f"Perplexity {worse(eight)}, divergence {fmean(found['8 bits'].kl):.2g} nats a token (nothing: within 0.1 % of the "
            "perplexity).",
            within(eight, 0.0, 0.001),
        ),
        Claim(
            "Four bits cost less than 0.1 of perplexity.",
            "Hooper et al., 2024 (KVQuant), abstract: so at 3 bits, with numbers spaced unevenly",
            f"Perplexity {found['4 bits'].perplexity:.4g} against {plain.perplexity:.4g}: {worse(four)}.",
            below(four, tenth),
        ),
        Claim(
            "Fewer bits are better than fewer tokens or directions, at equal bytes.",
            "not said there; asked here",
            f"4 bits: {fmean(found['4 bits'].kl):.2g} nats a token; "
            + ("no other lossy cache holds as many bytes." if best is None else f"the best that holds as many bytes, {best}: {fmean(rivals[best].kl):.2g}."),
            None if best is None else less(found["4 bits"].kl, rivals[best].kl),
        ),
    ]  # fmt: skip


def hitters(found: Founds, plain: Found) -> list[Claim]:
    """Of heavy hitters, as H2O keeps them."""
    fifth, shares = f"h2o {FIFTH}", [share for share in ("1/2", "1/4", "1/8") if f"window {share}" in found]
    told = "; ".join(
        f"{share}: {fmean(found[f'h2o {share}'].kl):.2g} against {fmean(found[f'window {share}'].kl):.2g}"
        for share in shares
    )
    made = [
        Claim(
            "Heavy hitters and the newest tokens, a fifth of all, keep nearly all quality.",
            "Zhang et al., 2023 (H2O), abstract and section 5",
            f"Perplexity {found[fifth].perplexity:.4g} against {plain.perplexity:.4g}: {worse(change(found[fifth], plain))} (nearly "
            f"all: less than {100 * NEARLY:.0f} % more).",
            below(change(found[fifth], plain), math.log1p(NEARLY)),
        )
    ]
    if shares:
        made.append(
            Claim(
                "Heavy hitters are better than as many newest tokens.",
                "Zhang et al., 2023 (H2O), section 5, against a local cache",
                f"Divergence, nats a token, h2o against window at the same share, {told}.",
                all_of(less(found[f"h2o {share}"].kl, found[f"window {share}"].kl) for share in shares),
            )
        )
    return made


def windows(found: Founds, plain: Found) -> list[Claim]:
    """Of windows, with attention sinks and without."""
    alone, sink = "window 1/4", "window+sink 1/4"
    return [
        Claim(
            "When the first tokens leave, a plain window breaks.",
            "Xiao et al., 2023 (StreamingLLM), section 3.1 and figure 3",
            f"Perplexity {found[alone].perplexity:.4g} against {plain.perplexity:.4g} at a quarter of the tokens: "
            f"{worse(change(found[alone], plain))} (breaks: twice as much).",
            above(change(found[alone], plain), math.log(2)),
        ),
        Claim(
            "A few first tokens beside the window are better than as many newest ones.",
            "Xiao et al., 2023 (StreamingLLM), section 3.1 and table 1",
            f"Divergence at a quarter of the tokens {fmean(found[sink].kl):.2g} nats a token with first tokens, "
            f"{fmean(found[alone].kl):.2g} without.",
            less(found[sink].kl, found[alone].kl),
        ),
        Claim(
            "With them, the window keeps the perplexity.",
            "Xiao et al., 2023 (StreamingLLM), section 4.1, on texts far longer than any trained on",
            f"Perplexity {found[sink].perplexity:.4g} against {plain.perplexity:.4g} at a quarter of the tokens: "
            f"{worse(change(found[sink], plain))} (keeps: less than {100 * NEARLY:.0f} % more).",
            below(change(found[sink], plain), math.log1p(NEARLY)),
        ),
    ]


def clusters(found: Founds) -> Claim:
    """Of clusters of keys, as SubGen keeps them."""
    shares = ("1/2", "1/4", "1/8")
    rivals = [name for name in ("h2o", "window+sink") if f"{name} 1/4" in found]
    told = "; ".join(
        f"{share}: {fmean(found[f'subgen {share}'].kl):.2g} against "
        + " and ".join(f"{fmean(found[f'{name} {share}'].kl):.2g}" for name in rivals)
        for share in shares
    )
    return Claim(
        "Clusters of keys keep more than throwing tokens away, at the same budget.",
        "Zandieh et al., 2024 (SubGen), section 4, for retrieval from long texts",
        f"Divergence, nats a token, subgen against {' and '.join(rivals)}, {told}.",
        all_of(
            less(found[f"subgen {share}"].kl, found[f"{name} {share}"].kl)
            for share in shares
            for name in rivals
        ),
    )


def ranks(found: Founds, plain: Found) -> Claim:
    """Of fewer directions, as Eigen Attention keeps them."""
    name = "low rank 3/5"
    return Claim(
        "Two fifths of the width of keys and values can go at hardly any cost.",
        "Saxena et al., 2024 (Eigen Attention), abstract: up to 40 % of the cache",
        f"Perplexity {found[name].perplexity:.4g} against {plain.perplexity:.4g}: {worse(change(found[name], plain))} (hardly any: "
        f"less than {100 * NEARLY:.0f} % more).",
        below(change(found[name], plain), math.log1p(NEARLY)),
    )


def speed(found: Founds) -> list[Claim]:
    """Of the time that a step takes."""
    quick = {name: faster(found, name) for name in ("h2o 1/8", "window+sink 1/8") if name in found}
    made = [
        Claim(
            "Who keeps few tokens steps faster.",
            "Zhang et al., 2023 (H2O), section 5.2, with batches that fill a GPU; here batches and lengths are the same for all",
            "Against static: "
            + ", ".join(f"{name} {said(times)} times as fast" for name, times in quick.items())
            + ".",
            all_of(above(times, 1.0) for times in quick.values()),
        )
    ]
    if "4 bits" in found:
        times = faster(found, "4 bits")
        made.append(
            Claim(
                "Numbers of few bits make decoding faster.",
                "Liu et al., 2024 (KIVI), abstract, by larger batches; here batches are the same for all",
                f"4 bits: {said(times)} times as fast as static.",
                above(times, 1.0),
            )
        )
    return made


def faster(found: Founds, name: str) -> list[float]:
    """How many times as fast as the static cache, round by round."""
    return ratios(found["static"].seconds, found[name].seconds)


def change(one: Found, plain: Found) -> list[float]:
    """How many more nats a token each text costs than without a cache; long texts count for more, as in a perplexity."""
    usual = sum(plain.tokens) / len(plain.tokens)
    return [(a - b) * n / usual for a, b, n in zip(one.nll, plain.nll, plain.tokens, strict=True)]


def worse(changes: Sequence[float]) -> str:
    """Nats a token as a change of the perplexity."""
    found = interval(changes)
    if abs(found.mean) + found.half < ROUNDING:
        return "none"
    percent, half = 100 * math.expm1(found.mean), 100 * found.half
    return f"{percent:+.0f} ± {half:.2g} %" if abs(percent) >= 99.5 else f"{percent:+.2g} ± {half:.2g} %"


def peak(found: Found) -> int:
    """The most bytes that the cache held."""
    assert found.memory is not None
    return found.memory.peak
