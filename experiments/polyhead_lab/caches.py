"""Cost of each cache and its effect on the output, on a user's model and text or on a small one."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from polyhead.cache.factory import make_cache
from polyhead.cache.low_rank import fit_low_rank
from polyhead.cache.policies import Policy, select_policies
from polyhead.evaluate.metrics import KNOWN_METRICS, score_translations
from polyhead.models.seq2seq import Seq2Seq
from polyhead.nn.cache import Cache
from polyhead.nn.kv import EncoderMemory
from polyhead.nn.loss import IGNORE_INDEX
from polyhead_lab.divergence import (
    BATCH_ROWS,
    KL_ROUNDING,
    Divergence,
    Divergences,
    decode_greedy,
    format_change,
    loss_changes,
    make_cache_claims,
    measure_divergence,
    peak_bytes,
    token_agreement,
)
from polyhead_lab.models import EvalRows, ModelUnderTest, load_subject, make_eval_rows
from polyhead_lab.registry import (
    EXPERIMENTS,
    Claim,
    ExperimentResult,
    Figure,
    LabContext,
    LinePlot,
    ParetoPlot,
    ResultTable,
    SeedValues,
    mark_accepts_run,
)
from polyhead_lab.statistics import format_mean, time_ratios, verdict_above, verdict_all


class Stepper:
    """Decoder with a cache that is fed target tokens step by step; ``position`` is that of the next token."""

    def __init__(self, model: Seq2Seq, source: Tensor, max_len: int) -> None:
        self.model, self.position = model.eval(), 0
        with torch.inference_mode():
            self.memory: list[EncoderMemory] = [
                layer.contiguous_for_decoding() for layer in model.encode(source)
            ]
        self.cache: Cache = make_cache(None, model.cache_shape, len(source), max_len)

    @torch.inference_mode()
    def feed(self, tokens: Tensor) -> Tensor:
        """Feed the next tokens of every row: (B, T) -> logits (B, T, V)."""
        pos = torch.arange(self.position, self.position + tokens.size(1)).expand(len(tokens), -1)
        self.position += tokens.size(1)
        self.cache.prepare_step(range(len(tokens)), pos)
        return self.model.decode(tokens, pos, self.cache, self.memory)


def decode_stepwise(model: Seq2Seq, source: Tensor, target: Tensor) -> Tensor:
    """Logits (B, T, V) of the targets (B, T), fed one token at a time."""
    stepper = Stepper(model, source, target.size(1))
    return torch.cat([stepper.feed(target[:, t : t + 1]) for t in range(target.size(1))], 1)


def cache_bytes_per_token(model: Seq2Seq) -> float:
    """Bytes that one more token of one row adds to the cache: keys, values, and 8 bytes for its position."""
    sizes, length = [], 64
    for n in (length, 2 * length):
        stepper = Stepper(model, torch.full((1, 2), 2), n)
        stepper.feed(torch.full((1, n), 2))
        sizes.append(stepper.cache.nbytes)
    return (sizes[1] - sizes[0]) / length


_MAX_WINDOW = 512  # maximum tokens of a window
_CURVE_POINTS = 24  # points of a curve
_QUARTER_POLICIES = ("4 bits", "window+sink 1/4", "window 1/4", "h2o 1/4", "subgen 1/4", "low rank 1/4")


@EXPERIMENTS.register("caches")
@mark_accepts_run
def measure_caches(lab: LabContext) -> ExperimentResult:
    """KV caches at several budgets: divergence from the full cache, bytes, speed; on your model and text."""
    subject = load_subject(lab)
    model: Any = subject.run.model
    width = min(lab.pick_size(_MAX_WINDOW, 48), subject.run.config.max_len)
    n = lab.limit or lab.pick_size(128 if subject.is_translator else 16, 2)
    rows = make_eval_rows(subject, 2 * n, width)
    n_fit = len(rows.input_ids) // 2  # texts to fit the low-rank basis on, disjoint from the measured ones
    fit_rows, rows = rows.select(slice(0, n_fit)), rows.select(slice(n_fit, None))
    length = (
        width if not subject.is_translator else round(fmean((rows.labels != IGNORE_INDEX).sum(1).tolist()))
    )
    with tempfile.TemporaryDirectory() as directory:
        projection = save_low_rank_basis(
            model, fit_rows, (lab.out or Path(directory)) / "caches-low-rank.safetensors"
        )
        policies, refused = select_policies(model.cache_shape, length, projection)
        texts, row_len = rows.input_ids.shape
        lab.info(
            f"{subject.description}: {len(policies)} caches, {texts} texts of up to {row_len} tokens, token "
            "by token"
        )
        divergences, baseline = measure_divergence(model, policies, rows)
        lab.info("text measured; now generating")
        if subject.is_translator:
            agreement, scores = compare_translations(subject, policies, n_fit, len(rows.input_ids))
        else:
            agreement, scores = compare_continuations(model, policies, rows), {}
    claims = make_cache_claims(policies, divergences, baseline)
    claims += greedy_claims(subject, agreement, scores) if "8 bits" in divergences else []
    return ExperimentResult(
        "Caches: cost and effect on outputs",
        f"A model stores keys and values for every token it has read. A "
        f"cache may keep fewer of them, or store them less precisely. How far does {subject.description} "
        "then differ from itself, and how many bytes does it save?",
        claims,
        [
            *make_cache_figures(policies, divergences, texts),
            make_cache_table(subject, policies, divergences, baseline, agreement, scores),
            *make_refusal_tables(refused),
        ],
        describe_method(subject, rows, fit_rows, length, bool(projection)),
    )


def save_low_rank_basis(model: Any, fit_rows: EvalRows, path: Path) -> Path | None:
    """Fit the low-rank basis of keys and values on texts that are not measured; None without KV layers."""
    shape = model.cache_shape
    if not shape.kv_layers:
        return None
    source = None if fit_rows.source is None else (fit_rows.source, fit_rows.source_pos)
    rank = min(max(shape.head_dim, shape.v_dim), int((fit_rows.pos >= 0).sum()))
    fit_low_rank(model, fit_rows.input_ids, rank, path, pos=fit_rows.pos, source=source)
    return path


def compare_continuations(model: Any, policies: Sequence[Policy], rows: EvalRows) -> SeedValues:
    """Share of tokens equal to those of the plain cache, for continuations of half a window by a quarter."""
    half, new = rows.input_ids.size(1) // 2, max(1, rows.input_ids.size(1) // 4)
    outputs = {
        policy.name: [
            tokens
            for batch in rows.batches(BATCH_ROWS)
            for tokens in decode_greedy(model, policy.choice, batch.input_ids[:, :half], new).tolist()
        ]
        for policy in policies
    }
    first = outputs[policies[0].name]
    return {name: token_agreement(first, tokens_of_policy) for name, tokens_of_policy in outputs.items()}


def compare_translations(
    subject: ModelUnderTest, policies: Sequence[Policy], start: int, n: int
) -> tuple[SeedValues, dict[str, float]]:
    """Share of tokens equal to those of the plain cache, for greedy translations, and BLEU.

    BLEU is computed against the references, or against the output of the plain cache if there are none.
    """
    measured_texts = slice(start, start + n)
    outputs = {
        policy.name: subject.run.translate(
            subject.texts[measured_texts],
            truncate=True,
            beam_size=1,
            cache={"name": policy.choice.name, **policy.choice.options},
        )
        for policy in policies
    }
    ids = {name: subject.run.tokenizer.target_tokenizer.encode(texts) for name, texts in outputs.items()}
    plain = policies[0].name
    lang = subject.run.recipe.data.target_lang if subject.run.recipe else ""
    references = subject.references[measured_texts] or outputs[plain]
    return (
        {name: token_agreement(ids[plain], tokens_of_policy) for name, tokens_of_policy in ids.items()},
        {
            name: score_translations(KNOWN_METRICS["bleu"], texts, references, lang).value
            for name, texts in outputs.items()
        },
    )


def greedy_claims(subject: ModelUnderTest, agreement: SeedValues, scores: Mapping[str, float]) -> list[Claim]:
    """Claim about greedy outputs."""
    names = [name for name in ("8 bits", "h2o 1/5", "window+sink 1/4") if name in agreement]
    agreement_text = ", ".join(f"{name} {100 * fmean(agreement[name]):.1f} %" for name in names)
    if scores:
        agreement_text += "; BLEU " + ", ".join(f"{name} {scores[name]:.1f}" for name in ("static", *names))
    return [
        Claim(
            "A small divergence changes few output tokens.",
            "implied where only perplexity is given; tested here",
            f"Tokens of a greedy {'translation' if subject.is_translator else 'continuation'} equal to "
            f"those of the full cache: {agreement_text} "
            "(small: 95 % for each). One different token changes all that follow.",
            verdict_all(verdict_above(agreement[name], 0.95) for name in names),
        )
    ]


def make_cache_figures(policies: Sequence[Policy], divergences: Divergences, n_texts: int) -> list[Figure]:
    """Divergence against bytes, and divergence by position in a text."""
    families = {
        family: [
            (
                p.name,
                peak_bytes(divergences[p.name]) / 1024 / min(BATCH_ROWS, n_texts),
                divergences[p.name].mean_kl,
            )
            for p in family_policies
        ]
        for family, family_policies in groupby(policies, key=lambda policy: policy.family)
    }
    curves = {}
    for name in [name for name in _QUARTER_POLICIES if name in divergences] or list(divergences):
        means = divergences[name].kl_by_position
        size = -(-len(means) // _CURVE_POINTS)  # neighbouring tokens that are averaged
        curves[name] = [
            (i * size + (len(part) + 1) / 2, max(float(part.mean()), KL_ROUNDING))
            for i, part in enumerate(means.split(size))
        ]
    return [
        ParetoPlot(
            "Divergence and bytes",
            "peak KiB per text",
            "KL divergence, nats per token",
            families,
            "The grey steps connect the Pareto-optimal caches. At the lower "
            "end of the divergence are those that differ only by rounding.",
            KL_ROUNDING,
        ),
        LinePlot(
            "Divergence by position in the text",
            "token",
            curves,
            "Nats per token, means over the texts of that length and over neighbouring positions, at a "
            f"quarter of the tokens or of the width; values below {KL_ROUNDING:.0e} are shown as that.",
        ),
    ]


def make_cache_table(
    subject: ModelUnderTest, policies: Sequence[Policy], divergences: Divergences, baseline: Divergence,
        agreement: SeedValues, scores: Mapping[str, float]
) -> ResultTable:  # fmt: skip
    """Table of all numbers, one row for each cache."""
    base = policies[0].name
    head = ["cache", "KL, nats per token", "same most likely token", "perplexity", "change", "same tokens",
        *(["BLEU"] if scores else []),
            "KiB reserved", "KiB used", "peak KiB", "tokens/s", f"speed relative to {base}"]  # fmt: skip
    lines: list[list[str | float]] = []
    for policy in policies:
        divergence, name = divergences[policy.name], policy.name
        assert divergence.memory is not None
        sizes = [
            f"{size / 1024:,.0f}"
            for size in (
                divergence.memory.reserved_bytes,
                divergence.memory.used_bytes,
                divergence.memory.peak_bytes,
            )
        ]
        ratio = time_ratios(divergences[base].seconds, divergence.seconds)
        lines.append(
            [name, format_mean(divergence.kl) if divergence.mean_kl > KL_ROUNDING
                else f"{divergence.mean_kl:.0e}", f"{100 * fmean(divergence.top1_agreement):.2f} %",
             f"{divergence.perplexity:.5g}", format_change(loss_changes(divergence, baseline)),
                 f"{100 * fmean(agreement[name]):.1f} %",
             *([f"{scores[name]:.2f}"] if scores else []), *sizes, f"{divergence.tokens_per_second:,.0f}",
                 format_mean(ratio)]
        )  # fmt: skip
    against = "references" if subject.references else f"the output of {base}"
    return ResultTable(
        "All numbers", head, lines,
        f"Without a cache the perplexity is {baseline.perplexity:.5g}. Same tokens: tokens of a greedy "
        f"output equal to those of {base}."
        + (f" BLEU with {against} as reference." if scores else "")
        + f" Bytes of a batch of {min(BATCH_ROWS, len(baseline.nll))} texts.",
    )  # fmt: skip


def make_refusal_tables(refused_policies: Mapping[str, str]) -> list[ResultTable]:
    """Table of the caches that this model does not support."""
    if not refused_policies:
        return []
    return [
        ResultTable(
            "Not for this model", ("cache", "why"), [(name, why) for name, why in refused_policies.items()]
        )
    ]


def describe_method(
    subject: ModelUnderTest, rows: EvalRows, fit_rows: EvalRows, length: int, has_projection: bool
) -> str:
    """Description of the method."""
    texts, row_len = rows.input_ids.shape
    kind = (
        f"{texts} pairs; teacher forcing on the "
        f"{'references' if subject.references else 'greedy translations'}, {length} tokens on average, of "
        "which a budget of 1/4 stores a quarter"
        if subject.is_translator
        else f"{texts} windows of {row_len} tokens, non-overlapping"
    )
    low_rank_note = (
        f" Low-rank directions were fitted on the {len(fit_rows.input_ids)} texts of the file before these "
        f"and are saved next to this page (caches-low-rank.safetensors): cache: {{name: low_rank, rank: "
        f"32, projection: FILE}}."
        if has_projection
        else ""
    )
    return (
        f"Measured on {subject.description}: {kind}. Each token is fed alone, "
        f"through every cache alternately, {BATCH_ROWS} texts at a time; the reference of the divergence "
        "is the whole forward pass without a cache, KL(p whole ‖ p cached). An interval is the 95 % one "
        "over texts, of times over stretches of 16 steps; times are CPU times if there is one "
        "thread.\n\nA window of 1/4 keeps the newest tokens of that share, including the first 4 with a "
        "sink (a quarter of a budget under 16); h2o keeps half of its budget for the newest and has no "
        "sink; subgen half for the newest; low rank keeps that share of the head width; bits are per "
        f"number, in groups of 32 tokens (fewer for short texts).{low_rank_note} Bytes are those of the "
        "cache only: buffers in which a step unpacks or projects back are not counted."
    )
