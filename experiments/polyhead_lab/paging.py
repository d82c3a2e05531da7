"""Benefit of paged KV memory: empty slots, blocks shared by beams and samples, texts served."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from polyhead.cache.block_manager import BlockManager, BlockStats, WriteSpan
from polyhead.cache.paged import PagedCache, choose_block_size, estimate_waste
from polyhead.core.errors import UserError
from polyhead.run.run import Run
from polyhead_lab.models import ModelUnderTest, load_subject
from polyhead_lab.registry import (
    EXPERIMENTS,
    Claim,
    DotPlot,
    ExperimentResult,
    Figure,
    LabContext,
    LinePlot,
    ResultTable,
    mark_accepts_run,
)
from polyhead_lab.serving import (
    SCHEDULE_BATCHES,
    SCHEDULE_PAGES,
    SCHEDULE_RESERVED,
    ServingResult,
    make_requests,
    time_serving,
)
from polyhead_lab.statistics import format_mean, format_mean_percent, time_ratios, verdict_above


class RecordingPagedCache(PagedCache):
    """Paged cache that records its block statistics at every step.

    Selected by its import path: polyhead_lab.paging:RecordingPagedCache.
    """

    history: ClassVar[list[BlockStats]] = []

    def prepare_step(self, rows: Sequence[int], pos: Tensor) -> None:
        super().prepare_step(rows, pos)
        RecordingPagedCache.history.append(self.block_stats())


class SharingSetup(NamedTuple):
    """A decoding setup in which several sequences share a prefix."""

    n: int
    kind: str  # "beams" or "samples"

    def __str__(self) -> str:
        return f"{self.n} {self.kind}"


class SharingSavings(NamedTuple):
    """Saved shares of the blocks that as many rows would hold without sharing, and the block size."""

    peak: float  # share at the peak
    mean: float  # share over all steps
    block_size: int


def list_setups(run: Run) -> list[SharingSetup]:
    """Decoding setups of a model: beams for a translator, beams and samples for a language model."""
    beams = [SharingSetup(5, "beams")]
    return (
        beams
        if run.config.kind == "encoder-decoder"
        else [*beams, SharingSetup(4, "samples"), SharingSetup(8, "samples")]
    )


def measure_sharing(
    run: Run, text: str, setup: SharingSetup, *, block_size: int | None = None, new_tokens: int = 60
) -> SharingSavings:
    """Savings from sharing while one text is translated, or continued by ``new_tokens`` tokens.

    ``block_size`` None: the cache chooses it.
    """
    RecordingPagedCache.history.clear()
    rest: dict[str, Any] = {
        "cache": {"name": "polyhead_lab.paging:RecordingPagedCache", "block_size": block_size}
    }
    if run.config.kind != "encoder-decoder":
        rest["max_new_tokens"] = new_tokens
    if setup.kind == "samples":
        run.generate([text], n=setup.n, **rest)
    else:
        run.hypotheses([text], beam_size=setup.n, **rest)
    return from_usages([usage for usage in RecordingPagedCache.history if usage.unshared_blocks])


def from_usages(usages: Sequence[BlockStats]) -> SharingSavings:
    """Savings from the block statistics of every step."""
    peak = 1 - max(usage.used_blocks for usage in usages) / max(usage.unshared_blocks for usage in usages)
    mean = 1 - sum(usage.used_blocks for usage in usages) / sum(usage.unshared_blocks for usage in usages)
    return SharingSavings(peak, mean, usages[0].block_size)


def measure_full_waste(lengths: Sequence[int], block_size: int) -> float:
    """Share of empty slots if all rows are held at once, each with all its tokens."""
    pages = BlockManager(block_size, sum(-(-n // block_size) for n in lengths))
    for row, n in enumerate(lengths):
        pages.admit(row)
        pages.allocate([WriteSpan(row, 0, n)])
    usage = pages.block_stats()
    return usage.wasted_slots / max(1, usage.used_blocks * usage.block_size)


def measure_growing_waste(lengths: Sequence[int], block_size: int, rows: int) -> float:
    """Share of empty slots over all steps, where rows grow by a token per step.

    ``rows`` rows are held at once, and the next row replaces a complete one; the first 20 times as many are
    used.
    """
    pages, waiting, n_tokens, total = BlockManager(block_size), iter(enumerate(lengths[: 20 * rows])), 0, 0
    active: dict[int, int] = {}
    while True:
        for seq, n in waiting:
            pages.admit(seq)
            active[seq] = n
            if len(active) == rows:
                break
        if not active:
            return 1 - n_tokens / max(1, total)
        spans = [WriteSpan(seq, pages.lengths[seq], pages.lengths[seq] + 1) for seq in active]
        pages.grow(max(0, pages.blocks_needed(spans) - pages.n_available))
        pages.allocate(spans)
        n_tokens, total = (
            n_tokens + sum(pages.lengths.values()),
            total + block_size * sum(map(len, pages.block_tables.values())),
        )
        for seq in [seq for seq, n in active.items() if pages.lengths[seq] == n]:
            pages.release(seq)
            del active[seq]


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
    """KV memory in pages against reserved rows: empty slots, sharing by beams and
    samples, texts per second.
    """
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
    lab.info(f"sharing measured on {len(texts)} texts; now serving")
    max_len = min(_MAX_TEXT_TOKENS, subject.run.config.max_len)
    requests = make_requests(
        subject, lab.limit or lab.pick_size(128 if subject.is_translator else 64, 4), max_len
    )
    result = time_serving(subject.run.model, requests, lab.pick_size(_MEMORY_ROWS, 2), lab.pick_size(5, 2))
    description = (
        "each a source and as many output tokens as its target has"
        if subject.is_translator
        else "lines, whose first half is the prompt and whose second half gives the number of new tokens"
    )
    return ExperimentResult(
        "Pages: empty slots and sharing",
        "A service that reserves the maximum length for every text leaves most of its memory empty. With "
        "pages of a few tokens, memory is allocated as texts grow, and texts with a common prefix store it "
        f"once. How much does that save for {subject.description}?",
        [
            *page_waste_claims(lengths, block_size, full, growing),
            *sharing_claims(savings),
            *serving_claims(result),
        ],
        [*make_paging_figures(lengths, block_size, full, growing, savings), *make_serving_figures(result)],
        f"Measured on {subject.description}. Empty slots are counted in the block table, for rows of the "
        f"lengths of {'targets' if subject.references else 'lines'}, {_ACTIVE_ROWS} in memory at once; each "
        f"grows by one token per step, and the next replaces one that is complete. Sharing: {len(texts)} "
        "texts one at a time, decoded with the settings of the "
        f"run{'' if subject.is_translator else f', {new} new tokens each'}, with the block that the cache "
        "chooses; saved is the share of the pages of as many rows without common tokens.\n\nServing: "
        f"{len(requests)} texts, all waiting at the start, {description}, "
        f"{statistics.fmean(request.length for request in requests):.0f} on average in the cache. The memory "
        f"is that of {result.memory.rows} rows of the longest, {result.memory.max_len} tokens: that many "
        f"rows, or {result.memory.n_blocks} pages of {result.memory.block_size}; when these run out, the "
        "newest text is preempted and recomputed. The rounds alternate, CPU time if there is one thread; "
        "memory for sources is not counted.",
    )


def count_row_tokens(subject: ModelUnderTest) -> list[int]:
    """Tokens that a decoder holds at the end of each line or target: its tokens and the start token."""
    texts = subject.references or subject.split_lines()
    counts = [
        min(len(ids) + 1, subject.run.config.max_len)
        for ids in subject.run.tokenizer.target_tokenizer.encode(texts)
    ]
    if not counts:
        raise UserError("the text has only blank lines")
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
            f"no line of the text has at most {max_tokens} tokens, the longest prompt of this model"
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
            "Rows reserved for the longest text leave most of the memory empty.",
            f"{KWON}, section 3.1 and figure 2: 62 to 80 %, for a service that does not know lengths in "
            "advance",
            f"Rows of {max(lengths):,} tokens, the longest of {len(lengths):,}, for {mean:.1f} on average: "
            f"{format_share(reserved)} empty (most: more than half).",
            reserved > 0.5,
        ),
        Claim(
            "With a suitable page size less than 4 % is unused.",
            f"{KWON}, figure 2: 3.7 %",
            f"Pages of {block_size} tokens, chosen for {mean:.1f} tokens: "
            f"{format_share(full_waste[block_size])} of full rows.",
            full_waste[block_size] < _MAX_WASTE,
        ),
        Claim(
            "They also leave less than 4 % empty while rows grow.",
            f"{KWON}, figure 2, for a running service",
            f"{format_share(growing_waste[block_size])} over all steps with pages of {block_size}; with "
            f"pages of 16, as in the paper, {format_share(growing_waste[16])}.",
            growing_waste[block_size] < _MAX_WASTE,
        ),
        Claim(
            "A row of L tokens wastes half a page minus half a slot: ((b-1)/2) / (L + (b-1)/2).",
            "by counting, if lengths end uniformly within a page",
            f"Off by at most {100 * abs(full_waste[worst_block] - estimate_waste(worst_block, mean)):.2f} "
            f"points, with pages of {worst_block}: {format_share(full_waste[worst_block])}, by the formula "
            f"{format_share(estimate_waste(worst_block, mean))} (target: within {100 * _TOLERANCE:.0f} "
            "point).",
            abs(full_waste[worst_block] - estimate_waste(worst_block, mean)) <= _TOLERANCE,
        ),
    ]


def sharing_claims(savings: Mapping[SharingSetup, Sequence[SharingSavings]]) -> list[Claim]:
    """Claims about sharing."""
    sentences = {
        "beams": "Beam search needs at least 38 % less memory, because beams share their prefixes.",
        "samples": "Parallel samples need at least 6 % less memory, because they share the prompt.",
    }
    reported = {"beams": "37.6 to 55.2 % on short instructions, up to 66 % on conversations",
            "samples": "6.1 to 9.8 % on short instructions, up to 30 % on conversations"}  # fmt: skip
    return [
        Claim(
            sentences[setup.kind].replace("Parallel samples", f"{setup.n} parallel samples"),
            f"{KWON}, section 6.3: {reported[setup.kind]}",
            f"{setup}: {format_mean_percent([s.peak for s in results])} at the peak, "
            f"{format_mean_percent([s.mean for s in results])} "
            f"over all steps; at the peak at most {format_share(max(s.peak for s in results))}, at least "
            f"{format_share(min(s.peak for s in results))}.",
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
            "In the same memory pages allow more than twice as many concurrent texts.",
            f"{KWON}, section 6.2 and figure 13: 2.2 times rows reserved for their own lengths, 4.3 times "
            "rows for the longest",
            f"{result.rows[SCHEDULE_PAGES]:.1f} texts are decoded per step, on average, against "
            f"{result.rows[SCHEDULE_RESERVED]:.1f}: {row_ratio:.2f} times, in as many times fewer steps; the "
            f"processor needs {format_mean(paged)} times less time.",
            row_ratio > 2,
        ),
        Claim(
            "In the same memory pages serve more tokens per second than reserved rows.",
            f"{KWON}, abstract: 2 to 4 times, on GPUs, where a larger batch costs little time",
            f"{format_mean(paged)} times as many as rows reserved for the longest.",
            verdict_above(paged, 1.0),
        ),
        Claim(
            "Continuous batching serves faster than static batching.",
            "Yu et al., 2022 (Orca), section 6",
            f"{format_mean(joining)} times as many tokens per second with the same reserved rows, with an "
            "average of "
            f"{result.rows[SCHEDULE_RESERVED]:.1f} against {result.rows[SCHEDULE_BATCHES]:.1f} active.",
            verdict_above(joining, 1.0),
        ),
    ]


def make_serving_figures(result: ServingResult) -> list[DotPlot | ResultTable]:
    """Tokens per second, and texts at once."""
    speed = {schedule: [result.tokens / t for t in seconds] for schedule, seconds in result.seconds.items()}
    base = result.seconds[SCHEDULE_BATCHES]
    return [
        DotPlot("Tokens served per second", "tokens/s", speed, "One small dot per round; the same texts in "
            "the same memory."),
        ResultTable(
            "Serving",
            ("rows and schedule", "texts at once", "tokens/s", "times static batching"),
            [
                (schedule, f"{result.rows[schedule]:.1f}", f"{statistics.fmean(speed[schedule]):,.0f}",
                 format_mean(time_ratios(base, seconds)))
                for schedule, seconds in result.seconds.items()
            ],
        ),
    ]  # fmt: skip


def make_paging_figures(
    lengths: Sequence[int], block_size: int, full_waste: Mapping[int, float], growing_waste: Mapping[int,
        float], savings: Mapping[SharingSetup, Sequence[SharingSavings]]
) -> list[Figure]:  # fmt: skip
    """Plots and tables of empty slots and of sharing."""
    mean = statistics.fmean(lengths)
    return [
        LinePlot(
            "Empty slots by page size",
            "tokens per page",
            {"full rows": [(b, 100 * share) for b, share in full_waste.items()],
"by the formula": [(b, 100 * estimate_waste(b, mean)) for b in full_waste],
"while rows grow": [(b, 100 * share) for b, share in growing_waste.items()]},
            "Percent of the slots of allocated pages.",
            log=True,
            from_zero=True,
        ),
        DotPlot(
            "Memory saved by sharing at the peak",
            "percent",
            {str(setup): [100 * s.peak for s in results] for setup, results in savings.items()},
            "One small dot per text.",
        ),
        ResultTable(
            "Empty slots",
            ("tokens per page", "full rows", "by the formula", "while rows grow"),
            [
                (f"{b}{' (chosen)' if b == block_size else ''}", format_share(full_waste[b]),
                    format_share(estimate_waste(b, mean)), format_share(growing_waste[b]))
                for b in full_waste
            ],
            f"{len(lengths):,} rows of {min(lengths)} to {max(lengths)} tokens, {mean:.1f} on average. "
            f"Reserved for the longest, {format_share(1 - mean / max(lengths))} would be empty.",
        ),
        ResultTable(
            "Sharing",
            ("decoding", "pages of", "saved at the peak", "saved over all steps", "most", "least"),
            [
                (str(setup), "-".join(str(b) for b in sorted({min(s.block_size for s in results),
                    max(s.block_size for s in results)})),
                 format_share(statistics.fmean(s.peak for s in results)),
                     format_share(statistics.fmean(s.mean for s in results)),
                 format_share(max(s.peak for s in results)), format_share(min(s.peak for s in results)))
                for setup, results in savings.items()
            ],
        ),
    ]  # fmt: skip


def format_share(share: float) -> str:
    """Format a fraction as a percentage: ``3.4 %``."""
    return f"{100 * share:.1f} %"
