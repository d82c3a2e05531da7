"""BLEU and chrF of runs on test text as people write it: capitals, titles, typos, emoji, addresses, tags.

polyhead train recipes/multi30k-en-de.yaml data.root=path/to/multi30k
polyhead train recipes/multi30k-en-de-robust.yaml data.root=path/to/multi30k
./dev bench robust runs/multi30k-en-de runs/multi30k-en-de-robust --limit 500

Each part of ``data.augment`` changes the first run's test pairs, sources and references, with seed 1; pairs
that it leaves as they are do not count. An interval is of the difference to the first run: 95 %, 1,000 paired
bootstrap samples.
"""

from __future__ import annotations

import argparse
from random import Random

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

import polyhead as ph
from polyhead.core.registry import AUGMENT
from polyhead.data.readers.parallel_corpus import read_pairs
from polyhead.train.tasks.translation import open_split_corpus

SAMPLES = 1000


def bootstrap(metric: BLEU | CHRF, outputs: list[list[str]], references: list[str]) -> tuple[float, float]:
    """The 95 % interval of the difference of two systems, from resampled sentences."""
    draws = np.random.default_rng(1).integers(0, len(references), (SAMPLES, len(references)))
    statistics = [np.array(metric._extract_corpus_statistics(one, [references])) for one in outputs]
    first, second = (
        [metric._compute_score_from_stats(one[rows].sum(0).tolist()).score for rows in draws]
        for one in statistics
    )
    low, high = np.percentile(np.subtract(second, first), [2.5, 97.5])
    return float(low), float(high)


def main() -> None:
    """Print a row of the table for each form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", help="runs of one recipe, or with others parts of data.augment")
    parser.add_argument("--limit", type=int, default=1000, help="test pairs")
    args = parser.parse_args()
    runs = [ph.load(run) for run in args.runs]
    assert runs[0].recipe is not None
    sources, references, _ = read_pairs(open_split_corpus(runs[0].recipe, "test"), args.limit)
    metrics = {"BLEU": BLEU(), "chrF": CHRF()}
    for name in ("clean", *AUGMENT.names()):
        pairs = list(zip(sources, references, strict=True))
        if name != "clean":
            part = AUGMENT.build(AUGMENT.check(ph.Choice(name)))
            changed = [part.change(*pair, Random(f"1 0 {row}")) for row, pair in enumerate(pairs)]
            pairs = [pair for pair, old in zip(changed, pairs, strict=True) if pair != old] or pairs
        targets = [target for _, target in pairs]
        outputs = [run.translate([source for source, _ in pairs], truncate=True) for run in runs]
        cells = [f"{len(pairs):,}"]
        for label, metric in metrics.items():
            cells += [f"{label} {metric.corpus_score(output, [targets]).score:.1f}" for output in outputs]
            cells += [
                "[{:+.1f}, {:+.1f}]".format(*bootstrap(metric, [outputs[0], output], targets))
                for output in outputs[1:]
            ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
