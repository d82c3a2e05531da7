"""Translation metrics: corpus BLEU and chrF of sacreBLEU, with the signatures that make them comparable."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from polyhead.core.errors import UserError, format_value
from polyhead.core.i18n import tr
from polyhead.tokenizers.input_validation import validate_list
from polyhead.tokenizers.languages import script_of_language
from polyhead.tokenizers.scripts import UNSPACED_SCRIPTS, find_unspaced_script

# scripts without spaces between words need a tokenizer of their own, or BLEU treats a sentence as one word
BLEU_TOKENIZERS = dict.fromkeys(UNSPACED_SCRIPTS, "char") | {"Han": "zh"}

References = Sequence[str | Sequence[str]]
"""The reference of each source: one text, or a list of texts of any length from 1."""


class MetricScore(NamedTuple):
    """A corpus score with the sacreBLEU signature of how it was computed."""

    name: str
    value: float
    signature: str


class Evaluation(NamedTuple):
    """Scores of translations, and the translations."""

    scores: list[MetricScore]  # BLEU, BLEU of lowercased text, chrF
    outputs: list[str]
    warning: str = ""  # BLEU does not suit the script of the references


def evaluate_translations(outputs: list[str], references: References, lang: str = "") -> Evaluation:
    """BLEU, with and without case, and chrF of one translation per source, with one or several references."""
    if not all(isinstance(output, str) for output in outputs):
        raise UserError("evaluate measures the best translation of each source: remove n_best")
    scores = [
        bleu(outputs, references, lang),
        bleu(outputs, references, lang, lowercase=True),
        chrf(outputs, references),
    ]
    first = [text if isinstance(text, str) else text[0] for text in references]
    return Evaluation(scores, outputs, describe_tokenizer_mismatch(lang, first))


def bleu(
    outputs: Sequence[str], references: References, lang: str = "", lowercase: bool = False
) -> MetricScore:
    """Corpus BLEU on detokenised text (Papineni et al., 2002; Post, 2018), 13a tokens,
    ``zh`` for Chinese, characters for other scripts without spaces.

    Without a known ``lang``, the tokenizer follows from the script of the references.
    """
    from sacrebleu.metrics import BLEU

    check_same_length(outputs, references)
    lists = reference_lists(references)
    metric = BLEU(tokenize=bleu_tokenizer(lang, [texts[0] for texts in lists]), lowercase=lowercase)
    value = metric.corpus_score(list(outputs), _to_streams(lists)).score
    return MetricScore("bleu-lc" if lowercase else "bleu", value, str(metric.get_signature()))


def chrf(outputs: Sequence[str], references: References) -> MetricScore:
    """Corpus chrF2 on detokenised text (Popović, 2015)."""
    from sacrebleu.metrics import CHRF

    check_same_length(outputs, references)
    metric = CHRF()
    value = metric.corpus_score(list(outputs), _to_streams(reference_lists(references))).score
    return MetricScore("chrf", value, str(metric.get_signature()))


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
