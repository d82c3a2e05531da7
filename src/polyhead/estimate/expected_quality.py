"""Measured scores of models by corpus size, each with its source. There is no interpolation between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

OWN_RESULTS = "docs/results.md"
_SIZE_TOLERANCE = 2.0  # maximum ratio of two sizes that count as equal
_MAX_MEASUREMENTS = 3


class Measurement(NamedTuple):
    """The score of one model trained on one corpus."""

    task: str
    corpus: str
    size: int  # pairs or texts; bytes of plain text
    parameters: float | None
    score: str
    source: str


# BLEU of Multi30k is on lower-cased text
_MEASUREMENTS = (
    Measurement("translation", "Multi30k en-de", 29_000, 2.6e6, "BLEU 40.88", OWN_RESULTS),
    Measurement("translation", "Tatoeba en-zh", 27_148, 6.0e6, "BLEU 27.62", OWN_RESULTS),
    Measurement("translation", "Tatoeba en-zh, its first pairs", 5_000, 0.92e6, "BLEU 15.19", OWN_RESULTS),
    Measurement("translation", "OPUS-100 zh-en", 94_644, 15.6e6, "BLEU 25.26", "model card of "
        "xiefff/zh-en-transformer"),
    Measurement("translation", "IWSLT14 de-en", 160_000, 19e6, "BLEU 33.73", "README of JoeyNMT"),
    Measurement("translation", "WMT14 en-de", 4_500_000, 60.5e6, "BLEU 24.38", "README of JoeyNMT"),
    Measurement("language-model", "Shakespeare, characters", 1_115_394, 0.8e6, "2.548 bits per character",
        OWN_RESULTS),
    Measurement("language-model", "WikiText-2", 10_797_148, 5.2e6, "perplexity 117.4 per word", OWN_RESULTS),
    Measurement("masked-lm", "WikiText-2", 10_797_148, 1.9e6, "39.1 % of masked tokens correct", OWN_RESULTS),
    Measurement("denoising", "WikiText-2", 10_797_148, 2.0e6, "58.7 % of tokens correct", OWN_RESULTS),
    Measurement("classification", "TREC, 6 classes", 5_452, None, "accuracy 86.0", OWN_RESULTS),
    Measurement("classification", "CoLA, 2 classes", 8_551, None, "Matthews 0.194", OWN_RESULTS),
    Measurement("classification", "AG News, 4 classes", 9_000, None, "accuracy 87.3", OWN_RESULTS),
    Measurement("classification", "SST-2, 2 classes", 67_349, 1.2e6, "accuracy 81.5", OWN_RESULTS),
)  # fmt: skip
# other tasks count bytes
CORPUS_UNITS = {"translation": "{count:,} pairs", "classification": "{count:,} texts"}


def find_measurements(task: str, text: Mapping[str, float]) -> list[Measurement]:
    """Measurements on corpora of about this size, the nearest first; ``text`` is that of an estimate."""
    size = text.get("lines" if task in CORPUS_UNITS else "bytes", 0)
    similar = [
        measurement
        for measurement in _MEASUREMENTS
        if measurement.task == task
        and measurement.size / _SIZE_TOLERANCE <= size <= measurement.size * _SIZE_TOLERANCE
    ]
    return sorted(similar, key=lambda measurement: max(measurement.size / size, size / measurement.size))[
        :_MAX_MEASUREMENTS
    ]
