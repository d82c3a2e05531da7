"""Benefit of paged KV memory: empty slots, blocks shared by beams and samples, texts served."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from polyhead.cache.block_size import choose_block_size, estimate_waste
from polyhead.core.errors import UserError
from polyhead.lab.interleaved_timing import time_ratios
from polyhead.lab.page_sharing import SharingSavings, SharingSetup, list_setups, measure_sharing
from polyhead.lab.page_waste import measure_full_waste, measure_growing_waste
from polyhead.lab.registry import EXPERIMENTS, LabContext, mark_accepts_run
from polyhead.lab.result import Claim, DotPlot, ExperimentResult, Figure, LinePlot, ResultTable
from polyhead.lab.serving import (
    SCHEDULE_BATCHES,
    SCHEDULE_PAGES,
    SCHEDULE_RESERVED,
    ServingResult,
    make_requests,
    time_serving,
)
from polyhead.lab.statistics import format_mean, format_mean_percent, verdict_above
from polyhead.lab.test_model import ModelUnderTest, load_subject
from polyhead.viz.svg_charts import Curve

KWON = "Kwon et al., 2023 (PagedAttention)"
_BLOCK_SIZES = (1, 2, 4, 8, 16, 32)
_ACTIVE_ROWS = 64  # rows in memory at once
_MAX_TEXT_TOKENS = 512  # maximum tokens of a served text
_MEMORY_ROWS = 4  # memory budget, in rows of the longest text
_NEW_TOKENS = 60  # new tokens of a language model, at most half of its max_len
_MAX_WASTE, _TOLERANCE = 0.04, 0.01
_MIN_SAVINGS = {"beams": 0.376, "samples": 0.061}  # smallest savings that Kwon et al. report


@EXPERIMENTS.register("paging")
@mark_accepts_run
def measure_paging(lab: LabContext) -> ExperimentResult:
    """KV memory in pages against reserved rows: empty slots, sharing by beams and samples, texts a second."""
    subject = load_subject(lab)
    lengths = count_row_tokens(subject)
    block_size = choose_block_size(statistics.fmean(lengths))
    blocks = sorted({*_BLOCK_SIZES, block_size})
    lab.info(
        f"{subject.description}: {len(lengths):,} rows of {statistics.fmean(lengths):.1f} tokens on average"
    )
    full = {block: measure_full_waste(lengths, block) for block in blocks}
    growing = {block: measure_growing_waste(lengths, block, _ACTIVE_ROWS) for block in blocks}
    new = min(lab.pick_size(_NEW_TOKENS, 4), subject.run.config.max_len // 2)
    texts = select_fitting_texts(subject, new)[: lab.limit or lab.pick_size(24, 2)]
    savings = {
        setup: [measure_sharing(subject.run, text, setup, new_tokens=new) for text in texts]
        for setup in list_setups(subject.run)
    }
    lab.info(f"sharing measured on {len(texts)} texts; now they are served")
    max_len = min(_MAX_TEXT_TOKENS, subject.run.config.max_len)
    requests = make_requests(
        subject, lab.limit or lab.pick_size(128 if subject.is_translator else 64, 4), max_len
    )
    result = time_serving(subject.run.model, requests, lab.pick_size(_MEMORY_ROWS, 2), lab.pick_size(5, 2))
    return ExperimentResult(
        "Pages: what stands empty, and what is shared",
        "A service that reserves for every text the longest one there could be fills its memory with nothing. Pages of a few "
        f"tokens are taken as texts grow, and texts with one beginning hold it once. What does that save for {subject.description}?",
        [
            *page_waste_claims(lengths, block_size, full, growing),
            *sharing_claims(savings),
            *serving_claims(result),
        ],
        [*make_paging_figures(lengths, block_size, full, growing, savings), *make_serving_figures(result)],
        f"{subject.description[0].upper()}{subject.description[1:]}. Empty slots are counted on the page table itself, for rows of the lengths of "
        f"{'targets' if subject.references else 'lines'}, {_ACTIVE_ROWS} in memory at once; each grows by a token a step, and the next takes "
        f"the place of one that is complete. Sharing: {len(texts)} texts one at a time, decoded as the run decodes"
        f"{'' if subject.is_translator else f', {new} new tokens each'}, with the block that the cache chooses; saved is the share of "
        f"pages that as many rows would hold if they had nothing in common.\n\nServing: {len(requests)} texts that all wait from the "
        f"beginning, {'each a source and as many tokens as its target has' if subject.is_translator else 'lines, of which the first half is given and as many tokens as the second has are made'}, "
        f"{statistics.fmean(request.length for request in requests):.0f} on average in the cache. The memory is that of {result.memory.rows} "
        f"rows of the longest, {result.memory.max_len} tokens: so many rows, or {result.memory.n_blocks} pages of "
        f"{result.memory.block_size}; where these run out, the youngest text gives way and is read anew. Rounds in turns, times "
        "of the processor if there is one thread; what is kept of sources is not counted.",
    )


def count_row_tokens(subject: ModelUnderTest) -> list[int]:
    """Tokens that a decoder holds at the end of each line or target: its tokens and the start token."""
    texts = subject.references or subject.split_lines()
    counts = [
        min(len(ids) + 1, subject.run.config.max_len)
        for ids in subject.run.tokenizer.target_tokenizer.encode(texts)
    ]
    if not counts:
        raise UserError("the text has no line that is not blank")
    return counts


def select_fitting_texts(subject: ModelUnderTest, new_tokens: int) -> list[str]:
    """Texts short enough to be decoded completely, or to be continued by ``new_tokens`` tokens."""
    texts = subject.texts if subject.is_translator else subject.split_lines()
    max_tokens = subject.run.config.max_len - (
        subject.run.tokenizer.seq2seq_template.max_special if subject.is_translator else new_tokens + 1
    )
    fitting = [
        text
        for text, ids in zip(texts, subject.run.tokenizer.encode(texts), strict=True)
        if 0 < len(ids) <= max_tokens
    ]
    if not fitting:
        raise UserError(
            f"no line of the text has at most {max_tokens} tokens, what this model can go on from"
        )
    return fitting


def page_waste_claims(
    lengths: Sequence[int],
    block_size: int,
    full_waste: Mapping[int, float],
    growing_waste: Mapping[int, float],
) -> list[Claim]:
    """Claims about empty slots."""
    mean = statistics.fmean(lengths)
    reserved = 1 - mean / max(lengths)
    worst_block = max(full_waste, key=lambda block: abs(full_waste[block] - estimate_waste(block, mean)))
    return [
        Claim(
            "Rows that are reserved whole leave most of the memory empty.",
            f"{KWON}, section 3.1 and figure 2: 62 to 80 %, of a service that knows no lengths beforehand",
            f"Rows of {max(lengths):,} tokens, the longest of {len(lengths):,}, for {mean:.1f} on average: {format_share(reserved)} "
            "empty (most: more than half).",
            reserved > 0.5,
        ),
        Claim(
            "Pages of the right size leave less than 4 % empty.",
            f"{KWON}, figure 2: 3.7 %",
            f"Pages of {block_size} tokens, chosen for {mean:.1f} tokens: {format_share(full_waste[block_size])} of full rows.",
            full_waste[block_size] < _MAX_WASTE,
        ),
        Claim(
            "They leave less than 4 % empty while the rows grow, too.",
            f"{KWON}, figure 2, of a service at work",
            f"{format_share(growing_waste[block_size])} over all steps with pages of {block_size}; with pages of 16, as there, {format_share(growing_waste[16])}.",
            growing_waste[block_size] < _MAX_WASTE,
        ),
        Claim(
            "A row wastes half a page less half a slot: of L tokens ((b-1)/2) / (L + (b-1)/2).",
            "by counting, for lengths that end anywhere in a page",
            f"Off by at most {100 * abs(full_waste[worst_block] - estimate_waste(worst_block, mean)):.2f} points, at pages of {worst_block}: {format_share(full_waste[worst_block])}, by the "
            f"formula {format_share(estimate_waste(worst_block, mean))} (as said: within {100 * _TOLERANCE:.0f} point).",
            abs(full_waste[worst_block] - estimate_waste(worst_block, mean)) <= _TOLERANCE,
        ),
    ]


def sharing_claims(savings: Mapping[SharingSetup, Sequence[SharingSavings]]) -> list[Claim]:
    """Claims about sharing."""
    sentences = {
        "beams": "Beam search holds at least 38 % less, for its beams share their beginnings.",
        "samples": "Parallel samples hold at least 6 % less, for they share the prompt.",
    }
    reported = {"beams": "37.6 to 55.2 % on short instructions, up to 66 % on conversations",
            "samples": "6.1 to 9.8 % on short instructions, up to 30 % on conversations"}  # fmt: skip
    return [
        Claim(
            sentences[setup.kind].replace("Parallel samples", f"{setup.n} parallel samples"),
            f"{KWON}, section 6.3: {reported[setup.kind]}",
            f"{setup}: {format_mean_percent([s.peak for s in results])} at the peak, {format_mean_percent([s.mean for s in results])} "
            f"over all steps; at the peak at most {format_share(max(s.peak for s in results))}, at least {format_share(min(s.peak for s in results))}.",
            verdict_above([s.peak for s in results], _MIN_SAVINGS[setup.kind]),
        )
        for setup, results in savings.items()
    ]


def serving_claims(result: ServingResult) -> list[Claim]:
    """Claims about serving."""
    batches, reserved, pages = (
        result.seconds[schedule] for schedule in (SCHEDULE_BATCHES, SCHEDULE_RESERVED, SCHEDULE_PAGES)
    )
    paged, joining = time_ratios(reserved, pages), time_ratios(batches, reserved)
    row_ratio = result.rows[SCHEDULE_PAGES] / result.rows[SCHEDULE_RESERVED]
    return [
        Claim(
            "In the same memory pages hold more than twice as many texts at once.",
            f"{KWON}, section 6.2 and figure 13: 2.2 times rows reserved for their own lengths, 4.3 times rows for the longest",
            f"{result.rows[SCHEDULE_PAGES]:.1f} texts are given a token in a step, on average, against {result.rows[SCHEDULE_RESERVED]:.1f}: {row_ratio:.2f} times.",
            row_ratio > 2,
        ),
        Claim(
            "In the same memory pages serve more tokens a second than reserved rows.",
            f"{KWON}, abstract: 2 to 4 times, on GPUs whose time a larger batch hardly costs",
            f"{format_mean(paged)} times as many as rows reserved for the longest.",
            verdict_above(paged, 1.0),
        ),
        Claim(
            "Texts that join and leave at every step are served faster than batch after batch.",
            "Yu et al., 2022 (Orca), section 6",
            f"{format_mean(joining)} times as many tokens a second with the same reserved rows, of which "
            f"{result.rows[SCHEDULE_RESERVED]:.1f} against {result.rows[SCHEDULE_BATCHES]:.1f} are at work.",
            verdict_above(joining, 1.0),
        ),
    ]


def make_serving_figures(result: ServingResult) -> list[DotPlot | ResultTable]:
    """Tokens per second, and texts at once."""
    speed = {schedule: [result.tokens / t for t in seconds] for schedule, seconds in result.seconds.items()}
    base = result.seconds[SCHEDULE_BATCHES]
    return [
        DotPlot("Tokens served a second", "tokens/s", speed, "A small dot a round; the same texts in the same memory."),
        ResultTable(
            "Serving",
            ("rows and schedule", "texts at once", "tokens/s", "times batch after batch"),
            [
                (schedule, f"{result.rows[schedule]:.1f}", f"{statistics.fmean(speed[schedule]):,.0f}",
                 format_mean(time_ratios(base, seconds)))
                for schedule, seconds in result.seconds.items()
            ],
        ),
    ]  # fmt: skip


def make_paging_figures(
    lengths: Sequence[int], block_size: int, full_waste: Mapping[int, float], growing_waste: Mapping[int, float], savings: Mapping[SharingSetup, Sequence[SharingSavings]]
) -> list[Figure]:  # fmt: skip
    """Plots and tables of empty slots and of sharing."""
    mean = statistics.fmean(lengths)
    return [
        LinePlot(
            "Empty slots by the size of pages",
            "tokens of a page",
            [
                Curve("full rows", [(b, 100 * share) for b, share in full_waste.items()]),
                Curve("by the formula", [(b, 100 * estimate_waste(b, mean)) for b in full_waste]),
                Curve("while rows grow", [(b, 100 * share) for b, share in growing_waste.items()]),
            ],
            "Percent of the slots of pages that are held.",
            log=True,
            from_zero=True,
        ),
        DotPlot(
            "Memory that sharing saves at the peak",
            "percent",
            {str(setup): [100 * s.peak for s in results] for setup, results in savings.items()},
            "A small dot a text.",
        ),
        ResultTable(
            "Empty slots",
            ("tokens of a page", "full rows", "by the formula", "while rows grow"),
            [
                (f"{b}{' (chosen)' if b == block_size else ''}", format_share(full_waste[b]), format_share(estimate_waste(b, mean)), format_share(growing_waste[b]))
                for b in full_waste
            ],
            f"{len(lengths):,} rows of {min(lengths)} to {max(lengths)} tokens, {mean:.1f} on average. Reserved for the longest, "
            f"{format_share(1 - mean / max(lengths))} would stand empty.",
        ),
        ResultTable(
            "Sharing",
            ("decoding", "pages of", "saved at the peak", "saved over all steps", "most", "least"),
            [
                (str(setup), "-".join(str(b) for b in sorted({min(s.block_size for s in results), max(s.block_size for s in results)})),
                 format_share(statistics.fmean(s.peak for s in results)), format_share(statistics.fmean(s.mean for s in results)),
                 format_share(max(s.peak for s in results)), format_share(min(s.peak for s in results)))
                for setup, results in savings.items()
            ],
        ),
    ]  # fmt: skip


def format_share(share: float) -> str:
    """Format a fraction as a percentage: ``3.4 %``."""
    return f"{100 * share:.1f} %"
