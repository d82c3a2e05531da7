"""What pages are worth: slots that stand empty, memory that beams and samples share, texts served in the same memory."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from polyhead.analysis.charts import Curve
from polyhead.cache.page_size import block_for, waste
from polyhead.errors import UserError
from polyhead.lab.catalogue import LAB, Bench, on_a_run
from polyhead.lab.clock import ratios
from polyhead.lab.result import Claim, Dots, Figure, Plot, Result, Table
from polyhead.lab.serving import BATCHES, PAGES, RESERVED, Served, serve, wishes
from polyhead.lab.sharing import Saved, Way, saved, ways
from polyhead.lab.subject import Subject, subject
from polyhead.lab.verdict import above, percent, said
from polyhead.lab.waste import when_full, while_growing

KWON = "Kwon et al., 2023 (PagedAttention)"
BLOCKS = (1, 2, 4, 8, 16, 32)
ROWS = 64  # in memory at once
MOST = 512  # tokens of a text that is served, where the model takes as many
ROOM = 4  # rows of the longest text that there is memory for
NEW = 60  # tokens a language model goes on for, if it takes twice as many
WASTE, NEAR = 0.04, 0.01
SAVED = {"beams": 0.376, "samples": 0.061}  # the least that Kwon et al. report


@LAB.register("paging")
@on_a_run
def paging(bench: Bench) -> Result:
    """KV memory in pages against rows reserved whole: empty slots, what beams and samples share, texts a second."""
    given = subject(bench)
    lengths = row_lengths(given)
    chosen = block_for(statistics.fmean(lengths))
    blocks = sorted({*BLOCKS, chosen})
    bench.say(f"{given.said}: {len(lengths):,} rows of {statistics.fmean(lengths):.1f} tokens on average")
    full = {block: when_full(lengths, block) for block in blocks}
    growing = {block: while_growing(lengths, block, ROWS) for block in blocks}
    new = min(bench.size(NEW, 4), given.run.config.max_len // 2)
    texts = fitting(given, new)[: bench.limit or bench.size(24, 2)]
    shared = {way: [saved(given.run, text, way, new_tokens=new) for text in texts] for way in ways(given.run)}
    bench.say(f"sharing measured on {len(texts)} texts; now they are served")
    most = min(MOST, given.run.config.max_len)
    asked = wishes(given, bench.limit or bench.size(128 if given.translates else 64, 4), most)
    served = serve(given.run.model, asked, bench.size(ROOM, 2), bench.size(5, 2))
    return Result(
        "Pages: what stands empty, and what is shared",
        "A service that reserves for every text the longest one there could be fills its memory with nothing. Pages of a few "
        f"tokens are taken as texts grow, and texts with one beginning hold it once. What does that save for {given.said}?",
        [*empty_claims(lengths, chosen, full, growing), *sharing_claims(shared), *serving_claims(served)],
        [*figures(lengths, chosen, full, growing, shared), *serving_figures(served)],
        f"{given.said[0].upper()}{given.said[1:]}. Empty slots are counted on the page table itself, for rows of the lengths of "
        f"{'targets' if given.references else 'lines'}, {ROWS} in memory at once; each grows by a token a step, and the next takes "
        f"the place of one that is complete. Sharing: {len(texts)} texts one at a time, decoded as the run decodes"
        f"{'' if given.translates else f', {new} new tokens each'}, with the block that the cache chooses; saved is the share of "
        f"pages that as many rows would hold if they had nothing in common.\n\nServing: {len(asked)} texts that all wait from the "
        f"beginning, {'each a source and as many tokens as its target has' if given.translates else 'lines, of which the first half is given and as many tokens as the second has are made'}, "
        f"{statistics.fmean(wish.length for wish in asked):.0f} on average in the cache. The memory is that of {served.memory.rows} "
        f"rows of the longest, {served.memory.longest} tokens: so many rows, or {served.memory.blocks} pages of "
        f"{served.memory.block}; where these run out, the youngest text gives way and is read anew. Rounds in turns, times "
        "of the processor if there is one thread; what is kept of sources is not counted.",
    )


def row_lengths(given: Subject) -> list[int]:
    """How many tokens a decoder holds at the end of each line or target: those of the text, and the begin."""
    texts = given.references or given.lines()
    found = [min(len(ids) + 1, given.run.config.max_len) for ids in given.run.tokenizer.target.encode(texts)]
    if not found:
        raise UserError("the text has no line that is not blank")
    return found


def fitting(given: Subject, new: int) -> list[str]:
    """The texts that are short enough to be decoded whole, or to be gone on from by so many new tokens."""
    texts = given.texts if given.translates else given.lines()
    most = given.run.config.max_len - (given.run.tokenizer.sides.most if given.translates else new + 1)
    kept = [
        text
        for text, ids in zip(texts, given.run.tokenizer.encode(texts), strict=True)
        if 0 < len(ids) <= most
    ]
    if not kept:
        raise UserError(f"no line of the text has at most {most} tokens, what this model can go on from")
    return kept


def empty_claims(
    lengths: Sequence[int], chosen: int, full: Mapping[int, float], growing: Mapping[int, float]
) -> list[Claim]:
    """What the literature says of empty slots."""
    mean = statistics.fmean(lengths)
    reserved = 1 - mean / max(lengths)
    off = max(full, key=lambda block: abs(full[block] - waste(block, mean)))
    return [
        Claim(
            "Rows that are reserved whole leave most of the memory empty.",
            f"{KWON}, section 3.1 and figure 2: 62 to 80 %, of a service that knows no lengths beforehand",
            f"Rows of {max(lengths):,} tokens, the longest of {len(lengths):,}, for {mean:.1f} on average: {in_percent(reserved)} "
            "empty (most: more than half).",
            reserved > 0.5,
        ),
        Claim(
            "Pages of the right size leave less than 4 % empty.",
            f"{KWON}, figure 2: 3.7 %",
            f"Pages of {chosen} tokens, chosen for {mean:.1f} tokens: {in_percent(full[chosen])} of full rows.",
            full[chosen] < WASTE,
        ),
        Claim(
            "They leave less than 4 % empty while the rows grow, too.",
            f"{KWON}, figure 2, of a service at work",
            f"{in_percent(growing[chosen])} over all steps with pages of {chosen}; with pages of 16, as there, {in_percent(growing[16])}.",
            growing[chosen] < WASTE,
        ),
        Claim(
            "A row wastes half a page less half a slot: of L tokens ((b-1)/2) / (L + (b-1)/2).",
            "by counting, for lengths that end anywhere in a page",
            f"Off by at most {100 * abs(full[off] - waste(off, mean)):.2f} points, at pages of {off}: {in_percent(full[off])}, by the "
            f"formula {in_percent(waste(off, mean))} (as said: within {100 * NEAR:.0f} point).",
            abs(full[off] - waste(off, mean)) <= NEAR,
        ),
    ]


def sharing_claims(shared: Mapping[Way, Sequence[Saved]]) -> list[Claim]:
    """What the literature says of sharing."""
    sentences = {
        "beams": "Beam search holds at least 38 % less, for its beams share their beginnings.",
        "samples": "Parallel samples hold at least 6 % less, for they share the prompt.",
    }
    most = {"beams": "37.6 to 55.2 % on short instructions, up to 66 % on conversations",
            "samples": "6.1 to 9.8 % on short instructions, up to 30 % on conversations"}  # fmt: skip
    return [
        Claim(
            sentences[way.what].replace("Parallel samples", f"{way.n} parallel samples"),
            f"{KWON}, section 6.3: {most[way.what]}",
            f"{way}: {percent([s.peak for s in found])} at the peak, {percent([s.mean for s in found])} "
            f"over all steps; at the peak at most {in_percent(max(s.peak for s in found))}, at least {in_percent(min(s.peak for s in found))}.",
            above([s.peak for s in found], SAVED[way.what]),
        )
        for way, found in shared.items()
    ]


def serving_claims(served: Served) -> list[Claim]:
    """What the literature says of serving."""
    batches, reserved, pages = (served.seconds[how] for how in (BATCHES, RESERVED, PAGES))
    paged, joining = ratios(reserved, pages), ratios(batches, reserved)
    more = served.rows[PAGES] / served.rows[RESERVED]
    return [
        Claim(
            "In the same memory pages hold more than twice as many texts at once.",
            f"{KWON}, section 6.2 and figure 13: 2.2 times rows reserved for their own lengths, 4.3 times rows for the longest",
            f"{served.rows[PAGES]:.1f} texts are given a token in a step, on average, against {served.rows[RESERVED]:.1f}: {more:.2f} times.",
            more > 2,
        ),
        Claim(
            "In the same memory pages serve more tokens a second than reserved rows.",
            f"{KWON}, abstract: 2 to 4 times, on GPUs whose time a larger batch hardly costs",
            f"{said(paged)} times as many as rows reserved for the longest.",
            above(paged, 1.0),
        ),
        Claim(
            "Texts that join and leave at every step are served faster than batch after batch.",
            "Yu et al., 2022 (Orca), section 6",
            f"{said(joining)} times as many tokens a second with the same reserved rows, of which "
            f"{served.rows[RESERVED]:.1f} against {served.rows[BATCHES]:.1f} are at work.",
            above(joining, 1.0),
        ),
    ]


def serving_figures(served: Served) -> list[Dots | Table]:
    """Tokens a second, and texts at once."""
    speed = {how: [served.tokens / t for t in seconds] for how, seconds in served.seconds.items()}
    base = served.seconds[BATCHES]
    return [
        Dots("Tokens served a second", "tokens/s", speed, "A small dot a round; the same texts in the same memory."),
        Table(
            "Serving",
            ("rows and schedule", "texts at once", "tokens/s", "times batch after batch"),
            [
                (how, f"{served.rows[how]:.1f}", f"{statistics.fmean(speed[how]):,.0f}",
                 said(ratios(base, seconds)))
                for how, seconds in served.seconds.items()
            ],
        ),
    ]  # fmt: skip


def figures(
    lengths: Sequence[int], chosen: int, full: Mapping[int, float], growing: Mapping[int, float], shared: Mapping[Way, Sequence[Saved]]
) -> list[Figure]:  # fmt: skip
    """Plots and tables of empty slots and of sharing."""
    mean = statistics.fmean(lengths)
    return [
        Plot(
            "Empty slots by the size of pages",
            "tokens of a page",
            [
                Curve("full rows", [(b, 100 * share) for b, share in full.items()]),
                Curve("by the formula", [(b, 100 * waste(b, mean)) for b in full]),
                Curve("while rows grow", [(b, 100 * share) for b, share in growing.items()]),
            ],
            "Percent of the slots of pages that are held.",
            log=True,
            from_zero=True,
        ),
        Dots(
            "Memory that sharing saves at the peak",
            "percent",
            {str(way): [100 * s.peak for s in found] for way, found in shared.items()},
            "A small dot a text.",
        ),
        Table(
            "Empty slots",
            ("tokens of a page", "full rows", "by the formula", "while rows grow"),
            [
                (f"{b}{' (chosen)' if b == chosen else ''}", in_percent(full[b]), in_percent(waste(b, mean)), in_percent(growing[b]))
                for b in full
            ],
            f"{len(lengths):,} rows of {min(lengths)} to {max(lengths)} tokens, {mean:.1f} on average. Reserved for the longest, "
            f"{in_percent(1 - mean / max(lengths))} would stand empty.",
        ),
        Table(
            "Sharing",
            ("decoding", "pages of", "saved at the peak", "saved over all steps", "most", "least"),
            [
                (str(way), "-".join(str(b) for b in sorted({min(s.block for s in found), max(s.block for s in found)})),
                 in_percent(statistics.fmean(s.peak for s in found)), in_percent(statistics.fmean(s.mean for s in found)),
                 in_percent(max(s.peak for s in found)), in_percent(min(s.peak for s in found)))
                for way, found in shared.items()
            ],
        ),
    ]  # fmt: skip


def in_percent(share: float) -> str:
    """A share of one as a percentage: ``3.4 %``."""
    return f"{100 * share:.1f} %"
