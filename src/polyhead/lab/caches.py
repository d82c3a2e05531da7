"""What each cache costs, and what it changes: on one's own model and text, or on a small one of the lab."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

from polyhead.analysis.charts import Curve
from polyhead.analysis.metrics import bleu
from polyhead.cache.low_rank import fit_low_rank
from polyhead.lab.cache_claims import ROUNDING, Founds, change, claims, peak, worse
from polyhead.lab.catalogue import LAB, Bench, on_a_run
from polyhead.lab.clock import ratios
from polyhead.lab.divergence import ROWS, Found, divergence, equal_tokens, goes_on
from polyhead.lab.policies import Policy, policies
from polyhead.lab.result import Claim, Figure, Front, Plot, Result, Table
from polyhead.lab.rows import Rows, rows
from polyhead.lab.subject import Subject, subject
from polyhead.lab.verdict import above, all_of, said
from polyhead.nn.loss import IGNORED

LONGEST = 512  # tokens of a window, where the model takes as many
PLACES = 24  # points of a curve
QUARTER = ("4 bits", "window+sink 1/4", "window 1/4", "h2o 1/4", "subgen 1/4", "low rank 1/4")


@LAB.register("caches")
@on_a_run
def caches(bench: Bench) -> Result:
    """Every KV cache at several budgets: divergence from the full one, bytes, speed; on your model and text."""
    given = subject(bench)
    model: Any = given.run.model
    width = min(bench.size(LONGEST, 48), given.run.config.max_len)
    n = bench.limit or bench.size(128 if given.translates else 16, 2)
    read = rows(given, 2 * n, width)
    held = len(read.read) // 2  # for the directions of low rank, which must not know what is measured
    fit, read = read.some(slice(0, held)), read.some(slice(held, None))
    length = width if not given.translates else round(fmean((read.wanted != IGNORED).sum(1).tolist()))
    with tempfile.TemporaryDirectory() as place:
        projection = fitted(model, fit, (bench.out or Path(place)) / "caches-low-rank.safetensors")
        chosen, refused = policies(model.cache_shape, length, projection)
        texts, each = read.read.shape
        bench.say(f"{given.said}: {len(chosen)} caches, {texts} texts of up to {each} tokens, token by token")
        found, plain = divergence(model, chosen, read)
        bench.say("stepped through the text; now they say something of their own")
        if given.translates:
            spoken, scores = translations(given, chosen, held, len(read.read))
        else:
            spoken, scores = continuations(model, chosen, read), {}
    made = claims(chosen, found, plain)
    made += quality(given, spoken, scores) if "8 bits" in found else []
    return Result(
        "Caches: what they cost, and what they change",
        f"What a model has read it keeps as keys and values, token by token. A cache may keep fewer of them, or keep them more "
        f"coarsely. How far does {given.said} depart from itself then, and for how many bytes?",
        made,
        [
            *figures(chosen, found, texts),
            numbers(given, chosen, found, plain, spoken, scores),
            *refusals(refused),
        ],
        method(given, read, fit, length, bool(projection)),
    )


def fitted(model: Any, fit: Rows, path: Path) -> Path | None:
    """The directions of keys and values over the texts that are not measured, or none for a model without them."""
    shape = model.cache_shape
    if not shape.keyed:
        return None
    source = None if fit.source is None else (fit.source, fit.source_pos)
    rank = min(max(shape.head_dim, shape.v_dim), int((fit.pos >= 0).sum()))
    fit_low_rank(model, fit.read, rank, path, pos=fit.pos, source=source)
    return path


def continuations(model: Any, chosen: Sequence[Policy], read: Rows) -> dict[str, list[float]]:
    """Share of equal tokens with the plain cache, where each goes on from half a window for a quarter of one."""
    half, new = read.read.size(1) // 2, max(1, read.read.size(1) // 4)
    outputs = {
        policy.name: [
            tokens
            for batch in read.batches(ROWS)
            for tokens in goes_on(model, policy.choice, batch.read[:, :half], new).tolist()
        ]
        for policy in chosen
    }
    first = outputs[chosen[0].name]
    return {name: equal_tokens(first, own) for name, own in outputs.items()}


def translations(
    given: Subject, chosen: Sequence[Policy], first: int, n: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Share of equal tokens with the plain cache where each translates by greedy search, and BLEU if there are references.

    Without them BLEU is against what the plain cache says.
    """
    some = slice(first, first + n)
    outputs = {
        policy.name: given.run.translate(
            given.texts[some],
            truncate=True,
            beam_size=1,
            cache={"name": policy.choice.name, **policy.choice.options},
        )
        for policy in chosen
    }
    ids = {name: given.run.tokenizer.target.encode(texts) for name, texts in outputs.items()}
    plain = chosen[0].name
    lang = given.run.recipe.data.target_lang if given.run.recipe else ""
    references = given.references[some] or outputs[plain]
    return (
        {name: equal_tokens(ids[plain], own) for name, own in ids.items()},
        {name: bleu(texts, references, lang).value for name, texts in outputs.items()},
    )


def quality(
    given: Subject, spoken: Mapping[str, Sequence[float]], scores: Mapping[str, float]
) -> list[Claim]:
    """What the model says of its own."""
    names = [name for name in ("8 bits", "h2o 1/5", "window+sink 1/4") if name in spoken]
    told = ", ".join(f"{name} {100 * fmean(spoken[name]):.1f} %" for name in names)
    if scores:
        told += "; BLEU " + ", ".join(f"{name} {scores[name]:.1f}" for name in ("static", *names))
    return [
        Claim(
            "A small divergence is a small change of what is said.",
            "implied wherever perplexity alone is given; asked here",
            f"Tokens of a greedy {'translation' if given.translates else 'continuation'} that are those of the full cache: {told} "
            "(small: 95 % for each). One other token changes all that follow.",
            all_of(above(spoken[name], 0.95) for name in names),
        )
    ]


def figures(chosen: Sequence[Policy], found: Founds, texts: int) -> list[Figure]:
    """Bytes against divergence, and where in a text it arises."""
    families = {
        family: [
            (p.name, peak(found[p.name]) / 1024 / min(ROWS, texts), fmean(found[p.name].kl)) for p in some
        ]
        for family, some in groupby(chosen, key=lambda policy: policy.family)
    }
    lines = [name for name in QUARTER if name in found] or list(found)
    return [
        Front(
            "Divergence against bytes",
            "KiB a text, at the most",
            "KL divergence, nats a token",
            families,
            "The grey steps join those that no other cache beats in both. At the lower end of the divergence stands who differs "
            "by no more than rounding.",
            ROUNDING,
        ),
        Plot(
            "Where in a text the divergence arises",
            "token",
            [Curve(name, by_place(found[name].by_place)) for name in lines],
            "Nats a token, means over the texts that reach so far and neighbouring places, at a quarter of the tokens or of the width; what is less than "
            f"{ROUNDING:.0e} is shown as that.",
        ),
    ]


def by_place(means: Tensor) -> list[tuple[float, float]]:
    """(token, mean divergence there), neighbours together."""
    size = -(-len(means) // PLACES)
    parts: list[Tensor] = list(means.split(size))
    return [
        (i * size + (len(part) + 1) / 2, max(float(part.mean()), ROUNDING)) for i, part in enumerate(parts)
    ]


def numbers(
    given: Subject, chosen: Sequence[Policy], found: Founds, plain: Found, spoken: Mapping[str, Sequence[float]], scores: Mapping[str, float]
) -> Table:  # fmt: skip
    """The table of all numbers, a line for each cache."""
    base = chosen[0].name
    head = ["cache", "KL, nats a token", "same likeliest token", "perplexity", "change", "said alike", *(["BLEU"] if scores else []),
            "KiB reserved", "KiB used", "KiB at the peak", "tokens/s", f"speed to {base}"]  # fmt: skip
    lines: list[list[str | float]] = []
    for policy in chosen:
        one, name = found[policy.name], policy.name
        assert one.memory is not None
        held = [f"{size / 1024:,.0f}" for size in (one.memory.reserved, one.memory.used, one.memory.peak)]
        ratio = ratios(found[base].seconds, one.seconds)
        lines.append(
            [name, said(one.kl) if fmean(one.kl) > ROUNDING else f"{fmean(one.kl):.0e}", f"{100 * fmean(one.same):.2f} %",
             f"{one.perplexity:.5g}", worse(change(one, plain)), f"{100 * fmean(spoken[name]):.1f} %",
             *([f"{scores[name]:.2f}"] if scores else []), *held, f"{one.speed:,.0f}", said(ratio)]
        )  # fmt: skip
    against = "references" if given.references else f"what {base} says"
    return Table(
        "All numbers", head, lines,
        f"Without a cache the perplexity is {plain.perplexity:.5g}. Said alike: tokens of a greedy output that are those of {base}."
        + (f" BLEU against {against}." if scores else "")
        + f" Bytes of a batch of {min(ROWS, len(plain.nll))} texts.",
    )  # fmt: skip


def refusals(refused: Mapping[str, str]) -> list[Table]:
    """Caches that this model cannot have."""
    if not refused:
        return []
    return [Table("Not for this model", ("cache", "why"), [(name, why) for name, why in refused.items()])]


def method(given: Subject, read: Rows, fit: Rows, length: int, projected: bool) -> str:
    """How it was done."""
    texts, each = read.read.shape
    kind = (
        f"{texts} pairs; the decoder is led through the {'references' if given.references else 'greedy translations'}, "
        f"{length} tokens on average, of which a budget of 1/4 keeps a quarter"
        if given.translates
        else f"{texts} windows of {each} tokens, side by side"
    )
    low = (
        f" Directions of low rank were fitted on the {len(fit.read)} texts of the file before these and lie beside this page "
        "(caches-low-rank.safetensors): cache: {name: low_rank, rank: 32, projection: FILE}."
        if projected
        else ""
    )
    return (
        f"{given.said[0].upper()}{given.said[1:]}: {kind}. Each token is fed alone, through every cache in turns, {ROWS} texts at "
        "a time; the reference of the divergence is the whole forward pass without a cache, KL(p whole ‖ p cached). An interval is "
        "the 95 % one over texts, of times over stretches of 16 steps; times are those of the processor if there is one thread.\n\nA window of 1/4 keeps the newest tokens of that share, "
        "with a sink the first 4 (of a budget under 16 a quarter) are among them; h2o keeps half of its budget for the newest and "
        "has no sink; subgen half for the newest; low rank keeps that share of the width of heads; bits are those of a number, in "
        f"groups of 32 tokens (of short texts fewer).{low} Bytes are those of the cache alone: what a step unpacks or projects "
        "back is not counted."
    )
