"""The metrics of all tasks, each registered by its row here, and the scores of translations and summaries."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import zip_longest
from typing import Any, NamedTuple

from polyhead.core.errors import UserError, format_value, unknown_name_error
from polyhead.core.i18n import tr
from polyhead.tokenizers.input_validation import validate_list
from polyhead.tokenizers.languages import script_of_language
from polyhead.tokenizers.scripts import UNSPACED_SCRIPTS, find_unspaced_script

# scripts without spaces between words need a tokenizer of their own, or BLEU treats a sentence as one word
BLEU_TOKENIZERS = dict.fromkeys(UNSPACED_SCRIPTS, "char") | {"Han": "zh"}

References = Sequence[str | Sequence[str]]
"""The reference of each source: one text, or a list of texts of any length from 1."""


ScorerFactory = Callable[[str, Sequence[str]], Any]
"""Makes a metric of sacreBLEU for a language or, if that is unknown, for the script of the references."""


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

    def is_better(self, value: float, other: float) -> bool:
        """Whether a value is better than another one."""
        return value < other if self.lower_is_better else value > other


def make_bleu(lang: str = "", references: Sequence[str] = (), lowercase: bool = False) -> Any:
    """BLEU (Papineni et al., 2002; Post, 2018): 13a tokens, ``zh`` for Chinese, characters for other scripts
    without spaces.

    Without a known ``lang``, the tokenizer follows from the script of the references.
    """
    from sacrebleu.metrics import BLEU

    return BLEU(tokenize=bleu_tokenizer(lang, references), lowercase=lowercase)


def make_chrf(lang: str = "", references: Sequence[str] = ()) -> Any:
    """chrF2 (Popović, 2015)."""
    from sacrebleu.metrics import CHRF

    return CHRF()


class Rouge:
    """ROUGE (Lin, 2004) by rouge-score, as a metric of sacreBLEU: the mean F1 of the texts in percent.

    Of several references the one with the highest F1 counts. English has the words of published numbers, a-z
    and 0-9 after the Porter stemmer; other text has its words as they are, or its characters in a script
    without spaces. ``kind`` is rouge1, rouge2 or rougeL.
    """

    def __init__(self, lang: str, references: Sequence[str], kind: str) -> None:
        from rouge_score.rouge_scorer import RougeScorer

        is_english = lang[:2] == "en" or (not lang and all(map(str.isascii, references)))
        splits_at_spaces = bleu_tokenizer(lang, references) == "13a"
        self.kind = kind
        self.words = "porter" if is_english else "words" if splits_at_spaces else "characters"
        self.scorer = RougeScorer([kind], use_stemmer=True, tokenizer=None if is_english else self)

    def tokenize(self, text: str) -> list[str]:
        """The words or characters of a text that is not English."""
        return re.findall(r"\w+" if self.words == "words" else r"\w", text.lower())

    def corpus_score(self, outputs: Sequence[str], streams: Sequence[Sequence[str | None]]) -> Any:
        """Score of the outputs; each stream has a reference of every output, or None where it has no more."""
        from sacrebleu.metrics.base import Score

        rows = [[text for text in row if text is not None] for row in zip(*streams, strict=True)]
        pairs = zip(rows, outputs, strict=True)
        f1 = [self.scorer.score_multi(row, output)[self.kind].fmeasure for row, output in pairs]
        return Score(self.kind, 100 * sum(f1) / len(f1))

    def get_signature(self) -> str:
        return f"f1:mean|tok:{self.words}|rouge-score:{version('rouge-score')}"


_PERCENT: Any = {"is_percent": True, "digits": 2, "interval_digits": 1}
_LOWER: Any = {"lower_is_better": True, "digits": 3}
_ROUGE: Any = {"is_percent": True, "digits": 2, "interval_digits": 1, "is_judged": False, "is_default": False}
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
    Metric("micro_f1", "micro F1", "micro F1", "micro F1"),
    Metric("pearson", "Pearson", "Pearson", "Pearson correlation", digits=3),
    Metric("spearman", "Spearman", "Spearman", "Spearman correlation", digits=3),
    Metric("accuracy", "accuracy", "accuracy", "accuracy"),
    Metric("f1", "F1", "macro F1", "macro F1"),
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


class Evaluation(NamedTuple):
    """Scores of translations, and the translations."""

    scores: list[MetricScore]
    outputs: list[str]
    warning: str = ""  # BLEU does not suit the script of the references


def evaluate_translations(
    outputs: list[str], references: References, lang: str = "", metrics: Sequence[str] = ()
) -> Evaluation:
    """The metrics of one translation per source, with one or several references; by default BLEU and chrF."""
    if not all(isinstance(output, str) for output in outputs):
        raise UserError("evaluate measures the best translation of each source: remove n_best")
    chosen = [
        metric
        for metric in TRANSLATION_METRICS.values()
        if (metric.name in metrics if metrics else metric.is_default)
    ]
    scores = [score_translations(metric, outputs, references, lang) for metric in chosen]
    first = [text if isinstance(text, str) else text[0] for text in references]
    return Evaluation(scores, outputs, describe_tokenizer_mismatch(lang, first))


def check_metrics(names: Sequence[str]) -> None:
    """Raise UserError unless names are a list of names of ``TRANSLATION_METRICS``."""
    if isinstance(names, str):
        raise UserError(f"metrics expects a list of names, got one name; write metrics=[{names!r}]")
    for name in names:
        if name not in TRANSLATION_METRICS:
            raise unknown_name_error("metric", name, TRANSLATION_METRICS)


def make_scorer(metric: Metric, lang: str = "", references: Sequence[str] = ()) -> Any:
    """The metric of sacreBLEU that scores the translations."""
    assert metric.make_scorer, f"{metric.name} is no metric of translations"
    return metric.make_scorer(lang, references)


def score_translations(
    metric: Metric, outputs: Sequence[str], references: References, lang: str = ""
) -> MetricScore:
    """Corpus score of detokenised text."""
    check_same_length(outputs, references)
    lists = reference_lists(references)
    scorer = make_scorer(metric, lang, [texts[0] for texts in lists])
    value = scorer.corpus_score(list(outputs), _to_streams(lists)).score
    return MetricScore(metric.name, value, str(scorer.get_signature()))


def bleu_tokenizer(lang: str, references: Sequence[str]) -> str:
    """The sacreBLEU tokenizer for the script of a language code; if unknown, for that of the references."""
    script = script_of_language(lang) or find_unspaced_script(references)
    return BLEU_TOKENIZERS.get(script, "13a")


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
    reference_lists(references)


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


def _to_streams(lists: list[list[str]]) -> Any:
    """The references as sacreBLEU takes them: the first of every source, the second, ...; None if absent."""
    return [list(stream) for stream in zip_longest(*lists)]
