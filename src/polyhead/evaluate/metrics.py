"""The metrics of all tasks, each registered by its row here; scores of translations and their intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyhead.core.array_types import Floats
from polyhead.core.errors import UserError, format_value, unknown_name_error
from polyhead.core.i18n import tr
from polyhead.evaluate.text_scorers import (
    Comet,
    Rouge,
    ScoredTexts,
    bleu_tokenizer,
    make_bleu,
    make_chrf,
    make_ter,
)
from polyhead.tokenizers.input_validation import validate_list
from polyhead.tokenizers.scripts import find_unspaced_script

References = Sequence[str | Sequence[str]]
"""The reference of each source: one text, or a list of texts of any length from 1."""


ScorerFactory = Callable[[ScoredTexts], Any]
"""Makes a metric of sacreBLEU, or an object with the same methods, for some texts."""


@dataclass(frozen=True)
class Metric:
    """A metric: its names, in which direction it is better, its format, and how it scores translations."""

    name: str  # key in metrics.jsonl, in the results of compare and in train.best_metric
    label: str  # in sentences: "perplexity per word"
    column: str  # in the header of a table, and in facts: "word ppl"
    title: str  # in charts: "perplexity per word"
    lower_is_better: bool = False
    is_percent: bool = False  # the best value is 100, that of a fraction is 1
    digits: int = 4  # decimal places in a comparison
    interval_digits: int = 3  # decimal places of intervals and spreads
    is_judged: bool = True  # compared with its baseline
    make_scorer: ScorerFactory | None = None  # of translations
    is_default: bool = True  # computed where no metrics are named
    needs_path: bool = False  # named with the path of its model: "comet:PATH"; too slow for baselines

    def is_better(self, value: float, other: float) -> bool:
        """Whether a value is better than another one."""
        return value < other if self.lower_is_better else value > other


_PERCENT: Any = {"is_percent": True, "digits": 2, "interval_digits": 1}
_LOWER: Any = {"lower_is_better": True, "digits": 3}
_ROUGE: Any = {"is_percent": True, "digits": 2, "interval_digits": 1, "is_judged": False, "is_default": False}
_COMET: Any = {"is_judged": False, "is_default": False, "needs_path": True}
_LC_BLEU: Any = {"is_judged": False, "make_scorer": partial(make_bleu, lowercase=True)}
# judged in this order: the main metric of a task comes before its others
_TABLE = (
    Metric("loss", "loss", "loss", "validation loss", **_LOWER, is_judged=False),
    Metric("bleu", "BLEU", "BLEU", "BLEU", **_PERCENT, make_scorer=make_bleu),
    Metric("bleu-lc", "BLEU-lc", "bleu-lc", "BLEU-lc", **_PERCENT, **_LC_BLEU),
    Metric("chrf", "chrF", "chrF", "chrF", **_PERCENT, make_scorer=make_chrf),
    Metric("rouge-1", "ROUGE-1", "ROUGE-1", "ROUGE-1", **_ROUGE, make_scorer=partial(Rouge, kind="rouge1")),
    Metric("rouge-2", "ROUGE-2", "ROUGE-2", "ROUGE-2", **_ROUGE, make_scorer=partial(Rouge, kind="rouge2")),
    Metric("rouge-l", "ROUGE-L", "ROUGE-L", "ROUGE-L", **_ROUGE, make_scorer=partial(Rouge, kind="rougeL")),
    Metric("ter", "TER", "TER", "TER", True, **_ROUGE, make_scorer=make_ter),
    Metric("comet", "COMET", "COMET", "COMET", **_COMET, make_scorer=Comet),
    Metric("micro_f1", "micro F1", "micro F1", "micro F1"),
    Metric("pearson", "Pearson", "Pearson", "Pearson correlation", digits=3),
    Metric("spearman", "Spearman", "Spearman", "Spearman correlation", digits=3),
    Metric("ndcg", "nDCG@10", "nDCG@10", "nDCG@10"),
    Metric("mrr", "MRR", "MRR", "mean reciprocal rank"),
    Metric("accuracy", "accuracy", "accuracy", "accuracy"),
    Metric("f1", "F1", "macro F1", "macro F1"),
    Metric("exact_match", "exact match", "exact match", "exact match"),
    Metric("mcc", "MCC", "MCC", "Matthews correlation", digits=3),
    Metric("ppl", "perplexity", "perplexity", "perplexity", **_LOWER),
    Metric("word_ppl", "perplexity per word", "word ppl", "perplexity per word", True, False, 2, 1),
    Metric("bits_per_char", "bits per character", "bits/char", "bits per character", **_LOWER),
)
KNOWN_METRICS = {metric.name: metric for metric in _TABLE}
TRANSLATION_METRICS = {metric.name: metric for metric in _TABLE if metric.make_scorer}
MAIN_TRANSLATION_METRICS = tuple(metric for metric in TRANSLATION_METRICS.values() if metric.is_judged)
SHORT_TEXT_METRIC = KNOWN_METRICS["chrf"]  # of a few sentences, in which BLEU may find no four equal words


class MetricScore(NamedTuple):
    """A corpus score with the signature of how it was computed."""

    name: str
    value: float
    signature: str
    resamples: tuple[float, ...] = ()  # bootstrap scores; the same texts are drawn for all outputs

    @property
    def margin(self) -> float:
        """Half the width of the 95 % interval of the resampled scores, as by ``sacrebleu --confidence``."""
        low, high = score_interval(self.resamples)
        return (high - low) / 2


class PairedDifference(NamedTuple):
    """Difference of the scores of two outputs of the same texts."""

    value: float
    low: float  # of the 95 % interval
    high: float
    p: float  # two-sided


def compare_scores(score: MetricScore, other: MetricScore) -> PairedDifference:
    """score - other by paired bootstrap (Koehn, 2004); both are of ``run.evaluate`` on the same texts."""
    if score.name != other.name or len(score.resamples) != len(other.resamples) or not score.resamples:
        raise UserError(
            f"compare_scores expects two scores of one metric with equally many resamples, got {score.name} "
            f"with {len(score.resamples):,} and {other.name} with {len(other.resamples):,}"
        )
    value, differences = score.value - other.value, np.subtract(score.resamples, other.resamples)
    interval = score_interval(differences.tolist())
    return PairedDifference(value, *interval, bootstrap_p_value(differences, value))


class Evaluation(NamedTuple):
    """Scores of translations, and the translations."""

    scores: list[MetricScore]
    outputs: list[str]
    warning: str = ""  # BLEU does not suit the script of the references


def evaluate_translations(
    outputs: list[str],
    references: References,
    lang: str = "",
    metrics: Sequence[str] = (),
    sources: Sequence[str] = (),
    n_resamples: int = 0,
) -> Evaluation:
    """The metrics of one translation per source, with one or several references; by default BLEU and chrF.

    Only COMET reads ``sources``. ``n_resamples`` bootstrap resamples give the scores their intervals.
    """
    if not all(isinstance(output, str) for output in outputs):
        raise UserError("evaluate measures the best translation of each source: remove n_best")
    paths = dict(split_metric(name) for name in metrics)
    scores = [
        score_translations(metric, outputs, references, lang, sources, paths.get(name, ""), n_resamples)
        for name, metric in TRANSLATION_METRICS.items()
        if (name in paths if metrics else metric.is_default)
    ]
    first = [text if isinstance(text, str) else text[0] for text in references]
    return Evaluation(scores, outputs, describe_tokenizer_mismatch(lang, first))


def split_metric(name: str) -> tuple[str, str]:
    """Name and path of a metric: ("comet", "models/wmt22.ckpt") of "comet:models/wmt22.ckpt"."""
    metric, _, path = name.partition(":")
    return metric, path


def check_metrics(names: Sequence[str]) -> None:
    """Raise UserError unless names are a list of names of ``TRANSLATION_METRICS``, COMET with its path."""
    if isinstance(names, str):
        raise UserError(f"metrics expects a list of names, got one name; write metrics=[{names!r}]")
    for name, path in map(split_metric, names):
        if name not in TRANSLATION_METRICS:
            raise unknown_name_error("metric", name, TRANSLATION_METRICS)
        if TRANSLATION_METRICS[name].needs_path:
            Comet.check(path)
        elif path:
            raise UserError(f"metric {name} takes no path, got {path!r}: write {name}")


def make_scorer(metric: Metric, texts: ScoredTexts = ScoredTexts()) -> Any:
    """The metric of sacreBLEU that scores translations, or an object with the same methods."""
    assert metric.make_scorer, f"{metric.name} is no metric of translations"
    return metric.make_scorer(texts)


def score_translations(
    metric: Metric,
    outputs: Sequence[str],
    references: References,
    lang: str = "",
    sources: Sequence[str] = (),
    path: str = "",
    n_resamples: int = 0,
) -> MetricScore:
    """Corpus score of detokenised text, with ``n_resamples`` bootstrap scores."""
    check_same_length(outputs, references)
    lists = reference_lists(references)
    scorer = make_scorer(metric, ScoredTexts(lang, [texts[0] for texts in lists], sources, path))
    statistics = scorer._extract_corpus_statistics(list(outputs), to_streams(lists))
    value = scorer._aggregate_and_compute(statistics).score
    if n_resamples:
        scorer.n_bootstrap, scorer.seed = n_resamples, SEED  # in the signature
    resamples = resample_scores(scorer, statistics, n_resamples)
    return MetricScore(metric.name, value, str(scorer.get_signature()), tuple(resamples))


def describe_tokenizer_mismatch(lang: str, references: Sequence[str]) -> str:
    """Warning if BLEU splits at spaces, because of ``lang``, references in a script without them; else ""."""
    script = find_unspaced_script(references)
    if not script or bleu_tokenizer(lang, references) != "13a":
        return ""
    return tr(
        "warning: the references are in {script} script, which has no spaces between words, but BLEU of "
        "language {lang!r} (tok:13a) splits at spaces: set the language of the references",
        script=script,
        lang=lang,
    )


def check_same_length(outputs: Sequence[str], references: References) -> None:
    """Check that there is one reference, or one list of references, per output, and at least one output."""
    for texts in (outputs, references):
        validate_list(texts, "run.evaluate", 2)
    reference_lists(references)
    if len(outputs) != len(references):
        is_transposed = references and all(
            not isinstance(texts, str) and len(texts) == len(outputs) for texts in references
        )
        hint = "; of one list per reference, write list(zip(*references))" if is_transposed else ""
        raise UserError(
            f"{len(outputs)} outputs and {len(references)} references: expected equally many{hint}"
        )
    if not references:
        raise UserError("nothing to score: no references")


def reference_lists(references: References) -> list[list[str]]:
    """The references of each source as a list; anything but texts is a UserError."""
    lists = [[texts] if isinstance(texts, str) else texts for texts in references]
    for number, texts in enumerate(lists):
        is_list = isinstance(texts, list | tuple) and texts
        if not is_list or not all(isinstance(text, str) for text in texts):
            raise UserError(
                f"reference {number} is {format_value(texts)}; expected a text or a list of texts"
            )
    return [list(texts) for texts in lists]


def to_streams(lists: list[list[str]]) -> Any:
    """The references as sacreBLEU takes them: the first of every source, the second, ...; None if absent."""
    return [list(stream) for stream in zip_longest(*lists)]


N_RESAMPLES = 1000
SEED = 12345  # the default of sacreBLEU


def draw_counts(n: int, n_resamples: int) -> Iterator[NDArray[np.int64]]:
    """How often each of ``n`` texts is drawn into each resample, as by sacreBLEU: R times (N,)."""
    rng = np.random.default_rng(SEED)
    return (np.bincount(rng.choice(n, n), minlength=n) for _ in range(n_resamples))


def resample_scores(scorer: Any, statistics: ArrayLike, n_resamples: int) -> list[float]:
    """Score of each resample (R) of the texts with these statistics (N, K), by a metric of sacreBLEU.

    The resamples depend on N alone, so they draw the same texts for every output.
    """
    statistics = np.asarray(statistics, dtype=np.float64)
    return [
        float(scorer._compute_score_from_stats((counts @ statistics).tolist()).score)
        for counts in draw_counts(len(statistics), n_resamples)
    ]


def score_interval(resamples: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of resampled scores, by the ranks of sacreBLEU: without 1/40 at each end."""
    ordered = sorted(resamples)
    return ordered[len(ordered) // 40], ordered[-1 - len(ordered) // 40]


def bootstrap_p_value(differences: Floats, observed: float) -> float:
    """Two-sided p: the share of resamples that move the difference further than it is from 0.

    A resampled difference is compared with the mean of all of them. Both counts are increased by one, as in
    sacreBLEU. p is 1 if there is no difference.
    """
    if not observed:
        return 1.0
    beyond = int(np.sum(np.abs(differences - differences.mean()) > abs(observed)))
    return (beyond + 1) / (len(differences) + 1)
