"""How many heads and projections attention needs, and how many key and value heads."""

from __future__ import annotations

from functools import partial

import torch

from polyhead import Choice, build
from polyhead_lab.caches import Stepper, cache_bytes_per_token
from polyhead_lab.registry import (
    EXPERIMENTS,
    TOY,
    Claim,
    DotPlot,
    ExperimentResult,
    Figure,
    LabContext,
    ResultTable,
    SeedValues,
)
from polyhead_lab.short_training import (
    COPY_AND_RECALL,
    describe_steps,
    format_by_task,
    make_copy_task,
    make_small_config,
    train_by_task,
    verdict_by_task,
)
from polyhead_lab.statistics import (
    format_mean,
    median_times,
    time_interleaved,
    time_ratios,
    verdict_above,
    verdict_all,
)

SHAZEER, AINSLIE = "Shazeer, 2019", "Ainslie et al., 2023"
HEAD_DESIGNS = {"1 head": (1, 1), "MHA: 4 heads": (4, 4), "GQA: 4 on 2": (4, 2), "MQA: 4 on 1": (4, 1)}
SINGLE, MHA, GQA, MQA = HEAD_DESIGNS
_TASKS = COPY_AND_RECALL
_WORSE_MARGIN = 0.1  # difference in nats per token that counts as worse


@EXPERIMENTS.register("heads")
def measure_heads(lab: LabContext) -> ExperimentResult:
    """One head against many, and MHA against GQA and MQA: quality, bytes of the cache, decoding speed."""
    designs = {name: {"n_heads": n, "n_kv_heads": kv} for name, (n, kv) in HEAD_DESIGNS.items()}
    runs = train_by_task(lab, _TASKS, designs)
    loss, mean_loss = runs.loss, runs.mean_loss
    parameters = {name: rs[0].parameters for name, rs in runs["recall"].items()}
    exact = {name: cache_bytes_per_token(rs[0].model) for name, rs in runs["recall"].items()}
    lab.info("trained; now decoding speed on a long cache")
    context, step_times = time_long_cache(lab)
    medians = median_times(step_times)
    faster = {name: time_ratios(step_times[MHA], step_times[name]) for name in (GQA, MQA)}
    closed_form_bytes = {name: kv_bytes(*HEAD_DESIGNS[name]) for name in HEAD_DESIGNS}

    claims = [
        Claim(
            "Several heads are better than one with the same total width.",
            "Vaswani et al., 2017, section 3.2.2 and table 3 (A)",
            f"{format_by_task(loss, MHA, SINGLE, '{} with 4 heads, {} with 1')}. Parameters are equal: "
            f"{parameters[MHA]:,}.",
            verdict_by_task(loss, MHA, SINGLE), TOY,
        ),
        Claim(
            "Several heads learn faster than one.",
            "not claimed there; tested here because both may end equal",
            "Mean loss over training, "
            f"{format_by_task(mean_loss, MHA, SINGLE, '{} with 4 heads, {} with 1')}.",
            verdict_by_task(mean_loss, MHA, SINGLE), TOY,
        ),
        Claim(
            "Grouped-query attention is about as good as multi-head attention.",
            f"{AINSLIE}, section 3.2",
            f"{format_by_task(loss, GQA, MHA)} (about as good: less than {_WORSE_MARGIN} nats worse).",
            verdict_by_task(loss, GQA, MHA, -_WORSE_MARGIN), TOY,
        ),
        Claim(
            "Multi-query attention costs only a little quality.",
            f"{SHAZEER}, section 4",
            f"{format_by_task(loss, MQA, MHA)} (a little: less than {_WORSE_MARGIN} nats).",
            verdict_by_task(loss, MQA, MHA, -_WORSE_MARGIN), TOY,
        ),
        Claim(
            "The cache shrinks by the factor n_heads / n_kv_heads.",
            f"{SHAZEER}, section 3; {AINSLIE}, section 2.2",
            f"MHA {exact[MHA] - 8:,.0f} bytes per token, GQA {exact[GQA] - 8:,.0f} bytes per token, MQA "
            f"{exact[MQA] - 8:,.0f} bytes per token; in closed form 2 x layers x n_kv_heads x head_dim x 4.",
            all(exact[name] - 8 == closed_form_bytes[name] for name in HEAD_DESIGNS)
                and closed_form_bytes[MHA] == 2 * closed_form_bytes[GQA] == 4 * closed_form_bytes[MQA],
        ),
        Claim(
            "Decoding with a long cache is faster with fewer key/value heads.",
            f"{SHAZEER}, section 4.3; {AINSLIE}, figure 3",
            f"A step over {context:,} cached tokens: GQA {format_mean(faster[GQA])}, MQA "
            f"{format_mean(faster[MQA])} times as fast as MHA.",
            verdict_all(verdict_above(r, 1.0) for r in faster.values()),
        ),
    ]  # fmt: skip
    *loss_figures, _, recall_curves = runs.make_figures()
    figures: list[Figure] = [
        *loss_figures,
        recall_curves,
        DotPlot(
            f"One decoding step over {context:,} cached tokens",
            "milliseconds",
            {name: [1e3 * t for t in seconds] for name, seconds in step_times.items()},
            "One small dot per round; the designs alternated. Here the model is wider, so that reading the "
            "cache dominates the time.",
        ),
        ResultTable(
            "All numbers",
            ("design", "parameters", "cache bytes per token", *(f"loss, {task}" for task in _TASKS),
                "ms per step"),
            [
                (name, parameters[name], int(exact[name]),
                    *(format_mean(loss[task][name]) for task in _TASKS),
                 f"{1e3 * medians[name]:.2f}" if name in medians else "not measured")
                for name in HEAD_DESIGNS
            ],
            "8 of the bytes are the token's position. GQA and MQA have fewer parameters: their key and value "
            "projections are narrower.",
        ),
    ]  # fmt: skip
    return ExperimentResult(
        "Heads and their cache",
        "Several heads attend to several positions at once. In decoding, each head's keys and values of all "
        "earlier tokens must be stored and read at every step; grouped-query and multi-query attention "
        "share them between heads.",
        claims,
        figures,
        f"Quality: encoder-decoders of 2+2 layers, d_model 64, d_ff 128, pre-norm; "
        f"{describe_steps(lab, _TASKS)} Every attention of a design "
        "(encoder, decoder, cross) has these heads.\n\nSpeed: a decoder of 2 layers, d_model 256, 8 heads "
        f"on 8, 4 or 1, random weights, 8 rows of {context:,} cached tokens, fp32; alternating rounds.",
    )


def kv_bytes(n_heads: int, n_kv_heads: int) -> int:
    """Bytes of a token's keys and values in closed form: both, in 2 layers, fp32, head_dim 64 / n_heads."""
    return 2 * 2 * n_kv_heads * (64 // n_heads) * 4


def time_long_cache(lab: LabContext) -> tuple[int, SeedValues]:
    """Context length, and seconds of a decoding step over such a cache, for MHA, GQA and MQA interleaved."""
    context, rows = lab.pick_size((1024, 8), (16, 2))
    problem = make_copy_task(16)
    size = lab.pick_size({"d_model": 256, "d_ff": 512}, {"d_model": 32, "d_ff": 32})
    token = torch.full((rows, 1), 2)
    steppers = {}
    for name, n_kv_heads in ((MHA, 8), (GQA, 4), (MQA, 1)):
        model = build(
            make_small_config(problem, n_heads=8, n_kv_heads=n_kv_heads, max_len=context + 64, **size),
            lab.seed,
        )
        steppers[name] = Stepper(model, problem.batch(1, 0, rows).source, context + 64)
        steppers[name].feed(torch.full((rows, context), 2))
    runners = {name: partial(stepper.feed, token) for name, stepper in steppers.items()}
    return context, time_interleaved(runners, lab.pick_size(15, 3))


_TIES = {"Q, K, V": "none", "Q, K=V": "kv", "Q=K, V": "qk", "Q=K=V": "qkv"}
_SEPARATE, _SHARED_KV, _SHARED_QK, _SHARED_ALL = _TIES


@EXPERIMENTS.register("tied-qkv")
def measure_tied_projections(lab: LabContext) -> ExperimentResult:
    """Queries, keys and values from one, two or three projections: quality and parameters."""
    designs = {name: {"attention": Choice("softmax", tie=tie)} for name, tie in _TIES.items()}
    runs = train_by_task(lab, _TASKS, designs)
    parameters = {name: seeds[0].parameters for name, seeds in runs["recall"].items()}
    matrices = {
        name: sum(  # weights and biases; shared ones are counted once
            p.numel()
            for part, p in seeds[0].model.named_parameters()
            if part.split(".")[-2] in ("q_proj", "k_proj", "v_proj")
        )
        for name, seeds in runs["recall"].items()
    }

    def make_claim(name: str, sentence: str, source: str) -> Claim:
        return Claim(
            sentence,
            source,
            f"Loss, {runs.compare(name, _SEPARATE)}, of three projections (hurts: either is at least "
            f"{_WORSE_MARGIN} nats worse).",
            runs.verdict_no_worse(name, _SEPARATE, _WORSE_MARGIN),
            TOY,
        )

    claims = [
        Claim(
            "Each tie removes one of three projections in every attention.",
            "by counting",
            ", ".join(f"{name}: {n:,} weights and biases" for name, n in matrices.items())
            + " of query, key and value projections.",
            [3 * n / matrices[_SEPARATE] for n in matrices.values()] == [3, 2, 2, 1],
        ),
        make_claim(
            _SHARED_KV, "Sharing keys and values (K=V) does not hurt.", "not answered in the literature"
        ),
        make_claim(
            _SHARED_QK,
            "Sharing queries and keys (Q=K) does not hurt.",
            "Kitaev et al., 2020 (Reformer), section 5: shared-QK attention",
        ),
        make_claim(
            _SHARED_ALL,
            "One projection for all three (Q=K=V) does not hurt.",
            "not answered in the literature",
        ),
    ]
    figures = [
        *runs.make_figures(),
        ResultTable(
            "All numbers",
            ("projections", "parameters of the model", *(f"loss, {task}" for task in _TASKS)),
            [
                (name, parameters[name], *(format_mean(losses[name]) for losses in runs.loss.values()))
                for name in _TIES
            ],
        ),
    ]
    return ExperimentResult(
        "One, two or three projections",
        "Attention has separate projections for queries, keys and values. Sharing some of them saves "
        "parameters, and with K=V half of the cache could be saved. Does it hurt?",
        claims,
        figures,
        "Encoder-decoders of 2+2 layers, d_model 64, 4 heads, pre-norm, sinusoidal positions; "
        f"{describe_steps(lab, _TASKS)} The tie applies in "
        "encoder, decoder and cross-attention; in the latter one matrix projects the target to "
        "queries and the source to keys.",
    )
