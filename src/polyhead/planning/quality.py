"""What models learned from corpora of a size: measured points, each with its source. Nothing is predicted between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

OURS = "docs/results.md"
NEAR = 2.0  # the most by which two sizes differ that count as the same
SHOWN = 3


class Measured(NamedTuple):
    """The score of one model that learned from one corpus."""

    task: str
    corpus: str
    size: int  # pairs or texts, of plain text bytes
    parameters: float | None
    score: str
    source: str


# BLEU of Multi30k is that of lower-cased text
MEASURED = (
    Measured("translation", "Multi30k en-de", 29_000, 2.6e6, "BLEU 40.88", OURS),
    Measured("translation", "Tatoeba en-zh", 27_148, 6.0e6, "BLEU 27.62", OURS),
    Measured("translation", "Tatoeba en-zh, its first pairs", 5_000, 0.92e6, "BLEU 15.19", OURS),
    Measured("translation", "OPUS-100 zh-en", 94_644, 15.6e6, "BLEU 25.26", "model card of xiefff/zh-en-transformer"),
    Measured("translation", "IWSLT14 de-en", 160_000, 19e6, "BLEU 33.73", "README of JoeyNMT"),
    Measured("translation", "WMT14 en-de", 4_500_000, 60.5e6, "BLEU 24.38", "README of JoeyNMT"),
    Measured("language-model", "Shakespeare, characters", 1_115_394, 0.8e6, "2.548 bits a character", OURS),
    Measured("language-model", "WikiText-2", 10_797_148, 5.2e6, "perplexity 117.4 a word", OURS),
    Measured("masked-lm", "WikiText-2", 10_797_148, 1.9e6, "39.1 % of hidden tokens right", OURS),
    Measured("denoising", "WikiText-2", 10_797_148, 2.0e6, "58.7 % of tokens right", OURS),
    Measured("classification", "TREC, 6 classes", 5_452, None, "accuracy 86.0", OURS),
    Measured("classification", "CoLA, 2 classes", 8_551, None, "Matthews 0.194", OURS),
    Measured("classification", "AG News, 4 classes", 9_000, None, "accuracy 87.3", OURS),
    Measured("classification", "SST-2, 2 classes", 67_349, 1.2e6, "accuracy 81.5", OURS),
)  # fmt: skip
UNITS = {"translation": "{count:,} pairs", "classification": "{count:,} texts"}  # of others the bytes count


def measured_near(task: str, text: Mapping[str, float]) -> list[Measured]:
    """What was measured on corpora of about this size, the nearest first; ``text`` is that of a plan."""
    size = text.get("lines" if task in UNITS else "bytes", 0)
    found = [one for one in MEASURED if one.task == task and one.size / NEAR <= size <= one.size * NEAR]
    return sorted(found, key=lambda one: max(one.size / size, size / one.size))[:SHOWN]
