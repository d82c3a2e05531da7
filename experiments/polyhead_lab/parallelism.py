"""Why a Transformer is trained on whole sequences in parallel."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from statistics import fmean

import torch
from torch import Tensor

from polyhead import build
from polyhead.models.seq2seq import Seq2Seq
from polyhead_lab.caches import decode_stepwise
from polyhead_lab.registry import (
    EXPERIMENTS,
    Claim,
    ExperimentResult,
    Figure,
    LabContext,
    LinePlot,
    ResultTable,
)
from polyhead_lab.short_training import make_copy_task, make_small_config, pick_model_size
from polyhead_lab.statistics import format_mean, median_times, time_interleaved, time_ratios, verdict_above

_ROWS = 4
_ROUNDING = 1e-4  # largest difference of logits that a different summation order may cause in fp32


@EXPERIMENTS.register("parallelism")
def measure_parallelism(lab: LabContext) -> ExperimentResult:
    """Teacher forcing: the whole target at once against token by token, in speed and in results."""
    lengths = lab.pick_size([8, 16, 32, 64, 128, 256], [4, 8])
    longest_again = lab.pick_size(64, 4)
    problem = make_copy_task(max(lengths), 64)
    model = build(
        make_small_config(problem, **pick_model_size(lab)),
        lab.seed,
    )
    model.eval()
    full, steps, uncached = "whole sequence", "token by token, cache", "token by token, no cache"
    seconds: dict[str, list[tuple[float, float]]] = {full: [], steps: [], uncached: []}
    differences: list[float] = []
    times: dict[int, list[float]] = {}
    for length in lengths:
        batch = problem.batch(lab.seed, 0, _ROWS)
        source, target = batch.source[:, :16], batch.target[:, :length]
        with torch.inference_mode():
            differences.append(
                float((model(source, target) - decode_stepwise(model, source, target)).abs().max())
            )
        runners = {
            full: partial(run_full_sequence, model, source, target),
            steps: partial(decode_stepwise, model, source, target),
        }
        if length <= longest_again:
            runners[uncached] = partial(decode_without_cache, model, source, target)
            num_read = {name: count_decoder_tokens(model, runners[name]) for name in (steps, uncached)}
        round_times = time_interleaved(runners, lab.pick_size(5, 2))
        times[length] = time_ratios(round_times[steps], round_times[full])
        for name, median in median_times(round_times).items():
            seconds[name].append((length, 1e3 * median))
        lab.info(f"length {length}: token by token takes {fmean(times[length]):.1f} times as long")
    first, last = lengths[0], lengths[-1]
    growth = [math.log(ratio) / math.log(last / first) for ratio in time_ratios(times[last], times[first])]
    claims = [
        Claim(
            "Teacher-forced logits of all positions at once equal those of one token at a time.",
            "the causal mask of Vaswani et al., 2017, section 3.2.3",
            f"Largest difference of any logit over lengths {first} to {last}: {max(differences):.2g} "
            f"(rounding: up to {_ROUNDING:g}).",
            max(differences) < _ROUNDING,
        ),
        Claim(
            "One pass over the sequence is faster than token by token.",
            "Vaswani et al., 2017, table 1: O(1) against O(n) sequential operations",
            f"At {last} tokens, token by token takes {format_mean(times[last])} times as long.",
            verdict_above(times[last], 1.0),
        ),
        Claim(
            "The advantage grows with the length.",
            "Vaswani et al., 2017, table 1 and section 4",
            f"From {fmean(times[first]):.3g} times at {first} tokens to {fmean(times[last]):.3g} times "
            f"at {last}: as length^{fmean(growth):.2f}.",
            verdict_above(growth, 0.0),
        ),
        Claim(
            "A KV cache saves most of the work of stepwise decoding.",
            "Pope et al., 2022, section 2.2; attention quadratic instead of cubic, all else linear "
                    "instead of quadratic",
            f"For {longest_again} tokens the decoder reads {num_read[uncached]:,} if it recomputes all "
            f"previous ones at every step, and {num_read[steps]:,} with the cache: "
            f"{num_read[uncached] / num_read[steps]:.3g} times as many (most: at least twice).",
            num_read[uncached] >= 2 * num_read[steps],
        ),
    ]  # fmt: skip
    figures: list[Figure] = [
        LinePlot(
            f"Time for {_ROWS} rows",
            "tokens",
            seconds,
            "Milliseconds of the forward pass. The full sequence is one pass of large matrix products; "
            "token by token there are many passes of small ones.",
            log=True,
        ),
        LinePlot(
            "Time of token by token relative to the whole sequence",
            "tokens",
            {"token by token / whole": [(n, fmean(r)) for n, r in times.items()]},
            log=True,
            from_zero=True,
        ),
        ResultTable(
            "All numbers",
            ("tokens", "whole, ms", "token by token, ms", "ratio", "largest difference of a logit"),
            [
                (n, f"{dict(seconds[full])[n]:.2f}", f"{dict(seconds[steps])[n]:.2f}", format_mean(times[n]),
                    f"{d:.2g}")
                for n, d in zip(lengths, differences, strict=True)
            ],
        ),
    ]  # fmt: skip
    return ExperimentResult(
        "One pass over sequences",
        "In training a decoder gets the correct tokens so far, so all positions are computed in one "
        "pass with a mask. In generation each token needs the one before. Both must give the same numbers.",
        claims,
        figures,
        f"Encoder-decoder of 2+2 layers, d_model {model.config.d_model}, random weights, {_ROWS} rows, 16 "
        f"source tokens, fp32, no gradient. Each length: {lab.pick_size(5, 2)} alternating rounds after one "
        "for warm-up; plots show medians, ratios are per round.",
    )


@torch.inference_mode()
def run_full_sequence(model: Seq2Seq, source: Tensor, target: Tensor) -> Tensor:
    """Logits of all positions in one pass."""
    logits: Tensor = model(source, target)
    return logits


def count_decoder_tokens(model: Seq2Seq, run: Callable[[], object]) -> int:
    """Number of tokens of a row that the decoder's layers read in a run."""
    counts: list[int] = []
    hook = model.decoder.register_forward_pre_hook(lambda _, inputs: counts.append(inputs[0].size(1)))
    run()
    hook.remove()
    return sum(counts)


@torch.inference_mode()
def decode_without_cache(model: Seq2Seq, source: Tensor, target: Tensor) -> Tensor:
    """Recompute all positions for every token and return the last logits; the source is encoded once."""
    memory = model.encode(source)
    for t in range(1, target.size(1) + 1):
        pos = torch.arange(t).expand(len(target), -1)
        logits = model.decode(target[:, :t], pos, None, memory)
    return logits
