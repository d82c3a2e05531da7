"""Translation metrics: corpus BLEU and chrF of sacreBLEU, with the signatures that make them comparable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from polyhead.core.errors import UserError
from polyhead.tokenizers.input_validation import validate_list

# languages without spaces between words need a tokenizer of their own, or BLEU treats a sentence as one word
BLEU_TOKENIZERS = {"zh": "zh", "ja": "char", "th": "char", "my": "char", "lo": "char", "km": "char"}


class MetricScore(NamedTuple):
    """A corpus score with the sacreBLEU signature of how it was computed."""

    name: str
    value: float
    signature: str


class Evaluation(NamedTuple):
    """Scores of translations, and the translations."""

    scores: list[MetricScore]  # BLEU, BLEU of lowercased text, chrF
    outputs: list[str]


def evaluate_translations(outputs: list[str], references: Sequence[str], lang: str = "") -> Evaluation:
    """BLEU, with and without case, and chrF of one translation per source."""
    if not all(isinstance(output, str) for output in outputs):
        raise UserError("evaluate measures the best translation of each source: leave n_best out")
    scores = [
        bleu(outputs, references, lang),
        bleu(outputs, references, lang, lowercase=True),
        chrf(outputs, references),
    ]
    return Evaluation(scores, outputs)


def bleu(
    outputs: Sequence[str], references: Sequence[str], lang: str = "", lowercase: bool = False
) -> MetricScore:
    """Corpus BLEU on detokenised text (Papineni et al., 2002; Post, 2018), 13a tokens, ``zh`` for Chinese.

    Without ``lang``, references that are mostly Han characters are taken for Chinese.
    """
    from sacrebleu.metrics import BLEU

    check_same_length(outputs, references)
    metric = BLEU(tokenize=bleu_tokenizer(lang, references), lowercase=lowercase)
    value = metric.corpus_score(list(outputs), [list(references)]).score
    return MetricScore("bleu-lc" if lowercase else "bleu", value, str(metric.get_signature()))


def chrf(outputs: Sequence[str], references: Sequence[str]) -> MetricScore:
    """Corpus chrF2 on detokenised text (Popović, 2015)."""
    from sacrebleu.metrics import CHRF

    check_same_length(outputs, references)
    metric = CHRF()
    return MetricScore(
        "chrf", metric.corpus_score(list(outputs), [list(references)]).score, str(metric.get_signature())
    )


def bleu_tokenizer(lang: str, references: Sequence[str]) -> str:
    """The sacreBLEU tokenizer for a language; without one, it is guessed from the references."""
    code = lang.lower().replace("_", "-").split("-")[0]
    if not code:
        sample = "".join(references[:200])
        han = sum("\u4e00" <= c <= "\u9fff" for c in sample)
        kana = sum("\u3040" <= c <= "\u30ff" for c in sample)
        code = "ja" if kana > 0.1 * len(sample) else "zh" if han > 0.3 * len(sample) else ""
    return BLEU_TOKENIZERS.get(code, "13a")


def check_same_length(outputs: Sequence[str], references: Sequence[str]) -> None:
    """Check that there is one reference per output, and at least one."""
    for texts in (outputs, references):
        validate_list(texts, "run.evaluate", 2)
    if len(outputs) != len(references):
        raise UserError(f"{len(outputs)} outputs and {len(references)} references: they must be line by line")
    if not references:
        raise UserError("nothing to score: no references")
